"""Claims start each job once, within every limit, when it is due and before it expires."""

import asyncio
import itertools
import time
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import refused
from support.shapes import Connect

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


async def test_a_claim_starts_the_job_counts_the_attempt_and_sets_the_deadline(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """E6, E13, F4, F9: the times of an attempt come from the database's clock."""
    await clock.freeze(NOON)
    await factory.queue(conn, timeout_seconds=120)
    worker = await factory.worker(conn, "host-1")
    job = await factory.submit(
        conn, payload={"n": 1}, account="u1", topic="t", metadata={"m": 1}, priority=3
    )
    [start] = await factory.claim(conn, worker)
    expected = {
        "id": job,
        "attempt": 1,
        "kind": "q",
        "account": "u1",
        "topic": "t",
        "payload": {"n": 1},
        "metadata": {"m": 1},
        "priority": 3,
        "failures": 0,
        "max_attempts": 3,
        "started_at": NOON,
        "timeout_at": NOON + timedelta(minutes=2),
    }
    assert {name: start[name] for name in expected} == expected
    shown = await factory.read(conn, job)
    assert (shown["status"], shown["attempt"]) == ("running", 1)
    assert shown["timeout_at"] == "2030-01-01T12:02:00.000000Z"
    health = await conn.fetchrow("select * from penstock.worker_health")
    assert health
    assert dict(health) == {
        "worker_id": "host-1",
        "last_heartbeat": NOON,
        "running": 1,
        "alive": True,
    }


@pytest.mark.parametrize(
    ("of_queue", "of_kind", "of_job", "seconds"),
    [(None, None, None, 120), (60, None, None, 60), (60, 30, None, 30), (60, 30, 10, 10)],
)
async def test_the_most_specific_timeout_counts(
    conn: asyncpg.Connection,
    of_queue: int | None,
    of_kind: int | None,
    of_job: int | None,
    seconds: int,
) -> None:
    """E13, F4: two minutes by default."""
    await factory.queue(conn, timeout_seconds=of_queue)
    await conn.execute("select penstock.declare_kind('k', 'q', $1)", {"timeout_seconds": of_kind})
    await factory.submit(conn, "k", timeout_seconds=of_job)
    [start] = await factory.claim(conn, await factory.worker(conn))
    assert start["timeout_at"] - start["started_at"] == timedelta(seconds=seconds)


async def test_a_job_is_started_once_by_concurrent_claims(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """M4: other claims skip the jobs of an open claim and do not wait."""
    await factory.queue(conn)
    first = await factory.worker(conn)
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 3)
    other_conn = await connect()
    other = await factory.worker(other_conn)
    async with conn.transaction():
        mine = await factory.claim(conn, first, limit=2)
        theirs = await factory.claim(other_conn, other, limit=3)
    assert {row["id"] for row in mine} == set(jobs[:2])
    assert {row["id"] for row in theirs} == {jobs[2]}
    assert await factory.claim(conn, first, limit=3) == []


async def test_fifty_concurrent_submits_are_served_in_order_and_none_is_lost(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """F1: one generation at a time, 50 people submit at once.

    Of two concurrent submits either may be first. A submit that began after another one returned is
    served after it.
    """
    await factory.queue(conn, concurrency=1)
    crowd = [await connect() for _ in range(10)]
    begun: dict[int, float] = {}
    answered: dict[int, float] = {}

    async def submit_five(conn: asyncpg.Connection, first: int) -> None:
        for n in range(first, 50, 10):
            begun[n] = time.perf_counter()
            await factory.submit(conn, payload={"n": n}, account=f"u{n}")
            answered[n] = time.perf_counter()

    await asyncio.gather(*(submit_five(conn, first) for first, conn in enumerate(crowd)))
    served = await factory.drain(conn, await factory.worker(conn))
    assert sorted(served) == list(range(50))
    pairs = list(itertools.combinations(served, 2))
    assert [(one, other) for one, other in pairs if answered[other] < begun[one]] == []
    in_turn = [(one, other) for one, other in pairs if answered[one] < begun[other]]
    assert len(in_turn) >= 10 * (4 + 3 + 2 + 1), "at least the pairs of each connection"


async def test_one_at_a_time_holds_across_workers_until_the_job_is_finished(
    conn: asyncpg.Connection,
) -> None:
    """M3: whatever the number of workers."""
    await factory.queue(conn, concurrency=1)
    one, other = await factory.worker(conn), await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    started = await factory.claim(conn, one, limit=5)
    assert len(started) == 1
    assert await factory.claim(conn, other, limit=5) == []
    await factory.finish(conn, one, started)
    assert len(await factory.claim(conn, other, limit=5)) == 1


async def test_claims_of_a_queue_with_a_limit_run_one_after_the_other(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """M3: a claim that has not committed yet holds its slots."""
    await factory.queue(conn, concurrency=3)
    one, other = await factory.worker(conn), await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 5)
    other_conn, watcher = await connect(), await connect()
    async with conn.transaction():
        mine = await factory.claim(conn, one, limit=2)
        second = asyncio.create_task(factory.claim(other_conn, other, limit=5))
        await factory.until_blocked(watcher, other_conn)
    assert (len(mine), len(await second)) == (2, 1)


async def test_a_queue_without_a_limit_starts_as_many_jobs_as_requested(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 30)
    assert len(await factory.claim(conn, worker, limit=20)) == 20
    assert len(await factory.claim(conn, worker, limit=20)) == 10


async def test_no_job_starts_for_a_worker_without_free_slots(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn)
    assert await factory.claim(conn, worker, limit=0) == []


async def test_a_claim_of_a_lost_worker_is_refused(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    worker, stopped = await factory.worker(conn), await factory.worker(conn)
    await factory.submit(conn)
    await conn.execute("select penstock.stop_worker($1)", stopped)
    await clock.advance("16s")
    await factory.recover(conn)
    for who in (worker, stopped, 4711):
        with refused(409, "worker_lost", "worker") as refusal:
            await factory.claim(conn, who)
        assert refusal["hint"] == "Drop its attempts and register again."
        with refused(409, "worker_lost", "worker"):
            await conn.fetch("select * from penstock.claim_jobs($1, 'q', 1, true)", who)
    assert len(await factory.claim(conn, await factory.worker(conn))) == 1


async def test_a_paused_queue_starts_nothing_and_running_jobs_finish(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    running = await factory.claim(conn, worker)
    await conn.execute("select penstock.pause_queue('q', 'the bill')")
    stats = await conn.fetchrow("select * from penstock.queue_stats")
    assert stats
    assert (stats["paused"], stats["queued"], stats["running"]) == (True, 1, 1)
    assert await factory.claim(conn, worker) == []
    [settled] = await factory.finish(conn, worker, running)
    assert settled["status"] == "succeeded"
    await factory.submit(conn)  # jobs submitted meanwhile wait
    await conn.execute("select penstock.resume_queue('q')")
    assert len(await factory.claim(conn, worker, limit=5)) == 2


async def test_a_delayed_job_starts_when_it_is_due(conn: asyncpg.Connection, clock: Clock) -> None:
    await clock.freeze()
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    for account in (None, "u1"):  # in no lane, and in one
        job = await factory.submit(conn, delay_seconds=60, account=account)
        assert await factory.claim(conn, worker) == []
        await clock.advance(59.9)
        assert await factory.claim(conn, worker) == []
        await clock.advance(0.1)
        [start] = await factory.claim(conn, worker)
        assert start["id"] == job
        await factory.finish(conn, worker, [start])


async def test_due_jobs_become_queued_without_being_claimed(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    due = await factory.submit(conn, delay_seconds=60)
    later = await factory.submit(conn, delay_seconds=3600)
    await clock.advance("61s")
    queue = await conn.fetchval("select id from penstock.queue")
    assert await conn.fetchval("select penstock.stage_due_jobs($1)", queue) == 1
    assert await conn.fetchval("select penstock.stage_due_jobs($1)", queue) == 0
    assert await factory.status(conn, due) == "queued"
    assert await factory.status(conn, later) == "scheduled"


async def test_an_expired_job_fails_and_never_starts(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=5)
    worker = await factory.worker(conn)
    queued = await factory.submit(conn, expires_seconds=60)
    laned = await factory.submit(conn, expires_seconds=60, account="u1")
    delayed = await factory.submit(conn, expires_seconds=60, delay_seconds=30)
    await clock.advance("61s")
    started = await factory.claim(conn, worker, limit=5)
    assert [row["id"] for row in started] == [delayed]  # its expiry counts from when it was due
    for job in (queued, laned):
        shown = await factory.read(conn, job)
        assert (shown["status"], shown["attempt"]) == ("failed", 0)
        assert shown["error"] == {
            "class": "expired",
            "reason": "expired",
            "message": "not started in time",
            "retryable": False,
        }


async def test_a_started_job_does_not_expire(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn, expires_seconds=60)
    await factory.finish(conn, worker, await factory.claim(conn, worker), "retry", delay="5m")
    await clock.advance("6m", beats=True)
    [start] = await factory.claim(conn, worker)
    assert (start["id"], start["attempt"]) == (job, 2)
