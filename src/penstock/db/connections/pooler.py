"""Detect a transaction pooler (PgBouncer and similar ones) in front of the server.

Behind a pooler a client has a session only from begin to commit. State that outlives a transaction
(LISTEN, session-level advisory locks, prepared statements) would pass to another client.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from penstock.db.connections.driver_errors import translated
from penstock.db.connections.pool import connect_plainly

# A busy pooler may by chance give both connections the same process as before; three times in a row
# is very unlikely.
ROUNDS = 3


@asynccontextmanager
async def open_frugal(dsn: str, *, name: str) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection that works behind any pooler, if each query is in a transaction.

    It keeps no prepared statements and has no codecs: setting them would run a query outside a
    transaction.
    """
    with translated():
        conn = await connect_plainly(dsn, name=name, frugal=True)
        try:
            yield conn
        finally:
            # Not close(): it waits for the server, which may be the reason for leaving.
            conn.terminate()


async def is_pooled(dsn: str) -> bool:
    """Return whether a connection changes its server process between two transactions.

    Without a pooler, two connections have different processes, and each keeps its own while the
    other has an open transaction. A pooler that gives each session its own server process does no
    harm, and is not detected.
    """
    name = "penstock pooler check"
    async with open_frugal(dsn, name=name) as first, open_frugal(dsn, name=name) as second:
        for _ in range(ROUNDS):
            before = await _process(first)
            async with second.transaction():
                held = await second.fetchval(_PROCESS)
                if held == before or await _process(first) != before:
                    return True
    return False


async def _process(conn: asyncpg.Connection) -> int:
    """Return the server process that serves one transaction."""
    async with conn.transaction():
        return int(await conn.fetchval(_PROCESS))


_PROCESS = "select pg_backend_pid()"
