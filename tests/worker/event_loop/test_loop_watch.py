"""Which job blocks an event loop, and that others lose nothing by it: seen inside one worker."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from penstock import Job, Penstock, Retries
from penstock.engine.jobs.on_finish import FinishedJob
from penstock.engine.workers import Blocker
from penstock.worker.attempts.attempt import Attempt
from penstock.worker.event_loop import loop_watch
from penstock.worker.event_loop.loop_watch import LoopWatch
from support.factory import submit, submit_rows
from support.waiting import eventually
from support.worker.crew import count, declare, until_finished, working

pytestmark = pytest.mark.alone

AT_ONCE = Retries(attempts=3, backoff="constant", delay="0s")
BLOCKS = 1.2


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("TICK", 0.05), ("SAMPLE", 0.3), ("BLOCKED", 0.6)):
        monkeypatch.setattr(loop_watch, f"{name}_SECONDS", seconds)


def block(seconds: float = BLOCKS) -> None:
    time.sleep(seconds)


async def inside() -> None:
    block()


async def gathered() -> None:
    await asyncio.gather(asyncio.sleep(0), inside())


async def grouped() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(inside())


async def waited() -> None:
    await asyncio.wait_for(inside(), 10)


async def two_deep() -> None:
    await asyncio.create_task(gathered())


WAYS: dict[str, Callable[[], Awaitable[None]]] = {
    "itself": inside,
    "gather": gathered,
    "a task group": grouped,
    "wait_for": waited,
    "a task of a task": two_deep,
}


def app_of(**options: Any) -> Penstock:
    app = Penstock(name="blocking")
    ours: dict[str, Any] = {"retry": AT_ONCE, "timeout": "1m", "stuck_after": "5m"}
    app.queue("q", **(ours | options))

    @app.job(queue="q")
    async def blocks(way: str) -> None:
        await asyncio.sleep(0)
        await WAYS[way]()

    @app.job(queue="q")
    async def naps(seconds: float) -> None:
        await asyncio.sleep(seconds)

    return app


async def blocked_loops(conn: asyncpg.Connection) -> list[Any]:
    """The reports of blocked loops, as soon as there are any."""

    async def reported() -> bool:
        return bool(await conn.fetchval("select bool_and(ended_at > began_at) from blocked_loop"))

    await conn.execute("set search_path = penstock, public")
    await eventually(reported, "the blocked loop to be reported")
    return await conn.fetch("select * from blocked_loop order by number")


@pytest.mark.parametrize("way", WAYS)
async def test_the_job_whose_task_blocks_is_named(
    database: str, conn: asyncpg.Connection, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """D2: also a task that the handler made and waits for; with the line of the app's code."""
    caplog.set_level(logging.WARNING, "penstock.worker")
    async with working(database, app_of(), poll=0.1):
        await submit_rows(conn, [{"kind": "naps", "payload": {"seconds": 9}}] * 3)
        job = await submit(conn, "blocks", payload={"way": way})
        await until_finished(conn, [job])
        [row] = await blocked_loops(conn)
    assert (row["job_id"], row["attempt"], row["kind"]) == (job, 1, "blocks")
    line = block.__code__.co_firstlineno + 1
    assert row["location"] == f"{__file__}:{line}"
    [begun, over] = [one for one in caplog.records if "the event loop" in one.getMessage()]
    assert f"{__file__}:{line}" in begun.getMessage()
    assert vars(over)["job"] == job
    assert row["seconds"] >= BLOCKS


async def test_an_on_finish_that_blocks_is_named(database: str, conn: asyncpg.Connection) -> None:
    app = app_of()

    @app.job(queue="q")
    async def paid() -> None: ...

    @paid.on_finish
    async def bill(_job: FinishedJob, _conn: asyncpg.Connection) -> None:
        block()

    async with working(database, app, poll=0.1):
        job = await submit(conn, "paid")
        await until_finished(conn, [job])
        [row] = await blocked_loops(conn)
    assert (row["job_id"], row["kind"]) == (job, "paid")


