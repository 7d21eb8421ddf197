"""For the tests of an app: a database of its own for each, jobs run when told, time that moves.

    async with app.testing() as t:
        ticket = await mark.submit(answer="…")
        await t.drain()                # run what is due
        await t.advance("5m")          # the clock moves; what backs off is due, old history goes
        await t.drain()

The database is a fresh one on the embedded server (or on that of PENSTOCK_DSN, where the role may
create databases) and is dropped at the end. It is a real Postgres: nothing is imitated.
"""

import asyncio
import hashlib
import uuid
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Self

import asyncpg

from penstock.base.settings import Settings, duration
from penstock.client.inline import run_jobs
from penstock.db import scratch
from penstock.db.connections.connect import open_connection
from penstock.db.embedded.database import Embedded
from penstock.db.embedded.files import ROLE
from penstock.db.schema import migrations
from penstock.db.schema.files import packaged
from penstock.errors import Misconfigured

if TYPE_CHECKING:
    from penstock.client.app import Penstock

# Nothing of a test outlives it, so nothing waits for the disk.
_HASTY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_TEMPLATE_LOCK = 1886413174

# Apps that use a test's database now.
_open: "weakref.WeakSet[Penstock]" = weakref.WeakSet()


class Clock:
    """Moves the only "now" there is. Everything that is committed later sees the new time."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self._conn = conn  # its own, or a test's open transaction would hide the move

    async def now(self) -> datetime:
        moment: datetime = await self._conn.fetchval("select penstock.clock()")
        return moment

    async def advance(self, by: str | float | timedelta, *, beats: bool = False) -> None:
        """Move on by `"5m"`. With `beats`, live workers' heartbeats move along.

        Without, a worker falls silent for that long, as seen by everyone else. Worker processes
        that really run need `beats`: their next beat is seconds away, and the lease is shorter
        than most moves.
        """
        step = duration(by, field="by")
        async with self._conn.transaction():
            await self._conn.execute("update penstock.test_clock set moved = moved + $1", step)
            if beats:
                await self._conn.execute(
                    "update penstock.worker set beat_at = beat_at + $1"
                    " where stopped_at is null and lost_at is null",
                    step,
                )

    async def freeze(self, at: datetime | None = None) -> datetime:
        """Stop at this moment, or at `at`; `advance` still moves it."""
        moment: datetime = await self._conn.fetchval(
            "update penstock.test_clock"
            " set frozen_at = coalesce($1, penstock.clock()), moved = '0' returning frozen_at",
            at,
        )
        return moment

    async def thaw(self) -> None:
        """Run on from where it stands."""
        await self._conn.execute(
            "update penstock.test_clock"
            " set moved = penstock.clock() - clock_timestamp(), frozen_at = null"
        )


def clock_script() -> str:
    """SQL that puts a clock that moves in the place of the real one."""
    return (files("penstock") / "sql" / "testing" / "clock.sql").read_text(encoding="utf-8")


class Testing:
    """One database for one test; the app uses it until the end of the block."""

    __test__ = False  # not a test itself, whatever its name makes pytest think

    clock: Clock
    dsn: str

    def __init__(self, app: "Penstock") -> None:
        """Use `app.testing()`."""
        self._app = app

    @staticmethod
    def is_open(app: "Penstock") -> bool:
        """Whether the app uses a test's database now."""
        return app in _open

    async def __aenter__(self) -> Self:
        if self._app in _open:
            raise Misconfigured(
                "testing() is already open for this app: use that one, or end its block first."
            )
        async with AsyncExitStack() as held:
            _open.add(self._app)
            await self._enter(held)
            self._held = held.pop_all()
        return self

    async def _enter(self, held: AsyncExitStack) -> None:
        held.callback(_open.discard, self._app)
        server = await _server(self._app.settings)
        refusal = (
            "app.testing() makes a database for each test, and this role may not. Grant it "
            "CREATEDB, or leave PENSTOCK_DSN away: then an embedded server is used."
        )
        self.dsn = await held.enter_async_context(
            scratch_database(server, "penstock_test", refusal, _template)
        )
        self._conn = await open_connection(self.dsn)
        held.push_async_callback(self._conn.close)
        self.clock = Clock(self._conn)
        held.push_async_callback(self._app.move, None)
        await self._app.move(self.dsn)

    async def __aexit__(self, *_: object) -> None:
        await self._held.aclose()

    async def drain(self) -> int:
        """Run what is due, and what becomes due by that, until there is nothing; how many starts.

        What waits for its time, or for a limit that somebody else holds, is left.
        """
        await self._app.engine()  # declares what is new
        tracebacks = self._app.settings.tracebacks
        return await run_jobs(self.dsn, self._app.handlers(), name="testing", tracebacks=tracebacks)

    async def advance(self, by: str | float | timedelta) -> None:
        """Move the clock on, and remove ended jobs that are now over their retention.

        Workers that run are not taken for silent.
        """
        await self.clock.advance(by, beats=True)
        # A worker does so in the background, and here none may run. Each call drops one partition.
        while await self._conn.fetchval("select count(*) from penstock.prune_history()"):
            pass


@asynccontextmanager
async def scratch_database(
    server: scratch.Server,
    prefix: str,
    refusal: str,
    template: Callable[[asyncpg.Connection, scratch.Server], Awaitable[str]] | None = None,
) -> AsyncIterator[str]:
    """The address of a database that is dropped at the end; `refusal` for who may make none."""
    name = f"{prefix}_{uuid.uuid4().hex[:16]}"
    maker = await open_connection(server.maker)
    try:
        try:
            source = None if template is None else await template(maker, server)
            await scratch.create(maker, name, server.owner, template=source)
        except asyncpg.InsufficientPrivilegeError:
            raise Misconfigured(refusal) from None
        try:
            yield server.dsn(name)
        finally:
            await scratch.drop(maker, name)
    finally:
        await maker.close()


async def _server(settings: Settings) -> scratch.Server:
    if settings.dsn is not None:
        return scratch.Server(settings.dsn, None)
    # Used until the process ends: to start a server for each test would take longer than the test.
    embedded = await asyncio.to_thread(Embedded.use, settings.home / "testing", settings=_HASTY)
    return scratch.Server(embedded.admin_dsn, ROLE)


async def _template(maker: asyncpg.Connection, server: scratch.Server) -> str:
    """A database with the schema of this program and a clock that moves, made once."""
    schema = packaged()
    parts = [schema.functions_checksum, clock_script(), *(m.checksum for m in schema.migrations)]
    name = f"penstock_testing_{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
    await maker.execute("select pg_advisory_lock($1)", _TEMPLATE_LOCK)
    try:
        if not await maker.fetchval("select 1 from pg_database where datname = $1", name):
            # Its final name last: others take a template by that name for whole.
            unfinished = f"{name}_unfinished"
            await scratch.drop(maker, unfinished)
            await scratch.create(maker, unfinished, server.owner)
            conn = await open_connection(server.dsn(unfinished))
            try:
                await migrations.up(conn)
                await conn.execute(clock_script())
            finally:
                await conn.close()
            await maker.execute(f'alter database "{unfinished}" rename to "{name}"')
    finally:
        await maker.execute("select pg_advisory_unlock($1)", _TEMPLATE_LOCK)
    return name
