"""Statements: how one is run, and how its rows become values."""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from penstock.db.adapters.caller_connection import Fetch, Rows, borrow
from penstock.db.connections.driver_errors import translated
from penstock.db.connections.pool import LEAVE_SECONDS, Pool

T = TypeVar("T")
Answer = dict[str, Any]
"""A plain dict in the form of the contract: it is shown or sent."""

AGAIN_SECONDS = (0.005, 0.02, 0.08, 0.3)
"""Pauses before a statement that conflicted with another transaction is repeated."""

_log = logging.getLogger("penstock.engine")


def as_row(*columns: Any) -> Any:
    """Leave the columns of a row as they are."""
    return columns


class Statements:
    """The statements of one noun: each part of the engine has a method for each SQL function."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def _on(self, conn: Any) -> Fetch:
        """Run on the caller's connection, if there is one."""
        return self._fetch if conn is None else borrow(conn)

    async def _rows(self, make: Callable[..., T], sql: str, *args: Any) -> list[T]:
        """Apply `make` to the columns of each row."""
        return [make(*row.values()) for row in await self._fetch(sql, args)]

    async def _values(self, sql: str, *args: Any) -> list[Any]:
        """Return the only column of each row."""
        return [value for row in await self._fetch(sql, args) for value in row.values()]

    async def _pairs(self, sql: str, *args: Any) -> dict[Any, Any]:
        """Return the second column of each row by the first."""
        return dict([row.values() for row in await self._fetch(sql, args)])

    async def _value(self, make: Callable[[Any], T], sql: str, *args: Any) -> T:
        """Apply `make` to the only column of the only row."""
        [value] = await self._values(sql, *args)
        return make(value)

    async def _json(self, sql: str, args: Sequence[Any], conn: Any) -> Answer:
        """The JSON that a statement returns, also on the caller's connection."""
        [row] = await self._on(conn)(sql, args)
        [value] = row.values()
        # Some drivers leave jsonb as text.
        answer: Answer = json.loads(value) if isinstance(value, str) else value
        return answer


class PooledStatements:
    """Runs statements and transactions on the connections of a pool."""

    def __init__(self, pool: Pool, within_seconds: float | None = None) -> None:
        """`within_seconds`: a call that takes longer raises Unavailable."""
        self._pool = pool
        self._within_seconds = within_seconds

    async def fetch(self, sql: str, args: Sequence[Any]) -> Rows:
        """Run one statement. It is a transaction, undone as a whole, so it may be run again."""
        loop = asyncio.get_running_loop()
        ends = None if self._within_seconds is None else loop.time() + self._within_seconds
        with translated():
            for pause in AGAIN_SECONDS:
                try:
                    return await self._pool.fetch(sql, *args, within_seconds=_left(ends))
                except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError) as error:
                    _log.info("a statement is run again: %s", type(error).__name__)
                # At random moments, or the same transactions conflict again.
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  # no secret
            return await self._pool.fetch(sql, *args, within_seconds=_left(ends))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection]:
        """Lend a connection in a transaction, for what has to happen as one."""
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


def _left(ends: float | None) -> float | None:
    """Seconds until that time of the loop; None: no limit was set."""
    return None if ends is None else max(0.0, ends - asyncio.get_running_loop().time())


async def _undo(conn: asyncpg.Connection, transaction: asyncpg.transaction.Transaction) -> None:
    """Roll back; a server that does not answer must not block the caller."""
    if conn.is_closed():
        return
    try:
        async with asyncio.timeout(LEAVE_SECONDS):
            await transaction.rollback()
    except TimeoutError:
        conn.terminate()