async def test_of_many_short_tasks_none_is_named(database: str, conn: asyncpg.Connection) -> None:
    """A loop that is only slow has no blocker."""
    app = app_of()

    @app.job(queue="q")
    async def busy() -> None:
        block(0.15)

    async with working(database, app, poll=0.1):
        jobs = await submit_rows(conn, [{"kind": "busy"}] * 12)
        await until_finished(conn, jobs)
        rows = await blocked_loops(conn)
    assert {row["job_id"] for row in rows} == {None}


async def test_an_attempt_that_could_not_go_on_loses_no_time(
    database: str, conn: asyncpg.Connection
) -> None:
    """D2: other jobs' time-outs fall due while the loop stands, and do not count."""
    app = app_of(timeout=1)

    @app.job(queue="q")
    async def blocks_later() -> None:
        await asyncio.sleep(0.4)
        block()

    async with working(database, app, poll=0.1):
        rows: list[dict[str, Any]] = [{"kind": "naps", "payload": {"seconds": 0.8}}] * 20
        rows.insert(10, {"kind": "blocks_later"})
        jobs = await submit_rows(conn, rows)
        finished = await until_finished(conn, [*jobs[:10], *jobs[11:]])
    assert count((row["status"], row["attempt"]) for row in finished) == {("succeeded", 1): 20}


async def test_an_attempt_that_has_just_begun_loses_no_time_either(
    database: str, conn: asyncpg.Connection
) -> None:
    """D2: its timer is set only after the loop goes on."""
    app = app_of(timeout=1)

    @app.job(queue="q")
    async def naps_twice() -> None:
        await asyncio.sleep(0.1)
        await asyncio.sleep(0.4)

    await declare(database, app)
    rows: list[dict[str, Any]] = [{"kind": "naps_twice"}] * 20
    rows.append({"kind": "blocks", "payload": {"way": "itself"}})
    jobs = await submit_rows(conn, rows)
    async with working(database, app, poll=0.1, concurrency=30):
        finished = await until_finished(conn, jobs[:20])
    assert count((row["status"], row["attempt"]) for row in finished) == {("succeeded", 1): 20}


async def test_an_attempt_that_blocks_uses_its_own_time(
    database: str, conn: asyncpg.Connection
) -> None:
    app = app_of(timeout=0.5, retry=Retries(attempts=1))

    @app.job(queue="q")
    async def blocks_and_waits() -> None:
        block()
        await asyncio.sleep(0.3)

    async with working(database, app, poll=0.1):
        job = await submit(conn, "blocks_and_waits")
        [row] = await until_finished(conn, [job])
    assert row["error"]["class"] == "timeout"


async def test_a_call_that_timed_out_in_a_blocked_loop_is_no_failure(
    database: str, conn: asyncpg.Connection
) -> None:
    """D2: its answer may have arrived, but the blocked loop could not read it."""
    app = app_of()
    begun = asyncio.Event()

    @app.job(queue="q")
    async def calls(job: Job) -> int:
        if job.attempt == 1:
            async with asyncio.timeout(0.5):
                begun.set()
                await asyncio.sleep(9)
        return job.attempt

    @app.job(queue="q")
    async def blocks_then() -> None:
        await begun.wait()
        block()

    async with working(database, app, poll=0.1):
        jobs = [await submit(conn, "calls"), await submit(conn, "blocks_then")]
        [row, _] = await until_finished(conn, jobs)
    assert (row["result"], row["failures"]) == (2, 0)


async def test_a_call_that_times_out_in_a_free_loop_is_a_failure(
    database: str, conn: asyncpg.Connection
) -> None:
    app = app_of()

    @app.job(queue="q")
    async def calls(job: Job) -> int:
        if job.attempt == 1:
            async with asyncio.timeout(0.1):
                await asyncio.sleep(9)
        return job.attempt

    async with working(database, app, poll=0.1):
        blocker = await submit(conn, "blocks", payload={"way": "itself"})
        await until_finished(conn, [blocker])
        await blocked_loops(conn)
        [row] = await until_finished(conn, [await submit(conn, "calls")])
    assert (row["result"], row["failures"]) == (2, 1)


