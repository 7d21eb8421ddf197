"""Steps that are plain functions run in threads: one that hangs costs only its own job."""

import asyncio
import threading
from collections.abc import Iterator

import asyncpg
import pytest

from penstock import Job, Penstock, Retries
from support.factory import submit, submit_rows
from support.worker.crew import until_finished, working


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def app_of(hang: threading.Event) -> Penstock:
    app = Penstock(name="steps")
    app.queue("q", retry=Retries(attempts=1), timeout="2s", stuck_after="1m")

    @app.job(queue="q")
    async def hangs(job: Job) -> None:
        await job.step("hang", hang.wait)

    @app.job(queue="q")
    async def well(job: Job) -> bool:
        done: bool = await job.step("done", lambda: True)
        return done

    return app


async def test_a_step_that_hangs_does_not_delay_other_jobs_steps(
    database: str, conn: asyncpg.Connection, hang: threading.Event
) -> None:
    """D2: neither while its job runs nor after its time-out."""
    async with working(database, app_of(hang), poll=0.1, threads=1, concurrency=9):
        hung = await submit_rows(conn, [{"kind": "hangs"}] * 3)
        during = await submit(conn, "well")
        [row] = await until_finished(conn, [during])
        assert row["result"] is True
        rows = await until_finished(conn, hung)
        assert {row["error"]["class"] for row in rows} == {"timeout"}
        [row] = await until_finished(conn, [await submit(conn, "well")])
        assert row["result"] is True


async def test_the_slot_of_a_job_is_free_when_its_steps_have_returned(
    database: str, conn: asyncpg.Connection, hang: threading.Event
) -> None:
    """D2: the thread goes on after the job's time-out; so many may hang, and no more."""
    app, inside = app_of(hang), asyncio.Event()

    @app.job(queue="q")
    async def one_of_two_hangs(job: Job) -> None:
        await asyncio.gather(job.step("hang", hang.wait), job.step("done", lambda: True))

    @app.job(queue="q")
    async def begins() -> None:
        inside.set()

    async with working(database, app, poll=0.1, concurrency=1) as here:
        await until_finished(conn, [await submit(conn, "one_of_two_hangs")])
        last = await submit(conn, "begins")
        assert here.worker._claims is not None
        assert here.worker._claims.accepting == []
        assert not inside.is_set()
        hang.set()
        await until_finished(conn, [last])
