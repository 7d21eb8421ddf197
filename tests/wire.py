"""A connection that may be cut at any moment, and is opened again for the next call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from penstock.db.pool import prepare

_GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the driver's state after a cut at an odd moment
    OSError,
)


class Cut(Exception):  # noqa: N818  # named for what happened
    """The connection is gone. Whether the last call took effect is not known."""


class Wire:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn: asyncpg.Connection | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[asyncpg.Connection]:
        """The connection, a new one if need be; `Cut` when it breaks under what is inside."""
        try:
            if self._conn is None or self._conn.is_closed():
                self._conn = await asyncpg.connect(self._dsn)
                await prepare(self._conn)
            yield self._conn
        except _GONE as error:
            self.cut()
            raise Cut from error

    def cut(self) -> None:
        """No goodbye, in the middle of whatever it was."""
        if self._conn is not None:
            self._conn.terminate()

    @property
    def pid(self) -> int | None:
        return None if self._conn is None or self._conn.is_closed() else self._conn.get_server_pid()