async def test_jobs_that_have_blocked_start_one_by_one_and_alone(
    database: str, conn: asyncpg.Connection
) -> None:
    """D2: other jobs finish first, and nothing is claimed meanwhile; suspects delay no suspects."""
    app = app_of()
    now: list[int] = []
    beside: list[int] = []

    @app.job(queue="q")
    async def alone(n: int) -> None:
        now.append(n)
        for _ in range(10):
            beside.append(len(now))
            await asyncio.sleep(0.01)
        now.remove(n)

    @app.job(queue="q")
    async def others(n: int) -> None:
        now.append(n)
        await asyncio.sleep(0.2)
        now.remove(n)

    await declare(database, app)
    rows = [{"kind": ("others", "alone")[n % 3 == 0], "payload": {"n": n}} for n in range(9)]
    jobs = await submit_rows(conn, rows)
    await conn.execute("update penstock.job set blocks = true where id = any ($1)", jobs[::3])
    async with working(database, app, poll=0.1, concurrency=20):
        finished = await until_finished(conn, jobs, seconds=40)
    assert set(beside) == {1}
    assert len(beside) == 30
    assert {row["failures"] for row in finished} == {0}


async def test_an_attempt_that_was_released_meanwhile_is_stopped_here(
    database: str, conn: asyncpg.Connection
) -> None:
    app = app_of()
    begun, dropped = asyncio.Event(), asyncio.Event()

    @app.job(queue="q")
    async def holds(job: Job) -> int:
        if job.attempt == 1:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                dropped.set()
        return job.attempt

    async with working(database, app, poll=0.1):
        job = await submit(conn, "holds")
        await begun.wait()
        # What upkeep of another worker does while the loop stands.
        await conn.execute(
            "select * from penstock._settle_jobs(null, null, array[$1::uuid], array[1],"
            " array['released'], null, null, null, null)",
            job,
        )
        blocker = await submit(conn, "blocks", payload={"way": "itself"})
        async with asyncio.timeout(10):
            await dropped.wait()
        [row, _] = await until_finished(conn, [job, blocker])
    assert (row["result"], row["failures"]) == (2, 0)


@pytest.mark.parametrize("lost", [0, 60])
@pytest.mark.parametrize(("allowed", "reason"), [(1, "timeout"), (100, "stuck")])
async def test_no_attempt_times_out_before_the_lost_time_is_known(
    allowed: float, reason: str, lost: float
) -> None:
    """Its timer may fire before the loop has noted that it stood still."""
    attempt: Attempt

    def measure() -> None:
        attempt.lose(lost)

    loop = asyncio.get_running_loop()
    progress: Any = SimpleNamespace(loop=loop, watch=SimpleNamespace(measure=measure))
    claimed: Any = SimpleNamespace(
        id=uuid4(), kind="naps", attempt=1, timeout_seconds=allowed, unmoved_seconds=1
    )
    handler: Any = None
    attempt = Attempt(claimed, handler, 1, progress)
    attempt.watch(loop.time() - 30)
    assert attempt.reason == (reason if lost == 0 else None)
    attempt.unwatch()


class Clock:
    """Replaces the module `time`."""

    def __init__(self) -> None:
        self.now = self.used = 100.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.used

    def pass_by(self, seconds: float, *, used: float) -> None:
        self.now += seconds
        self.used += used


@pytest.mark.parametrize(("used", "named"), [(0.0, None), (9.0, "here")])
async def test_a_process_that_was_stopped_was_not_blocked(
    monkeypatch: pytest.MonkeyPatch, used: float, named: str | None
) -> None:
    """But a process that kept the interpreter lock has used CPU time."""
    clock = Clock()
    monkeypatch.setattr(loop_watch, "time", clock)
    watch = LoopWatch(asyncio.get_running_loop())
    monkeypatch.setattr(watch, "_seen", lambda: Blocker("here"))
    watch.sample()
    clock.pass_by(10, used=used)
    watch.sample()
    watch.measure()
    [standstill] = watch.reports()
    assert standstill.seconds == 10
    assert standstill.named.location == named
