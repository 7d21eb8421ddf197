"""A connection that may be cut at any moment, and is reopened for the next call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg

from penstock.db.connections.pool import prepare
from support.shapes import T

PAUSE_SECONDS = 0.02

_GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,  # it restarts
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the driver's state after a cut at an odd moment
    OSError,
)


class Cut(Exception):  # noqa: N818  # named for what happened
    """The connection is lost. Whether the last call took effect is not known."""


class Wire:
    def __init__(self, dsn: str, up: asyncio.Event | None = None) -> None:
        self._dsn = dsn
        self._up = up  # unset while the server is known to be down: no connection is tried
        self._conn: asyncpg.Connection | None = None
        self.cuts = 0  # calls whose effect is not known

    @asynccontextmanager
    async def open(self) -> AsyncIterator[asyncpg.Connection]:
        """The connection, a new one if necessary; `Cut` if it breaks during the block."""
        if self._up is not None:
            await self._up.wait()
        try:
            if self._conn is None or self._conn.is_closed():
                self._conn = await asyncpg.connect(self._dsn)
                await prepare(self._conn)
            yield self._conn
        except _GONE as error:
            self.cut()
            self.cuts += 1
            raise Cut from error

    def cut(self) -> None:
        """Close it abruptly, in the middle of whatever it was doing."""
        if self._conn is not None:
            self._conn.terminate()

    @property
    def pid(self) -> int | None:
        return None if self._conn is None or self._conn.is_closed() else self._conn.get_server_pid()

    async def insist(self, call: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        """Repeat a call that may be repeated until there is an answer."""
        while True:
            try:
                async with self.open() as conn:
                    return await call(conn)
            except Cut:
                await asyncio.sleep(PAUSE_SECONDS)
