"""Connections to a test's database, as many as it asks for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from penstock.db.connections.pool import prepare
from support.shapes import Connect


@asynccontextmanager
async def connections(dsn: str) -> AsyncIterator[Connect]:
    """Yields a function that opens connections; all are closed at the end."""
    opened: list[asyncpg.Connection] = []

    async def open_one() -> asyncpg.Connection:
        conn = await asyncpg.connect(dsn)
        opened.append(conn)
        await prepare(conn)
        return conn

    yield open_one
    for conn in opened:
        # Not close(): it would wait for a statement that a test left waiting for a lock.
        conn.terminate()
