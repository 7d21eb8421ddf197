"""For the tests of an app: a separate database per test, jobs that run on command, a movable clock.

    async with app.testing() as t:
        ticket = await mark.submit(answer="…")
        await t.drain()                # run due jobs
        await t.advance("5m")          # move the clock: retries become due, old history is removed
        await t.drain()

The database is a new one on the embedded server (or on that of PENSTOCK_DSN, if the role may create
databases) and is dropped at the end. It is a real Postgres: nothing is imitated.
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

# The database is dropped after the test, so it need not survive a crash.
_HASTY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_TEMPLATE_LOCK = 1886413174

# Apps that use a test's database now.
_open: "weakref.WeakSet[Penstock]" = weakref.WeakSet()


class Clock:
    """Moves `penstock.clock()`, the database's only "now". Later transactions see the new time."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self._conn = conn  # a separate one: in a test's open transaction, nobody would see the move

    async def now(self) -> datetime:
        moment: datetime = await self._conn.fetchval("select penstock.clock()")
        return moment

    async def advance(self, by: str | float | timedelta, *, beats: bool = False) -> None:
        """Move on by `"5m"`. With `beats`, live workers' heartbeats move along.

        Without `beats`, all workers seem to have sent no heartbeat for that long. Worker processes
        that really run need `beats`: their next heartbeat is seconds away, and the lease is shorter
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
        """Stop the clock now, or at `at`; `advance` still moves it."""
        moment: datetime = await self._conn.fetchval(
            "update penstock.test_clock"
            " set frozen_at = coalesce($1, penstock.clock()), moved = '0' returning frozen_at",
            at,
        )
        return moment

    async def thaw(self) -> None:
        """Let the clock run again, from its present time."""
        await self._conn.execute(
            "update penstock.test_clock"
            " set moved = penstock.clock() - clock_timestamp(), frozen_at = null"
        )


def clock_script() -> str:
    """Return the SQL that replaces the real clock by a movable one."""
    return (files("penstock") / "sql" / "testing" / "clock.sql").read_text(encoding="utf-8")


class Testing:
    """A database for one test; the app uses it until the end of the block."""

    __test__ = False  # pytest would collect it as a test, because of its name

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
                "testing() is already open for this app: use that block, or end it first."
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
            "app.testing() creates a database for each test, and this role may not. Grant it "
            "CREATEDB, or unset PENSTOCK_DSN: then an embedded server is used."
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
        """Run due jobs until there are none; return the number of attempts.

        This includes jobs that become due meanwhile. Jobs that are scheduled for later, or that
        wait for a limit, keep waiting.
        """
        await self._app.engine()  # sends new declarations
        tracebacks = self._app.settings.tracebacks
        return await run_jobs(self.dsn, self._app.handlers(), name="testing", tracebacks=tracebacks)

    async def advance(self, by: str | float | timedelta) -> None:
        """Move the clock on, and remove finished jobs whose retention is now over.

        Running workers do not lose their leases by it.
        """
        await self.clock.advance(by, beats=True)
        # Workers prune in the background, but here none may run. Each call drops one partition.
        while await self._conn.fetchval("select count(*) from penstock.prune_history()"):
            pass


@asynccontextmanager
async def scratch_database(
    server: scratch.Server,
    prefix: str,
    refusal: str,
    template: Callable[[asyncpg.Connection, scratch.Server], Awaitable[str]] | None = None,
) -> AsyncIterator[str]:
    """Create a database that is dropped at the end; yield its address.

    `refusal`: the message if the role may not create databases.
    """
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
    # Kept until the process ends: starting a server for each test would take longer than the test.
    embedded = await asyncio.to_thread(Embedded.use, settings.home / "testing", settings=_HASTY)
    return scratch.Server(embedded.admin_dsn, ROLE)


async def _template(maker: asyncpg.Connection, server: scratch.Server) -> str:
    """Create, once, a template database with this program's schema and a movable clock."""
    schema = packaged()
    parts = [schema.functions_checksum, clock_script(), *(m.checksum for m in schema.migrations)]
    name = f"penstock_testing_{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
    await maker.execute("select pg_advisory_lock($1)", _TEMPLATE_LOCK)
    try:
        if not await maker.fetchval("select 1 from pg_database where datname = $1", name):
            # It gets its final name last: others take a template of that name for complete.
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
