"""See whether a transaction pooler (PgBouncer and its like) stands before the server.

Behind one, a session is only ours from begin to commit. What outlives a transaction (LISTEN,
advisory locks of a session, prepared statements) would be somebody else's a moment later.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from penstock.db.connections.driver_errors import translated
from penstock.db.connections.pool import connect_plainly

# A busy pooler may, by chance, give both connections what they had before; hardly three times.
ROUNDS = 3


@asynccontextmanager
async def open_frugal(dsn: str, *, name: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that works behind any pooler, as long as each query is in a transaction.

    It keeps no statement, and has no codecs: setting them would already ask outside of one.
    """
    with translated():
        conn = await connect_plainly(dsn, name=name, frugal=True)
        try:
            yield conn
        finally:
            # Not close(), which waits for a server that may be the reason why we leave.
            conn.terminate()


async def is_pooled(dsn: str) -> bool:
    """Whether a connection changes its server process between two transactions.

    While one connection holds a transaction, another's process must be another, and the same as
    before. A pooler that gives each session a server process for as long as it lasts is no
    trouble, and is not told from none.
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
    """Which process of the server answers, for the length of one transaction."""
    async with conn.transaction():
        return int(await conn.fetchval(_PROCESS))


_PROCESS = "select pg_backend_pid()"
