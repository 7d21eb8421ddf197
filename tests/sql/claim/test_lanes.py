"""Limits per account: counted over all queues, applied by claims, without delays for others."""

import asyncio

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import Row
from support.shapes import Connect


async def submit_for(conn: asyncpg.Connection, account: str, many: int, kind: str = "q") -> None:
    await factory.submit_rows(
        conn,
        [
            {"kind": kind, "account": account, "payload": {"n": f"{account}{n}"}}
            for n in range(many)
        ],
    )


def names(started: list[Row]) -> list[str]:
    return sorted(row["payload"]["n"] for row in started)


@pytest.mark.parametrize(
    ("plan", "limit"), [("pro", 4), ("growth", 3), ("starter", 2), ("free", 1)]
)
async def test_an_account_runs_at_most_what_its_plan_allows(
    conn: asyncpg.Connection, plan: str, limit: int
) -> None:
    """G6: 4/3/2/1 by plan, enforced when jobs start."""
    await factory.queue(conn)
    await factory.plan(conn, plan, concurrency=limit)
    worker = await factory.worker(conn)
    await submit_for(conn, "u", 10)
    started = await factory.claim(conn, worker, limit=100)
    assert len(started) == limit
    assert await factory.claim(conn, worker, limit=100) == []
    await factory.finish(conn, worker, started[:1])
    assert len(await factory.claim(conn, worker, limit=100)) == 1


async def test_a_full_account_delays_no_other(conn: asyncpg.Connection) -> None:
    """G6"""
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    await submit_for(conn, "big", 100)
    await submit_for(conn, "small", 1)
    assert names(await factory.claim(conn, worker, limit=10)) == ["big0", "small0"]


async def test_the_limit_counts_over_all_queues(conn: asyncpg.Connection) -> None:
    """G6: and a queue whose claim finds the account full goes on to the next one."""
    await factory.queue(conn, "q")
    await factory.queue(conn, "r")
    await factory.plan(conn, concurrency=2)
    worker = await factory.worker(conn)
    await submit_for(conn, "a", 3, "q")
    await submit_for(conn, "a", 3, "r")
    await submit_for(conn, "b", 1, "r")
    running = await factory.claim(conn, worker, "q", limit=10)
    assert names(running) == ["a0", "a1"]
    # r's lane of a is still open, and in front.
    assert names(await factory.claim(conn, worker, "r", limit=1)) == ["b0"]
    assert await factory.claim(conn, worker, "r", limit=1) == []
    await factory.finish(conn, worker, running[:1])
    assert names(await factory.claim(conn, worker, "r", limit=10)) == ["a0"]
    assert await factory.claim(conn, worker, "q", limit=10) == []


async def test_one_claim_skips_many_full_accounts_in_front(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn, "q")
    await factory.queue(conn, "r")
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    for n in range(20):
        await submit_for(conn, f"full{n}-", 1, "q")
        await submit_for(conn, f"full{n}-", 1, "r")
    await submit_for(conn, "free", 1, "r")
    assert len(await factory.claim(conn, worker, "q", limit=20)) == 20
    assert names(await factory.claim(conn, worker, "r", limit=1)) == ["free0"]


async def test_jobs_of_an_account_start_in_their_own_order(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """When a lane's first job leaves it for any reason, the next one becomes its head."""
    await clock.freeze()
    await factory.queue(conn, delay_seconds=60)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    jobs = {}
    for n in ["cancelled", "expired", "retried", "snoozed", "released", "plain", "delayed"]:
        jobs[n] = await factory.submit(
            conn,
            account="a",
            payload={"n": n},
            expires_seconds=5 if n == "expired" else None,
            delay_seconds=30 if n == "delayed" else None,
        )
        await clock.advance(0.1)

    async def start() -> list[Row]:
        return await factory.claim(conn, worker)

    await conn.execute("select penstock.cancel_job($1)", jobs["cancelled"])
    await clock.advance(10, beats=True)
    retried = await start()
    assert names(retried) == ["retried"]
    await factory.finish(conn, worker, retried, "retry")
    snoozed = await start()
    assert names(snoozed) == ["snoozed"]
    await factory.finish(conn, worker, snoozed, "snoozed", delay="3600s")
    released = await start()
    assert names(released) == ["released"]
    await factory.finish(conn, worker, released, "released")
    await clock.advance(61, beats=True)
    assert await factory.drain(conn, worker) == ["retried", "released", "plain", "delayed"]
    assert await factory.status(conn, jobs["snoozed"]) == "scheduled"


async def test_a_new_urgent_job_becomes_its_lanes_head(conn: asyncpg.Connection) -> None:
    await factory.queue(conn, order="strict")
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    await factory.submit(conn, account="a", payload={"n": "calm"}, priority=10)
    await factory.submit(conn, account="b", payload={"n": "other"}, priority=5)
    await factory.submit(conn, account="a", payload={"n": "urgent"}, priority=0)
    assert await factory.drain(conn, worker) == ["urgent", "other", "calm"]


async def test_an_apps_open_transaction_delays_only_its_own_account(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=2)
    worker = await factory.worker(conn)
    await submit_for(conn, "a", 3)
    await submit_for(conn, "b", 1)
    running = await factory.claim(conn, worker)
    app = await connect()
    async with app.transaction():
        await submit_for(app, "a", 1)  # its account's row stays locked until the app commits
        assert names(await factory.claim(conn, worker, limit=10)) == ["b0"]
        [verdict] = await factory.finish(conn, worker, running)
        assert (verdict["verdict"], verdict["status"]) == ("locked", "running")
    [verdict] = await factory.finish(conn, worker, running)
    assert (verdict["verdict"], verdict["status"]) == ("done", "succeeded")
    assert names(await factory.claim(conn, worker, limit=10)) == ["a1", "a2"]


async def test_a_claim_can_wait_for_a_locked_account(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    await submit_for(conn, "a", 1)
    app, watcher = await connect(), await connect()
    waiting = "select id from penstock.claim_jobs($1, 'q', 1, true)"

    transaction = app.transaction()
    await transaction.start()
    await submit_for(app, "a", 1)
    assert await conn.fetch(waiting, worker) == []  # 100 ms, then it gives up
    claim = asyncio.create_task(conn.fetch(waiting, worker))
    await factory.until_blocked(watcher, conn)
    await transaction.commit()
    assert len(await claim) == 1


async def test_a_claim_waits_for_accounts_of_open_lanes_only(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """An empty queue, or one whose accounts are all full, is not waited for."""
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    await submit_for(conn, "a", 2)
    assert len(await factory.claim(conn, worker)) == 1
    app = await connect()
    async with app.transaction():
        await app.execute("select from penstock.account where name = 'a' for no key update")
        async with conn.transaction():
            await conn.execute("set local lock_timeout = '1ms'")
            claim = "select id from penstock.claim_jobs($1, 'q', 1, true)"
            assert await conn.fetch(claim, worker) == []


async def test_accounts_of_a_fair_queue_do_not_wait_for_one_another(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """An app's long transaction after a submit locks its own account, and no other."""
    await factory.queue(conn, order="fair")
    worker = await factory.worker(conn)
    await submit_for(conn, "b", 1)
    app = await connect()
    await conn.execute("set lock_timeout = '1s'")
    async with app.transaction():
        await submit_for(app, "a", 1)
        await submit_for(conn, "b", 1)
        await factory.submit(conn, payload={"n": "nobody"})
        started = await factory.claim(conn, worker, limit=5)
        assert names(started) == ["b0", "b0", "nobody"]
        settled = await factory.finish(conn, worker, started)
        assert {row["verdict"] for row in settled} == {"done"}
