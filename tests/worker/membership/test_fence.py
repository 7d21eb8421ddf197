"""A worker that was declared lost and does not know it: nothing that it reports counts."""

import asyncio
import threading

import asyncpg
import pytest

from penstock import Job, Penstock
from penstock.models.handlers.exceptions import LeaseLost
from support.factory import submit
from support.waiting import eventually
from support.worker.crew import Here, until_finished, working


def new_app() -> Penstock:
    app = Penstock(name="fence")
    app.queue("q")
    return app


async def give_up(conn: asyncpg.Connection, here: Here) -> None:
    """Do what upkeep does about a worker that is silent for too long; the job starts elsewhere."""
    worker = here.worker._registration.worker
    await conn.execute(
        "update penstock.worker set lost_at = penstock.clock() where id = $1", worker
    )
    await conn.execute("select penstock.recover_jobs()")


@pytest.mark.parametrize("word", ["progress", "emit", "step"])
async def test_reports_of_a_lost_attempt_are_dropped(
    database: str, conn: asyncpg.Connection, word: str
) -> None:
    """S12: fenced as its outcome is; the handler gets an error, and its worker goes on."""
    app = new_app()
    begun = asyncio.Event()
    go_on = threading.Event()
    errors: list[type[BaseException]] = []

    @app.job(queue="q")
    def say(job: Job) -> str:
        if job.attempt > 1:
            return "the second"
        here_loop.call_soon_threadsafe(begun.set)
        go_on.wait(20)
        try:
            match word:
                case "progress":
                    job.progress(66)
                case "emit":
                    job.emit("late")
                case _:
                    job.step("late", lambda: 66)
        except LeaseLost as error:
            errors.append(type(error))
            raise
        return "the first"

    here_loop = asyncio.get_running_loop()
    async with working(database, app, beat=60) as here:
        job = await submit(conn, "say")
        await begun.wait()
        await give_up(conn, here)
        go_on.set()  # the worker does not know: its next beat is a minute away
        [row] = await until_finished(conn, [job])
    assert (row["attempt"], row["result"], row["progress"]) == (2, "the second", None)
    assert await conn.fetchval("select count(*) from penstock.chunk") == 0
    assert await conn.fetchval("select count(*) from penstock.step") == 0
    if word == "step":
        assert errors == [LeaseLost]


async def test_a_late_outcome_does_not_settle_the_present_attempt(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12, L3: its worker does not know yet; its result is kept separately for people."""
    app = new_app()
    begun: asyncio.Queue[int] = asyncio.Queue()
    ends = {1: asyncio.Event(), 2: asyncio.Event()}

    @app.job(queue="q")
    async def work(job: Job) -> int:
        begun.put_nowait(job.attempt)
        await ends[job.attempt].wait()
        return job.attempt

    async with working(database, app, name="zombie", beat=60) as zombie:
        job = await submit(conn, "work")
        assert await begun.get() == 1
        monkeypatch.setattr(zombie.worker._registration, "lose", lambda _: None)
        await give_up(conn, zombie)
        async with working(database, app, name="other"):
            assert await begun.get() == 2
            ends[1].set()
            late = "select result from penstock.late_result where job_id = $1 and attempt = 1"
            await eventually(lambda: conn.fetchval(late, job), "the late result is kept")
            state = await conn.fetchrow("select status::text, attempt from penstock.job")
            assert state
            assert tuple(state) == ("running", 2)
            ends[2].set()
            [row] = await until_finished(conn, [job])
    assert (row["attempt"], row["result"]) == (2, 2)
