"""The server's clock was set back, or ahead: leases, deadlines and delays keep their lengths."""

import asyncio
from datetime import datetime, timedelta

import asyncpg

from mutation.stepping import BACK, STEP
from support import factory
from support.clock import Clock
from support.shapes import Connect

HOUR = 3_600
TOKEN = "a token of some length"  # noqa: S105  # of a job in a test


async def test_a_lease_expires_although_its_heartbeat_is_in_the_future(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """R-F10: a suspended worker is lost after its lease, and not an hour later."""
    await factory.queue(conn)
    job = await factory.submit(conn)
    await factory.claim(conn, await factory.worker(conn, lease="15 seconds"))
    await conn.execute(BACK)
    await conn.execute(STEP)
    assert await factory.recover(conn) == []
    await clock.advance("16s")
    assert [row["job_id"] for row in await factory.recover(conn)] == [job]


async def test_an_attempt_keeps_the_time_that_it_had_left(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn, timeout_seconds=60)
    await factory.submit(conn)
    await factory.claim(conn, await factory.worker(conn, lease="1 day"))
    await conn.execute(BACK)
    for _ in range(2):  # repeated calls change nothing
        await conn.execute(STEP)
    assert await factory.recover(conn) == []
    await clock.advance("66s")
    assert [row["outcome"] for row in await factory.recover(conn)] == ["timed_out"]


async def test_a_clock_step_cancels_no_job(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    job = await factory.submit(conn)
    await factory.claim(conn, await factory.worker(conn))
    await conn.execute(BACK)
    await conn.execute(STEP)
    assert await conn.fetchval("select cancel_requested_at from penstock.job") is None
    assert await factory.status(conn, job) == "running"


async def test_a_retry_starts_after_its_delay_although_the_clock_went_back(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await factory.submit(conn)
    worker = await factory.worker(conn, lease="1 day")
    started = await factory.claim(conn, worker)
    await factory.finish(conn, worker, started, "retry", error={"class": "bug"}, delay="30s")
    await conn.execute(BACK)
    await conn.execute(STEP)
    assert await factory.claim(conn, worker) == []
    await clock.advance("31s")
    [again] = await factory.claim(conn, worker)
    assert again["attempt"] == 2


async def test_a_rate_continues_after_the_clock_went_back(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn, rate="60/m")
    await factory.submit_rows(conn, [{"kind": "q"}] * 3)
    worker = await factory.worker(conn, lease="1 day")
    assert await factory.claim(conn, worker)
    await conn.execute(BACK)
    await conn.execute(STEP)
    await clock.advance("2s")
    assert await factory.claim(conn, worker)


async def test_a_worker_postpones_its_deadlines_by_a_clock_step(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """Forward: its attempts have not used the hour of the step."""
    await factory.queue(conn, timeout_seconds=60)
    await factory.submit(conn)
    worker = await factory.worker(conn, lease="1 day")
    await factory.claim(conn, worker)
    before = await clock.now()
    await clock.advance(HOUR)
    assert await postpone(conn, worker, before) == 1
    assert await factory.recover(conn) == []
    await clock.advance("66s")
    assert [row["outcome"] for row in await factory.recover(conn)] == ["timed_out"]


async def dispatched(conn: asyncpg.Connection, worker: int, n: int = 1) -> None:
    """Awaiting jobs, with a timeout of a minute and half of that without progress."""
    await factory.queue(conn, timeout_seconds=60, stuck_after_seconds=30)
    for _ in range(n):
        await factory.submit(conn)
    for start in await factory.claim(conn, worker, limit=n):
        assert await factory.hand_over(conn, worker, start, TOKEN) == "done"


async def postpone(conn: asyncpg.Connection, worker: int | None, before: datetime) -> int:
    postponed: int = await conn.fetchval(
        "select penstock.postpone_deadlines($1, $2, $3)", worker, timedelta(seconds=HOUR), before
    )
    return postponed


async def test_an_awaiting_job_keeps_the_time_that_it_had_left(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """R-F10: the first upkeep postpones it; for the others, it was updated after the step."""
    worker = await factory.worker(conn, lease="1 day")
    await dispatched(conn, worker)
    before = await clock.now()
    await clock.advance(HOUR)
    assert [await postpone(conn, one, before) for one in (None, worker, None)] == [1, 0, 0]
    await clock.advance("20s")
    assert await factory.recover(conn) == []
    await clock.advance("11s")
    assert [row["outcome"] for row in await factory.recover(conn)] == ["stuck"]


async def test_progress_just_after_the_step_does_not_cost_the_function_time(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """R-F10: its deadline was over when it reported, before any upkeep had postponed it."""
    worker = await factory.worker(conn, lease="1 day")
    await dispatched(conn, worker)
    before = await clock.now()
    await clock.advance(HOUR)
    [start] = await conn.fetch("select id, attempt from penstock.job")
    await factory.call_back(conn, start["id"], start["attempt"], TOKEN, "progress")
    assert [await postpone(conn, None, before) for _ in range(2)] == [1, 0]
    assert await factory.recover(conn) == []


async def test_two_concurrent_upkeeps_postpone_each_job_once(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    """R-F10: and an app's transaction that locks one of them delays neither."""
    worker = await factory.worker(conn, lease="1 day")
    await dispatched(conn, worker, 20)
    before = await clock.now()
    await clock.advance(HOUR)
    one, two, app = await connect(), await connect(), await connect()
    async with app.transaction():
        await app.execute("select from penstock.job order by id limit 1 for update")
        async with asyncio.timeout(5):
            found = await asyncio.gather(postpone(one, None, before), postpone(two, None, before))
    assert sum(found) == 19


async def test_a_step_ahead_and_back_adds_no_time(conn: asyncpg.Connection, clock: Clock) -> None:
    """R-F10"""
    await factory.queue(conn, timeout_seconds=60)
    await factory.submit(conn)
    worker = await factory.worker(conn, lease="1 day")
    await factory.claim(conn, worker)
    before = await clock.now()
    await clock.advance(HOUR)
    await postpone(conn, worker, before)
    await conn.execute(BACK)
    await conn.execute(STEP)
    await clock.advance("66s")
    assert [row["outcome"] for row in await factory.recover(conn)] == ["timed_out"]
