"""Connections for one call each: used again if they are intact, dropped in case of doubt."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from penstock.db.connections.pool import Pool, open_pool
from support.waiting import eventually


@pytest.fixture
async def pool(blank: str) -> AsyncIterator[Pool]:
    pool = await open_pool(blank, name="penstock test", max_size=2)
    yield pool
    await pool.close()


async def pid(pool: Pool) -> int:
    [row] = await pool.fetch("select pg_backend_pid() as pid")
    number: int = row["pid"]
    return number


async def test_consecutive_calls_use_one_connection(pool: Pool) -> None:
    assert len({await pid(pool) for _ in range(5)}) == 1


async def test_calls_beyond_its_size_wait(pool: Pool) -> None:
    async with pool.acquire() as first, pool.acquire() as second:
        assert first is not second
        third = asyncio.create_task(pid(pool))
        await asyncio.sleep(0.05)
        assert not third.done()
        pids = {await conn.fetchval("select pg_backend_pid()") for conn in (first, second)}
    assert await third in pids


async def test_a_refused_statement_keeps_the_connection(pool: Pool) -> None:
    before = await pid(pool)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await pool.fetch("select 1 / 0")
    assert await pid(pool) == before


async def test_a_cancelled_call_leaves_no_connection(pool: Pool) -> None:
    """The server may still run the statement: the next call would wait for it or get its answer."""
    before = await pid(pool)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await pool.fetch("select pg_sleep(30)")
    assert await pid(pool) != before


async def test_a_connection_that_the_server_closed_is_replaced(pool: Pool, blank: str) -> None:
    before = await pid(pool)
    other = await asyncpg.connect(blank)
    await other.execute(f"select pg_terminate_backend({before})")
    await other.close()

    async def replaced() -> bool:
        try:
            return await pid(pool) != before
        # The driver has a special error for a session that ends between two messages.
        except (
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
            OSError,
        ):
            return False

    await eventually(replaced, "a new connection")


async def test_expired_connections_are_replaced(pool: Pool) -> None:
    """F7"""
    before = await pid(pool)
    async with pool.acquire() as lent:
        pool.expire()
        assert await lent.fetchval("select pg_backend_pid()") == before
    assert await pid(pool) != before


async def test_closing_waits_for_connections_in_use_and_opens_no_more(blank: str) -> None:
    pool = await open_pool(blank)
    at_work = asyncio.create_task(pool.fetch("select pg_sleep(0.1)"))
    await asyncio.sleep(0.01)
    await pool.close()
    assert at_work.done()
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await pool.fetch("select 1")
