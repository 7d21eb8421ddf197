"""Time-outs, missing progress, and cancels: by the worker, and by upkeep if the worker hangs."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock import Cancel, Job, Penstock, Retries
from penstock.worker.attempts import open_attempts
from penstock.worker.attempts.attempt import Attempt
from support.clock import Clock
from support.factory import read, submit
from support.waiting import eventually
from support.worker.crew import Crew, outcomes, submit_many, until_finished, working

AT_ONCE = Retries(attempts=3, backoff="constant", delay="0s")


class Stage:
    """What handlers of these tests wait for, and what they have done."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.returned: list[str] = []
        self.release = threading.Event()
        self.app = app = Penstock(name="time")
        app.queue("q", retry=AT_ONCE, timeout=0.2, stuck_after="1h")
        app.queue("long", retry=AT_ONCE, timeout="10m", stuck_after="1h")
        app.queue("still", retry=AT_ONCE, timeout="10m", stuck_after=0.2, stale_after=0.1)
        self._declare_slow(app)
        self._declare_deaf(app)

    def _declare_slow(self, app: Penstock) -> None:
        @app.job(queue="q")
        async def slow(job: Job, times: int = 99) -> str:
            self.begun.append(("slow", job.attempt))
            if job.attempt <= times:
                await asyncio.Event().wait()
            return "in time"

        @app.job(queue="q")
        def slow_thread(job: Job) -> str:
            self.begun.append(("slow_thread", job.attempt))
            if job.attempt == 1:
                self.release.wait(20)
            self.returned.append("slow_thread")
            return "in time"

        @app.job(queue="still")
        async def still(job: Job) -> None:
            self.begun.append(("still", job.attempt))
            await asyncio.Event().wait()

        @app.job(queue="still")
        async def moving(job: Job, steps: int) -> int:
            for n in range(steps):
                await asyncio.sleep(0.05)
                await job.progress(n, steps)
            return job.attempt

    def _declare_deaf(self, app: Penstock) -> None:
        @app.job(queue="long")
        async def polite(job: Job, how: str) -> str:
            self.begun.append(("polite", job.attempt))
            while not job.cancelled:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            self.returned.append("polite")
            if how == "raise":
                raise Cancel("asked to")
            return "part of it"

        @app.job(queue="long")
        async def deaf(job: Job) -> None:
            self.begun.append(("deaf", job.attempt))
            try:
                await asyncio.Event().wait()
            finally:
                self.returned.append("deaf")

        @app.job(queue="long")
        def deaf_thread(job: Job) -> None:
            self.begun.append(("deaf_thread", job.attempt))
            self.release.wait(20)
            self.returned.append("deaf_thread")

    async def until_begun(self, n: int = 1) -> None:
        async def enough() -> bool:
            return len(self.begun) >= n

        await eventually(enough, f"{n} attempts")


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    stage.release.set()


async def test_a_handler_over_its_time_is_stopped_and_tried_again(
    database: str, conn: asyncpg.Connection, stage: Stage
) -> None:
    """E13, E15, F4, M10: a failure each time; after three the job has failed, its error kept."""
    async with working(database, stage.app):
        once = await submit(conn, "slow", payload={"times": 1})
        always = await submit(conn, "slow")
        returned = await until_finished(conn, [once, always])
    assert [row["status"] for row in returned] == ["succeeded", "failed"]
    assert [row["failures"] for row in returned] == [1, 3]
    assert await outcomes(conn, once) == ["timed_out", "succeeded"]
    assert await outcomes(conn, always) == ["timed_out", "timed_out", "failed"]
    error = returned[1]["error"]
    assert (error["class"], error["reason"]) == ("timeout", "attempts_exhausted")


