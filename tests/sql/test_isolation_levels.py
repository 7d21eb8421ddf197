"""Callers' own transactions at other isolation levels are right or fail; they are never wrong."""

import asyncio
from typing import Any, Literal

import asyncpg
import pytest

from support import factory
from support.interleave import Step
from support.shapes import Connect

Call = tuple[Any, ...]
Level = Literal["repeatable_read", "serializable"]

LEVELS: tuple[Level, ...] = ("repeatable_read", "serializable")
SUBMITS = {
    "plain": "select penstock.submit_job('q', '{}')",
    "account": "select penstock.submit_job('q', '{}', account => 'a')",
    "key": "select penstock.submit_job('q', '{}', dedupe_key => 'k')",
    "again": "select penstock.submit_job('q', '{}', idempotency_key => 'k')",
    "priced": "select penstock.submit_job('q', '{}', account => 'a', price => 3)",
    "many": 'select count(*) from penstock.submit_jobs(\'[{"kind": "q", "payload": {}}]\')',
    "together": "select count(*) from penstock.accept_jobs('q', '{q}', '{\"{}\"}')",
}
CHANGES = {
    "order": "select penstock.declare_queue('q', '{\"order\": \"fair\"}')",
    "limit": "select penstock.edit_queue('q', '{\"concurrency\": 1}')",
}


async def ground(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=2, per_hour=3)


async def with_old_snapshot(app: asyncpg.Connection) -> None:
    await app.fetchval("select count(*) from penstock.job")


async def call_after(
    conn: asyncpg.Connection, change: Call, app: asyncpg.Connection, level: Level, call: Call
) -> None:
    """Run `call` in a transaction of the app that began before `change`."""
    async with app.transaction(isolation=level):
        await with_old_snapshot(app)
        await conn.execute(*change)
        await app.execute(*call)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("call", SUBMITS)
async def test_a_submit_in_a_transaction_of_any_level_is_accepted(
    conn: asyncpg.Connection, connect: Connect, call: str, level: Level
) -> None:
    """D3"""
    await ground(conn)
    await conn.execute("select penstock.submit_job('q', '{}', account => 'a')")
    await conn.execute("select penstock.grant_credits('a', 10)")
    app = await connect()
    async with app.transaction(isolation=level):
        assert await app.fetchval(SUBMITS[call])
    assert await conn.fetchval("select count(*) from penstock.job") == 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("call", [call for call in SUBMITS if call not in ("key", "again")])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_submit_does_not_use_an_old_version_of_a_queue(
    conn: asyncpg.Connection, connect: Connect, call: str, change: str, level: Level
) -> None:
    """D3: a job with a rank by the old order would stay at the wrong position for ever."""
    await ground(conn)
    await conn.execute("select penstock.create_account('a')")
    await conn.execute("select penstock.grant_credits('a', 10)")
    app = await connect()
    with pytest.raises(asyncpg.SerializationError):
        await call_after(conn, (CHANGES[change],), app, level, (SUBMITS[call],))
    assert await conn.fetchval("select count(*) from penstock.job") == 0


async def test_an_open_transaction_of_another_level_does_not_block_operators(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await ground(conn)
    app = await connect()
    async with app.transaction(isolation="repeatable_read"):
        await app.fetchval(SUBMITS["plain"])
        async with asyncio.timeout(1.5):
            await conn.execute("select penstock.pause_queue('q')")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("call", ["account", "key", "again", "priced"])
async def test_the_second_of_two_concurrent_submits_fails_or_returns_the_same_job(
    conn: asyncpg.Connection, connect: Connect, call: str, level: Level
) -> None:
    """D3: a duplicate, a new account, or the last credits were committed while we waited."""
    await ground(conn)
    if call == "priced":
        await conn.execute("select penstock.create_account('a')")
        await conn.execute("select penstock.grant_credits('a', 4)")
    first, second = await connect(), await connect()
    async with first.transaction():
        await first.fetchval(SUBMITS[call])
        transaction = second.transaction(isolation=level)
        await transaction.start()
        await with_old_snapshot(second)
        step = Step(second, second.fetchval(SUBMITS[call]))
        assert await step.waits(conn)
    with pytest.raises(asyncpg.SerializationError):
        await step
    await transaction.rollback()
    assert await conn.fetchval("select count(*) from penstock.job") == 1


@pytest.mark.parametrize("level", LEVELS)
async def test_an_old_snapshot_does_not_exceed_a_plan(
    conn: asyncpg.Connection, connect: Connect, level: Level
) -> None:
    """D3: three an hour; the fourth submit is in a transaction that has seen only two."""
    await ground(conn)
    for _ in range(2):
        await conn.execute(SUBMITS["account"])
    app = await connect()
    submit = (SUBMITS["account"],)
    with pytest.raises(asyncpg.SerializationError):
        await call_after(conn, submit, app, level, submit)
    assert await conn.fetchval("select sum(n) from penstock.recent_submit") == 3


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("meanwhile", ["it starts", "it ends"])
async def test_a_cancel_does_not_use_an_old_state_of_a_job(
    conn: asyncpg.Connection, connect: Connect, meanwhile: str, level: Level
) -> None:
    """D3: the job has started, or finished, since the transaction began."""
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    app = await connect()
    cancel: Call = ("select penstock.cancel_job($1)", job)
    start: Call = ("select id from penstock.claim_jobs($1, 'q', 1)", worker)
    with pytest.raises(asyncpg.SerializationError):
        await call_after(conn, start if meanwhile == "it starts" else cancel, app, level, cancel)


@pytest.mark.parametrize("level", LEVELS)
async def test_a_retry_makes_one_job(
    conn: asyncpg.Connection, connect: Connect, level: Level
) -> None:
    """D3: somebody else has retried it since the transaction began."""
    await factory.queue(conn)
    job = await factory.submit(conn)
    await conn.execute("select penstock.cancel_job($1)", job)
    app = await connect()
    retry: Call = ("select penstock.retry_job($1)", job)
    with pytest.raises(asyncpg.PostgresError) as refusal:
        await call_after(conn, retry, app, level, retry)
    assert refusal.value.sqlstate in ("40001", "PS409")
    assert await conn.fetchval("select count(*) from penstock.job") == 1
