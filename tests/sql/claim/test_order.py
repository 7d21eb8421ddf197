"""Which job is next: strict, aging and fair, and how long a job can be delayed by others."""

from collections import Counter

import asyncpg

from support import factory
from support.clock import Clock


async def submit_each(conn: asyncpg.Connection, priorities: list[int]) -> None:
    await factory.submit_rows(
        conn,
        [{"kind": "q", "priority": p, "payload": {"n": n}} for n, p in enumerate(priorities)],
    )


async def test_strict_orders_by_priority_then_arrival(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """G5"""
    await factory.queue(conn, order="strict")
    worker = await factory.worker(conn)
    await submit_each(conn, [0, 5, -5, 0, 1000, -1000])
    await clock.advance("7d", beats=True)  # however long they wait
    late = {"kind": "q", "priority": -6, "payload": {"n": "late"}}
    await factory.submit_rows(conn, [late])
    assert await factory.drain(conn, worker) == [5, "late", 2, 0, 3, 1, 4]


async def test_aging_lets_ten_seconds_of_waiting_outweigh_one_point(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """Many urgent jobs delay one of priority 50 for 500 seconds, and no longer."""
    await clock.freeze()
    await factory.queue(conn)  # the default order
    worker = await factory.worker(conn)
    await factory.submit(conn, priority=50, payload={"n": "patient"})
    await clock.advance(499)
    await factory.submit(conn, priority=0, payload={"n": "before"})
    await clock.advance(2)
    await factory.submit(conn, priority=0, payload={"n": "after"})
    assert await factory.drain(conn, worker) == ["before", "patient", "after"]


async def test_the_aging_step_is_an_option(conn: asyncpg.Connection, clock: Clock) -> None:
    await clock.freeze()
    await factory.queue(conn, order="aging", aging_step_seconds=0)
    worker = await factory.worker(conn)
    await submit_each(conn, [1000, 0, -1000])  # at 0 only arrival counts
    assert await factory.drain(conn, worker) == [0, 1, 2]


async def test_a_delayed_job_has_its_rank_from_when_it_is_due(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn, delay_seconds=60, payload={"n": "delayed"})
    await clock.advance(30)
    await factory.submit(conn, payload={"n": "came first"})
    await clock.advance(60)
    await factory.submit(conn, payload={"n": "came after"})
    assert await factory.drain(conn, worker) == ["came first", "delayed", "came after"]


async def test_a_retry_keeps_its_rank(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn, delay_seconds=60)
    worker = await factory.worker(conn)
    await submit_each(conn, [0, 0])
    await factory.finish(conn, worker, await factory.claim(conn, worker), "retry")
    await clock.advance(61)
    assert await factory.drain(conn, worker) == [0, 1]


async def test_jobs_of_limited_and_unlimited_accounts_share_one_order(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    for n, account in enumerate(["a", None, "b", None, "a", "b"]):
        await factory.submit(conn, account=account, payload={"n": n})
        await clock.advance(1)
    assert await factory.drain(conn, worker) == list(range(6))


async def flood(conn: asyncpg.Connection, account: str | None, many: int) -> None:
    await factory.submit_rows(
        conn, [{"kind": "q", "account": account, "payload": {"n": account or "-"}}] * many
    )


async def test_fair_alternates_between_accounts_whatever_the_order_of_submits(
    conn: asyncpg.Connection,
) -> None:
    """A tenant that submits many jobs delays nobody else."""
    await factory.queue(conn, order="fair")
    worker = await factory.worker(conn)
    await flood(conn, "big", 200)
    await flood(conn, "small", 3)
    await flood(conn, None, 3)
    order = await factory.drain(conn, worker, most=9)
    assert Counter(order) == {"big": 3, "small": 3, "-": 3}
    assert {*order[:3]} == {*order[3:6]} == {*order[6:]} == {"big", "small", "-"}


async def test_fair_shares_by_weight(conn: asyncpg.Connection) -> None:
    await factory.queue(conn, order="fair")
    worker = await factory.worker(conn)
    for plan, weight in {"free": 1, "pro": 8}.items():
        await factory.plan(conn, plan, weight=weight)
        await conn.execute("select penstock.create_account($1, $1)", plan)
        await flood(conn, plan, 100)
    order = await factory.drain(conn, worker, most=90)
    assert Counter(order) == {"pro": 80, "free": 10}
    for window in range(0, 90, 9):
        assert Counter(order[window : window + 9])["free"] == 1


async def test_fair_claims_many_at_once_in_the_same_shares(conn: asyncpg.Connection) -> None:
    await factory.queue(conn, order="fair")
    worker = await factory.worker(conn)
    for account in "abc":
        await flood(conn, account, 50)
    started = await factory.claim(conn, worker, limit=60)
    assert Counter(row["payload"]["n"] for row in started) == {"a": 20, "b": 20, "c": 20}


async def test_fair_orders_by_priority_only_within_an_account(conn: asyncpg.Connection) -> None:
    await factory.queue(conn, order="fair")
    worker = await factory.worker(conn)
    for account, n, priority in [("a", 1, 0), ("a", 2, -9), ("b", 3, 1000), ("b", 4, 999)]:
        await factory.submit(conn, account=account, priority=priority, payload={"n": n})
    order = await factory.drain(conn, worker)
    assert [n for n in order if n < 3] == [2, 1]
    assert [n for n in order if n > 2] == [4, 3]
    assert set(order[:2]) == {2, 4}


async def test_fair_gives_no_advantage_for_idle_time(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    await factory.queue(conn, order="fair")
    worker = await factory.worker(conn)
    await flood(conn, "idle", 1)
    assert await factory.drain(conn, worker) == ["idle"]
    await clock.advance("1h", beats=True)
    await flood(conn, "busy", 100)
    assert await factory.drain(conn, worker, most=50) == ["busy"] * 50
    await flood(conn, "idle", 20)
    assert Counter(await factory.drain(conn, worker, most=20)) == {"idle": 10, "busy": 10}


async def test_fair_gives_no_advantage_for_having_been_full(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """A lane that was closed by its account's limit must not open again with its old head."""
    await clock.freeze()
    await factory.queue(conn, order="fair", concurrency=1)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    await flood(conn, "big", 50)
    running = await factory.claim(conn, worker)  # the only slot of the only account: closed
    await clock.advance("1m", beats=True)
    await flood(conn, "small", 2)
    await factory.finish(conn, worker, running)
    assert Counter(await factory.drain(conn, worker, most=4)) == {"big": 2, "small": 2}