async def test_the_timers_of_an_attempt_are_set_once(
    database: str, conn: asyncpg.Connection, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open attempts are scanned repeatedly; a timer that was set twice would be kept twice."""
    watched: list[UUID] = []
    set_clocks = Attempt.watch

    def watch(start: Attempt, begun: float) -> None:
        watched.append(start.claimed.id)
        set_clocks(start, begun)

    monkeypatch.setattr(Attempt, "watch", watch)
    monkeypatch.setattr(open_attempts, "WATCH_SECONDS", 0.01)
    async with working(database, stage.app):
        jobs: list[UUID] = []
        for _ in range(3):
            jobs.append(await submit(conn, "polite", payload={"how": "return"}))

            async def is_watched(job: UUID = jobs[-1]) -> bool:
                return job in watched

            await eventually(is_watched, "its timers are set")
        for job in jobs:
            await conn.execute("select penstock.cancel_job($1)", job)
        await until_finished(conn, jobs)
    assert watched == jobs


async def test_a_function_over_its_time_keeps_its_slot_until_it_returns(
    database: str, conn: asyncpg.Connection, stage: Stage
) -> None:
    """E13: a thread cannot be stopped; its job is timed out, its late result does not count."""
    async with working(database, stage.app, threads=1):
        job = await submit(conn, "slow_thread")
        await eventually(_has_outcome(conn, job, "timed_out"), "it is timed out")
        until = time.monotonic() + 0.6

        async def long_enough() -> bool:
            return time.monotonic() > until

        # An attempt that had to wait for the only thread would be over its time by now.
        await eventually(long_enough, "three times its time")
        assert stage.begun == [("slow_thread", 1)]
        stage.release.set()
        [row] = await until_finished(conn, [job])
    assert (row["status"], row["attempt"], row["failures"]) == ("succeeded", 2, 1)
    assert stage.returned == ["slow_thread", "slow_thread"]


def _has_outcome(conn: asyncpg.Connection, job: UUID, outcome: str) -> Any:
    async def has() -> bool:
        return outcome in await outcomes(conn, job)

    return has


async def test_without_progress_it_is_stuck_three_times_and_then_fails(
    database: str, conn: asyncpg.Connection, clock: Clock, stage: Stage
) -> None:
    """S2, S3, M11: counts as recoveries, not as failures; pauses of 0, 10 and 60 s."""
    async with working(database, stage.app, poll=0.05):
        job = await submit(conn, "still")
        for crashes, wait in ((2, "10s"), (3, "60s")):
            await eventually(_waits(conn, job, crashes), f"crash {crashes}")
            await clock.advance(wait, beats=True)
        [row] = await until_finished(conn, [job])
    assert (row["status"], row["attempt"]) == ("failed", 4)
    assert (row["failures"], row["crashes"]) == (0, 3)
    assert (row["error"]["class"], row["error"]["reason"]) == ("stalled", "stuck_exhausted")
    assert stage.begun == [("still", n) for n in (1, 2, 3, 4)]
    assert await outcomes(conn, job) == ["stuck", "stuck", "stuck", "failed"]


def _waits(conn: asyncpg.Connection, job: UUID, crashes: int) -> Any:
    async def waits() -> bool:
        state = await read(conn, job)
        found = await conn.fetchval("select crashes from penstock.job where id = $1", job)
        return bool(state["status"] == "scheduled" and found == crashes)

    return waits


async def test_progress_postpones_when_it_counts_as_stuck(
    database: str, conn: asyncpg.Connection, stage: Stage
) -> None:
    """S4, S5: for the worker and for upkeep, which both watch."""
    async with working(database, stage.app):
        job = await submit(conn, "moving", payload={"steps": 16})
        [row] = await until_finished(conn, [job])
    assert (row["status"], row["result"], row["crashes"]) == ("succeeded", 1, 0)


async def test_upkeep_settles_an_attempt_of_a_hanging_worker(
    crew: Crew, conn: asyncpg.Connection, clock: Clock
) -> None:
    """M11, E12, E13: it beats, but its loop hangs; 5 s after the time-out, upkeep steps in."""
    hanging = await crew.start("hanging")
    [job] = await submit_many(conn, "hang_first", 1, {"gate": str(crew.gate())})
    await crew.until_noted("start", 1)
    await clock.advance("10m", beats=True)
    assert await conn.fetch("select * from penstock.recover_jobs()") == []
    await clock.advance("5s", beats=True)
    [found] = await conn.fetch("select outcome, verdict from penstock.recover_jobs()")
    assert tuple(found) == ("timed_out", "done")
    await crew.start("other")
    [row] = await crew.until_finished([job])
    assert (row["status"], row["result"], row["failures"]) == ("succeeded", 2, 1)
    crew.gate().touch()
    late = "select result from penstock.late_result where job_id = $1"
    await eventually(lambda: conn.fetchval(late, job), "its late result is kept")
    assert await outcomes(conn, job) == ["timed_out", "succeeded"]
    assert hanging.popen.poll() is None


@pytest.mark.parametrize(
    ("how", "status", "result"),
    [("return", "succeeded", "part of it"), ("raise", "cancelled", None)],
)
async def test_a_handler_may_return_when_cancelled(
    database: str, conn: asyncpg.Connection, stage: Stage, *, how: str, status: str, result: Any
) -> None:
    """G13: `job.cancelled` is set at once; what it returns in time counts."""
    async with working(database, stage.app):
        job = await submit(conn, "polite", payload={"how": how})
        await stage.until_begun()
        begun = time.monotonic()
        await conn.execute("select penstock.cancel_job($1)", job)
        [row] = await until_finished(conn, [job])
    assert time.monotonic() - begun < 1
    assert (row["status"], row["result"], row["attempt"]) == (status, result, 1)


@pytest.mark.parametrize("kind", ["deaf", "deaf_thread"])
async def test_a_handler_that_ignores_a_cancel_is_stopped_after_a_moment(
    database: str, conn: asyncpg.Connection, stage: Stage, kind: str
) -> None:
    """G13: a coroutine by its cancellation, a thread by not waiting for it."""
    async with working(database, stage.app):
        job = await submit(conn, kind)
        await stage.until_begun()
        await conn.execute("select penstock.cancel_job($1)", job)
        [row] = await until_finished(conn, [job], seconds=5)
        assert stage.returned == (["deaf"] if kind == "deaf" else [])
        stage.release.set()
    assert (row["status"], row["attempt"], row["error"]["class"]) == ("cancelled", 1, "cancelled")


async def test_a_cancel_without_a_notification_is_found_by_polling(
    database: str, conn: asyncpg.Connection, stage: Stage
) -> None:
    """G13: NOTIFY only makes it quick."""
    async with working(database, stage.app):
        job = await submit(conn, "deaf")
        await stage.until_begun()
        await conn.execute(
            "update penstock.job set cancel_requested_at = penstock.clock() where id = $1", job
        )
        [row] = await until_finished(conn, [job], seconds=5)
    assert row["status"] == "cancelled"
