"""Recovery of attempts that no worker settles, and its budget."""

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock.engine.workers import LEASE
from penstock.worker.worker import Options
from support import factory
from support.clock import Clock
from support.factory import Row
from support.shapes import Connect


async def lose(conn: asyncpg.Connection, clock: Clock, many: int = 1) -> list[Row]:
    """Start jobs on a worker that then never sends a heartbeat again."""
    worker = await factory.worker(conn, "doomed")
    started = await factory.claim(conn, worker, limit=many)
    assert len(started) == many
    await clock.advance("16s")
    return started


async def test_nothing_is_recovered_while_workers_are_alive(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    await factory.claim(conn, worker)
    for _ in range(7):
        await clock.advance("15s")  # the whole lease
        assert await factory.recover(conn) == []
        assert await conn.fetchval("select penstock.beat_worker($1)", worker) is True
    assert await factory.status(conn, job) == "running"


async def test_a_worker_silent_for_15_seconds_is_lost_unless_it_has_another_lease(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """F4: the default lease, in SQL and in Python."""
    await clock.freeze()
    await factory.queue(conn)
    worker = await conn.fetchval("select penstock.register_worker('w')")
    assert await conn.fetchval("select lease from penstock.worker") == timedelta(seconds=15)
    assert LEASE == Options(name="w").lease == timedelta(seconds=15)
    job = await factory.submit(conn)
    await factory.claim(conn, worker)
    await clock.advance("15s")
    assert await factory.recover(conn) == []
    await clock.advance("0.1s")
    assert [row["outcome"] for row in await factory.recover(conn)] == ["lost"]
    assert await factory.status(conn, job) == "queued"


async def test_an_attempt_without_progress_for_five_minutes_is_recovered(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """F4: by default; its worker sends heartbeats, and only the attempt is silent."""
    await clock.freeze()
    await factory.queue(conn)
    job = await factory.submit(conn, timeout_seconds=600)  # otherwise it would time out before
    await factory.claim(conn, await factory.worker(conn))
    await clock.advance("299.9s", beats=True)
    assert await factory.recover(conn) == []
    await clock.advance("0.1s", beats=True)
    assert [row["outcome"] for row in await factory.recover(conn)] == ["stuck"]
    assert await factory.status(conn, job) == "queued"


async def test_the_job_of_a_dead_worker_is_due_again_at_once(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """E12, F6: a worker that dies in the middle of a job loses nothing."""
    await factory.queue(conn)
    job = await factory.submit(conn, payload={"essay": "…"})
    [lost] = await lose(conn, clock)
    [row] = await factory.recover(conn)
    assert dict(row) == {"job_id": job, "outcome": "lost", "verdict": "done", "status": "queued"}
    shown = await factory.read(conn, job)
    assert (shown["failures"], shown["recovery"]["count"]) == (0, 1)
    assert shown["error"]["class"] == "worker_lost"
    assert shown["attempts"][0]["worker"] == "doomed"
    assert shown["attempts"][0]["outcome"] == "lost"
    worker = await factory.worker(conn)
    [start] = await factory.claim(conn, worker)
    assert (start["id"], start["attempt"]) == (job, 2)
    assert start["payload"] == lost["payload"]
    await factory.finish(conn, worker, [start], result=7)
    assert (await factory.read(conn, job))["result"] == 7


async def test_a_lost_worker_stays_lost_and_is_listed(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await factory.submit(conn)
    worker = await factory.worker(conn, "host-1")
    await factory.claim(conn, worker)
    await clock.advance("16s")
    alive = "select alive from penstock.worker_health where worker_id = 'host-1'"
    assert await conn.fetchval(alive) is False
    await factory.recover(conn)
    assert await conn.fetchval("select penstock.beat_worker($1)", worker) is False
    assert await conn.fetchval(alive) is False


async def test_jobs_of_a_worker_that_dies_with_many_are_released_without_a_failure(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """E12: which of them killed it is not known."""
    await factory.queue(conn, recovery=0)
    await factory.plan(conn, concurrency=5)
    jobs = await factory.submit_rows(conn, [{"kind": "q"}, {"kind": "q", "account": "u1"}])
    await lose(conn, clock, many=2)
    rows = await factory.recover(conn)
    assert {(row["outcome"], row["status"]) for row in rows} == {("lost_with_others", "queued")}
    for job in jobs:
        shown = await factory.read(conn, job)
        assert (shown["recovery"]["count"], shown["failures"]) == (0, 0)
        assert shown["attempts"][0]["outcome"] == "lost"


async def test_the_jobs_of_a_stopped_worker_are_released(
    conn: asyncpg.Connection,
) -> None:
    """F6"""
    await factory.queue(conn, recovery=0)
    job = await factory.submit(conn)
    worker = await factory.worker(conn)
    await factory.claim(conn, worker)
    await conn.execute("select penstock.stop_worker($1)", worker)
    [row] = await factory.recover(conn)
    assert (row["outcome"], row["status"]) == ("released", "queued")
    shown = await factory.read(conn, job)
    assert (shown["recovery"]["count"], shown["failures"]) == (0, 0)


async def make_stuck(conn: asyncpg.Connection, clock: Clock) -> None:
    worker = await factory.worker(conn)
    assert len(await factory.claim(conn, worker)) == 1
    await clock.advance("60s", beats=True)


async def make_lost(conn: asyncpg.Connection, clock: Clock) -> None:
    await lose(conn, clock)


@pytest.mark.parametrize(
    ("mishap", "outcome", "cls"),
    [(make_lost, "lost", "worker_lost"), (make_stuck, "stuck", "stalled")],
)
async def test_exactly_3_recoveries_then_the_fourth_loss_fails_the_job(
    conn: asyncpg.Connection, clock: Clock, mishap: Any, outcome: str, cls: str
) -> None:
    """S2, S3: delays of 0, 10 and 60 s are shown and kept; exactly 3 recoveries, never 4."""
    await clock.freeze()
    await factory.queue(conn, timeout_seconds=600, stuck_after_seconds=60)
    job = await factory.submit(conn)
    for count, wait in enumerate([0, 10, 60], start=1):
        await mishap(conn, clock)
        [row] = await factory.recover(conn)
        assert (row["outcome"], row["verdict"]) == (outcome, "done")
        now = await clock.now()
        assert (await factory.read(conn, job))["recovery"] == {
            "count": count,
            "max": 3,
            "last_at": _shown(now),
            "next_at": _shown(now + timedelta(seconds=wait)) if wait else None,
        }
        if wait:
            await clock.advance(wait - 0.1)
            assert await factory.claim(conn, await factory.worker(conn)) == []
            await clock.advance(0.1)
    await mishap(conn, clock)
    [row] = await factory.recover(conn)
    assert (row["outcome"], row["status"]) == (outcome, "failed")
    shown = await factory.read(conn, job)
    assert (shown["error"]["class"], shown["error"]["reason"]) == (cls, "stuck_exhausted")
    assert (shown["recovery"]["count"], shown["attempt"], shown["failures"]) == (3, 4, 0)


async def test_a_recovered_job_that_waits_for_another_reason_is_not_shown_as_recovering(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    job = await factory.submit(conn)
    await lose(conn, clock)
    await factory.recover(conn)
    worker = await factory.worker(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker), "deferred", delay="60s")
    shown = await factory.read(conn, job)
    assert (shown["status"], shown["recovery"]["count"]) == ("scheduled", 1)
    assert shown["recovery"]["last_at"] is not None
    assert shown["recovery"]["next_at"] is None


def _shown(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"


async def test_a_timeout_is_a_failed_attempt(conn: asyncpg.Connection, clock: Clock) -> None:
    """M11, E12: after more than 10 minutes of processing, 3 times, it fails with a reason."""
    await clock.freeze()
    await factory.queue(conn, timeout_seconds=600, stuck_after_seconds=3600, delay_seconds=0)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    for status in ("queued", "queued", "failed"):
        await factory.claim(conn, worker)
        # The worker itself stops it at its timeout; recovery follows five seconds later.
        await clock.advance("604.9s", beats=True)
        assert await factory.recover(conn) == []
        await clock.advance("0.1s", beats=True)
        [row] = await factory.recover(conn)
        assert (row["outcome"], row["status"]) == ("timed_out", status)
    shown = await factory.read(conn, job)
    assert (shown["error"]["class"], shown["error"]["reason"]) == ("timeout", "attempts_exhausted")
    assert (shown["failures"], shown["recovery"]["count"]) == (3, 0)
    assert [a["outcome"] for a in shown["attempts"]] == ["timed_out", "timed_out", "failed"]


async def test_a_timed_out_job_backs_off_as_after_any_failure(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn)
    await factory.claim(conn, worker)
    await clock.advance("125s", beats=True)
    [row] = await factory.recover(conn)
    assert row["status"] == "scheduled"
    wait = await conn.fetchval("select run_at - penstock.clock() from penstock.job")
    assert wait.total_seconds() == 300


async def test_two_recoveries_at_once_count_once(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    """S13: the budget is not spent twice."""
    await factory.queue(conn)
    job = await factory.submit(conn)
    await lose(conn, clock)
    other, watcher = await connect(), await connect()
    async with conn.transaction():
        [mine] = await factory.recover(conn)
        theirs = asyncio.create_task(factory.recover(other))
        await factory.until_blocked_or_done(watcher, other, theirs)
    assert mine["verdict"] == "done"
    assert {row["verdict"] for row in await theirs} <= {"stale", "locked"}
    assert await factory.recover(other) == []
    shown = await factory.read(conn, job)
    assert (shown["recovery"]["count"], len(shown["attempts"])) == (1, 1)


async def test_two_recoveries_that_have_both_read_the_attempt_count_once(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    """S13: also if both have read the attempt as lost before either settles it."""
    await factory.queue(conn)
    job = await factory.submit(conn)
    await lose(conn, clock)
    await factory.recover(conn)  # marks the worker as lost and releases its job
    worker = await factory.worker(conn)
    await factory.claim(conn, worker)
    await clock.advance("125s", beats=True)
    other, watcher = await connect(), await connect()
    async with conn.transaction():
        [mine] = await factory.recover(conn)
        theirs = asyncio.create_task(factory.recover(other))
        await factory.until_blocked_or_done(watcher, other, theirs)
    assert (mine["outcome"], mine["verdict"]) == ("timed_out", "done")
    assert [row["verdict"] for row in await theirs] in (["stale"], ["locked"])
    assert await factory.recover(other) == []
    assert (await factory.read(conn, job))["failures"] == 1


@pytest.mark.parametrize("commits", [True, False])
async def test_a_live_worker_that_finishes_its_job_first_wins(
    conn: asyncpg.Connection, connect: Connect, clock: Clock, commits: bool
) -> None:
    """S12: recovery takes the job only if the finish was rolled back."""
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job: UUID = await factory.submit(conn)
    start = await factory.claim(conn, worker)
    await clock.advance("125s", beats=True)
    upkeep, watcher = await connect(), await connect()
    finishing = conn.transaction()
    await finishing.start()
    await factory.finish(conn, worker, start, result="mine")
    recovering = asyncio.create_task(factory.recover(upkeep))
    await factory.until_blocked_or_done(watcher, upkeep, recovering)
    await (finishing.commit() if commits else finishing.rollback())
    await recovering
    await factory.recover(upkeep)  # in case the first pass found the job locked
    assert await factory.status(conn, job) == ("succeeded" if commits else "scheduled")
    assert await conn.fetchval("select count(*) from penstock.attempts") == 1


async def test_a_worker_that_finishes_while_it_is_recovered_loses(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    """S12: never two owners whose results both count."""
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    start = await factory.claim(conn, worker)
    await clock.advance("16s")
    alive, watcher = await connect(), await connect()
    async with conn.transaction():
        await factory.recover(conn)
        finishing = asyncio.create_task(factory.finish(alive, worker, start, result="late"))
        await factory.until_blocked_or_done(watcher, alive, finishing)
    [verdict] = await finishing
    if verdict["verdict"] == "locked":
        [verdict] = await factory.finish(alive, worker, start, result="late")
    assert verdict["verdict"] == "stale"
    assert await factory.status(conn, job) == "queued"
    assert await conn.fetchval("select result from penstock.late_result") == "late"


async def test_jobs_of_a_locked_account_are_left_for_the_next_pass(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    job = await factory.submit(conn, account="u1")
    await lose(conn, clock)
    app = await connect()
    async with app.transaction():
        await factory.submit(app, account="u1")
        assert await factory.recover(conn) == []
    [row] = await factory.recover(conn)
    assert (row["job_id"], row["verdict"], row["status"]) == (job, "done", "queued")
