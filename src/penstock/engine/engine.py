"""The verbs of the SQL core, in Python. Holds the parts, and nothing else."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import asyncpg

from penstock.db.adapters.caller_connection import Rows
from penstock.db.connections.driver_errors import translated
from penstock.db.connections.pool import LEAVE_SECONDS, Pool, open_pool
from penstock.engine.accounts.accounts import Accounts
from penstock.engine.accounts.erasure import Erasure
from penstock.engine.accounts.keys import Keys
from penstock.engine.accounts.sessions import Grants
from penstock.engine.circuits import Circuits
from penstock.engine.driven_queues import Drive
from penstock.engine.jobs.callbacks import Callbacks
from penstock.engine.jobs.jobs import Jobs
from penstock.engine.jobs.on_finish import Hooks
from penstock.engine.jobs.progress import Progress
from penstock.engine.maintenance import Upkeep
from penstock.engine.queries.events import Events
from penstock.engine.queries.hourly import Hourly
from penstock.engine.queries.json_texts import Texts
from penstock.engine.queries.lists import Lists
from penstock.engine.queries.rows import JobRows
from penstock.engine.queues import Queues
from penstock.engine.uploads import Uploads
from penstock.engine.webhooks import Webhooks
from penstock.engine.workers import Workers

AGAIN_SECONDS = (0.005, 0.02, 0.08, 0.3)
"""Pauses before a statement is run again that met another transaction."""

_log = logging.getLogger("penstock.engine")


class Engine:
    """`async with await Engine.open(dsn) as engine: await engine.jobs.submit(...)`."""

    def __init__(self, pool: Pool, *, within_seconds: float | None = None) -> None:
        self._pool = pool
        self._within_seconds = within_seconds
        self.jobs = Jobs(self._fetch, commits=not pool.frugal)
        self.queues = Queues(self._fetch)
        self.circuits = Circuits(self._fetch)
        self.accounts = Accounts(self._fetch)
        self.keys = Keys(self._fetch)
        self.grants = Grants(self._fetch)
        self.workers = Workers(self._fetch)
        self.upkeep = Upkeep(self._fetch)
        self.lists = Lists(self._fetch)
        self.texts = Texts(self._fetch)
        self.rows = JobRows(self._fetch)
        self.progress = Progress(self._fetch)
        self.hooks = Hooks(self._fetch)
        self.hourly = Hourly(self._fetch)
        self.erasure = Erasure(self._fetch)
        self.events = Events(self._fetch)
        self.callbacks = Callbacks(self._fetch)
        self.webhooks = Webhooks(self._fetch)
        self.drive = Drive(self._fetch)
        self.uploads = Uploads(self._fetch, self.transaction)

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        max_connections: int = 10,
        frugal: bool = False,
        answer_seconds: float | None = None,
    ) -> Self:
        """Connect to a database whose schema is in place.

        `frugal`: through a pooler that gives each transaction another session. `answer_seconds`:
        a call that takes longer raises Unavailable, and its connection is given up.
        """
        with translated():
            pool = await open_pool(
                dsn, max_size=max_connections, frugal=frugal, answer_seconds=answer_seconds
            )
        return cls(pool)

    def within(self, seconds: float) -> Self:
        """The same engine for callers who cannot wait for longer: then a call is Unavailable.

        Whether it took effect is not known. A commit that waits for its standby is such a call.
        """
        return type(self)(self._pool, within_seconds=seconds)

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection in a transaction: what is done with it, and given it, happens as one."""
        with translated():
            async with AsyncExitStack() as lent:
                async with asyncio.timeout(self._within_seconds):
                    conn = await lent.enter_async_context(self._pool.acquire())
                    transaction = conn.transaction()
                    await transaction.start()
                try:
                    yield conn
                except BaseException:
                    await _undo(conn, transaction)
                    raise
                async with asyncio.timeout(self._within_seconds):
                    await transaction.commit()

    def renew(self) -> None:
        """Close each connection when it is next free; others take their place."""
        self._pool.expire()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _fetch(self, sql: str, args: Sequence[Any]) -> Rows:
        """One statement, which is a transaction: undone as a whole, it may be run again."""
        loop = asyncio.get_running_loop()
        ends = None if self._within_seconds is None else loop.time() + self._within_seconds
        with translated():
            for pause in AGAIN_SECONDS:
                try:
                    return await self._pool.fetch(sql, *args, within_seconds=_left(ends))
                except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError) as error:
                    _log.info("a statement is run again: %s", type(error).__name__)
                # Not all at the same moment, or they meet again.
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  # no secret
            return await self._pool.fetch(sql, *args, within_seconds=_left(ends))


def _left(ends: float | None) -> float | None:
    """Seconds until that time of the loop; None: no end was set."""
    return None if ends is None else max(0.0, ends - asyncio.get_running_loop().time())


async def _undo(conn: asyncpg.Connection, transaction: asyncpg.transaction.Transaction) -> None:
    """Roll back; a server that stands still does not answer, and keeps nobody here."""
    if conn.is_closed():
        return
    try:
        async with asyncio.timeout(LEAVE_SECONDS):
            await transaction.rollback()
    except TimeoutError:
        conn.terminate()
