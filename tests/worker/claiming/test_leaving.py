"""How a worker leaves: when stopped, after enough jobs, or when nothing is due."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from penstock import Job, Penstock
from penstock.engine.jobs.attempts import Claimed
from penstock.worker.execution.runner import Runner
from penstock.worker.worker import Ran
from support.waiting import eventually
from support.worker.crew import Crew, Process, outcomes, submit_many, until_finished, working


def quick_app(*queues: str) -> Penstock:
    """An app with a kind of the same name in each queue; its `done` counts them."""
    app = Penstock(name="quick")
    for name in queues or ("q",):
        app.queue(name)

        @app.job(queue=name, name=name)
        async def quick(n: int = 0) -> int:
            return n

    return app


async def test_when_stopped_it_lets_its_jobs_finish(crew: Crew, conn: asyncpg.Connection) -> None:
    """F6, E4: no failure is counted, nothing more is claimed."""
    worker = await crew.start("w", concurrency=5)
    jobs = await submit_many(conn, "hold", 5, {"gate": str(crew.gate())})
    await crew.until_noted("start", 5)
    late = await submit_many(conn, "nap", 5, {"seconds": 0})
    worker.signal(signal.SIGTERM)
    await eventually(_says(worker, "Stopping"), "it is stopping")
    crew.gate().touch()
    assert await worker.left() == {"processed": 5, "reason": "stopped"}
    rows = await crew.until_finished(jobs)
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 1)}
    waiting = await conn.fetch("select status, attempt from penstock.job where id = any($1)", late)
    assert {tuple(row) for row in waiting} == {("queued", 0)}


def _says(process: Process, words: str) -> Callable[[], Awaitable[bool]]:
    async def says() -> bool:
        return words in process.log_text

    return says


async def test_jobs_that_do_not_finish_in_time_are_released(
    crew: Crew, conn: asyncpg.Connection
) -> None:
    """F6, E12: also a function in a thread, which cannot be stopped; it runs elsewhere."""
    leaving = await crew.start("leaving", drain=0.3)
    jobs = await submit_many(conn, "hold_first", 5, {"gate": str(crew.gate())})
    threads = await submit_many(conn, "hold_thread", 2, {"gate": str(crew.gate("thread"))})
    await crew.until_noted("start", 7)
    begun = time.monotonic()
    leaving.signal(signal.SIGTERM)

    async def released() -> bool:
        return bool(
            await conn.fetchval("select bool_and(status = 'queued') from penstock.job")
            and time.monotonic() - begun > 0.3
        )

    await eventually(released, "all seven are queued again")
    assert await leaving.left() == {"processed": 7, "reason": "stopped"}
    crew.gate("thread").touch()
    await crew.start("other")
    rows = await crew.until_finished(jobs + threads)
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 2)}
    assert {(row["failures"], row["crashes"], row["losses"]) for row in rows} == {(0, 0, 0)}
    assert await outcomes(conn, jobs[0]) == ["released", "succeeded"]


async def test_a_second_signal_ends_it_at_once(crew: Crew, conn: asyncpg.Connection) -> None:
    """F6: running jobs are released, without waiting for the drain."""
    worker = await crew.start("w", drain=60)
    jobs = await submit_many(conn, "hold", 3, {"gate": str(crew.gate())})
    jobs += await submit_many(conn, "hold_thread", 1, {"gate": str(crew.gate())})
    await crew.until_noted("start", 4)
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGINT)
    begun = time.monotonic()
    ran = await worker.left()
    assert time.monotonic() - begun < 5
    assert ran["reason"] == "stopped"
    rows = await conn.fetch("select status::text, failures, crashes from penstock.job")
    assert {tuple(row) for row in rows} == {("queued", 0, 0)}


async def test_a_handler_that_fails_because_it_was_stopped_has_no_failure(
    database: str, conn: asyncpg.Connection
) -> None:
    """F6: it was stopped; what it raises after that is no failure of the job."""
    app = Penstock(name="trips")
    app.queue("q")
    begun = asyncio.Event()

    @app.job(queue="q")
    async def trip() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError from None

    async with working(database, app, drain=0.05) as here:
        [job] = await submit_many(conn, "trip", 1, {})
        await begun.wait()
        here.worker.stop()
        assert (await here.ran()).reason == "stopped"
    assert await outcomes(conn, job) == ["released"]
    rows = await conn.fetch("select status::text, failures from penstock.job")
    assert [tuple(row) for row in rows] == [("queued", 0)]


async def test_it_recycles_after_so_many(database: str, conn: asyncpg.Connection) -> None:
    """F7: and not after more, however many queues it serves."""
    app = quick_app("a", "b", "c")
    async with working(database, app, recycle_after=10) as here:
        for name in "abc":
            await submit_many(conn, name, 10, {"n": 1})
        assert await here.ran() == Ran(10, "recycle")
    assert await conn.fetchval("select count(*) from penstock.finished") == 10


async def test_it_leaves_after_so_many_jobs(database: str, conn: asyncpg.Connection) -> None:
    """E4: at most N jobs and exit."""
    async with working(database, quick_app(), max_jobs=1) as here:
        jobs = await submit_many(conn, "q", 3, {"n": 1})
        assert await here.ran() == Ran(1, "max_jobs")
    assert await conn.fetchval("select count(*) from penstock.finished") == 1
    async with working(database, quick_app(), max_jobs=5, until_idle=True) as here:
        assert await here.ran() == Ran(2, "idle")
    await until_finished(conn, jobs)


async def test_with_nothing_due_it_leaves_at_once(database: str, conn: asyncpg.Connection) -> None:
    """E4: also if a job is due later."""
    app = quick_app()
    async with working(database, app, until_idle=True) as here:
        assert await here.ran(5) == Ran(0, "idle")
    await conn.execute("select penstock.submit_job('q', '{}', delay_seconds => 3600)")
    begun = time.monotonic()
    async with working(database, app, until_idle=True) as here:
        assert await here.ran(5) == Ran(0, "idle")
    assert time.monotonic() - begun < 2


async def test_until_idle_runs_what_its_jobs_submit(
    database: str, conn: asyncpg.Connection
) -> None:
    """E4: jobs that become due through a job of this run belong to the run."""
    app = Penstock(name="chain")
    app.queue("q")

    @app.job(queue="q")
    async def chain(job: Job, left: int) -> Any:
        if left:
            await submit_many(conn, "chain", 1, {"left": left - 1})
        return job.attempt

    async with working(database, app, until_idle=True) as here:
        assert (await here.ran()).reason == "idle"
    await submit_many(conn, "chain", 1, {"left": 3})
    async with working(database, app, until_idle=True) as here:
        assert await here.ran() == Ran(4, "idle")


async def test_an_attempt_that_is_stopped_before_its_first_step_is_not_forgotten(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E12: its task never ran, and yet its slot is free again and its job goes on."""
    begin = Runner.begin
    lost: list[int] = []

    def begin_and_lose(self: Runner, claimed: Claimed, worker: int, *, release: bool) -> None:
        begin(self, claimed, worker, release=release)
        if not lost:
            lost.append(worker)
            here.worker._registration.lose(worker)

    monkeypatch.setattr(Runner, "begin", begin_and_lose)
    async with working(database, quick_app(), concurrency=1) as here:
        [job] = await submit_many(conn, "q", 1, {"n": 1})
        [row] = await until_finished(conn, [job])
    assert lost
    assert (row["status"], row["failures"], row["crashes"]) == ("succeeded", 0, 0)
    assert await outcomes(conn, job) == ["released", "succeeded"]
