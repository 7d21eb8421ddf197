"""F10: inline queues: the job runs in the submitting process, with the same row and limits."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest

from penstock import Job, Penstock, Retry
from support.shapes import Connect
from support.waiting import eventually


@pytest.fixture
async def app(database: str) -> AsyncIterator[Penstock]:
    app = Penstock(database, name="inline")
    yield app
    await app.close()


async def test_a_job_of_an_inline_queue_has_run_when_submit_returns(app: Penstock) -> None:
    """F10"""
    queue = app.queue("q", inline=True)

    @app.job(queue=queue)
    async def double(n: int, job: Job) -> dict[str, int]:
        await job.progress(1, 1)
        return {"n": 2 * n, "attempt": job.attempt}

    ticket = await double.submit(n=4)
    job = await ticket.status()
    assert (job["status"], job["result"]) == ("succeeded", {"n": 8, "attempt": 1})
    assert job["progress"]["done"] == 1


async def test_the_environment_makes_every_queue_inline(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F10"""
    monkeypatch.setenv("PENSTOCK_INLINE", "1")
    app = Penstock(database, name="inline")
    queue = app.queue("q")

    @app.job(queue=queue)
    def shout(word: str) -> str:
        return word.upper()

    [one, two] = await shout.submit_many([{"word": "a"}, {"word": "b"}])
    assert [await one.result(), await two.result()] == ["A", "B"]
    assert await asyncio.to_thread(app.sync.submit, shout, word="c")
    await app.close()


async def test_blocking_callers_get_it_done_too(app: Penstock) -> None:
    queue = app.queue("q", inline=True)

    @app.job(queue=queue)
    async def shout(word: str) -> str:
        return word.upper()

    ticket = await asyncio.to_thread(app.sync.submit, shout, word="hi")
    assert (await ticket.status())["result"] == "HI"


async def test_after_a_failure_a_worker_runs_the_job(app: Penstock) -> None:
    queue = app.queue("q", inline=True)

    @app.job(queue=queue)
    async def shaky() -> None:
        raise Retry("not today", after="1h")

    ticket = await shaky.submit()
    job = await ticket.status()
    assert (job["status"], job["failures"], job["error"]["message"]) == (
        "scheduled",
        1,
        "not today",
    )


async def test_an_inline_job_waits_for_a_slot(app: Penstock) -> None:
    """The queue's limit applies to callers as to workers."""
    queue = app.queue("q", inline=True, concurrency=1)
    running, most = 0, 0

    @app.job(queue=queue)
    async def slow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1

    tickets = await asyncio.gather(*(slow.submit() for _ in range(4)))
    assert most == 1
    assert {(await ticket.status())["status"] for ticket in tickets} == {"succeeded"}


async def test_within_the_callers_transaction_it_runs_after_the_commit(
    app: Penstock, connect: Connect
) -> None:
    queue = app.queue("q", inline=True)
    ran: list[str] = []

    @app.job(queue=queue)
    async def note(word: str) -> None:
        ran.append(word)

    own = await connect()
    async with own.transaction():
        ticket = await note.using(conn=own).submit(word="a")
        await asyncio.sleep(0)
        assert ran == []
    assert await ticket.result(timeout=10) is None
    assert ran == ["a"]


async def test_within_a_blocking_transaction_it_runs_after_the_commit_too(
    app: Penstock, database: str
) -> None:
    queue = app.queue("q", inline=True)

    @app.job(queue=queue)
    async def shout(word: str) -> str:
        return word.upper()

    def submit() -> Any:
        with psycopg.connect(database) as own:
            return app.sync.using(shout, conn=own).submit(word="b")

    ticket = await asyncio.to_thread(submit)
    assert await ticket.result(timeout=10) == "B"


async def test_a_caller_is_a_worker_while_its_job_runs(
    app: Penstock, conn: asyncpg.Connection
) -> None:
    """It is registered, with a lease: if its process died, the job would be recovered."""
    queue = app.queue("q", inline=True)
    seen: list[int] = []

    @app.job(queue=queue)
    async def read() -> None:
        seen.append(await conn.fetchval("select count(*) from penstock.worker_health where alive"))

    await read.submit()
    assert seen == [1]

    async def gone() -> bool:
        return not await conn.fetchval("select count(*) from penstock.worker_health where alive")

    await eventually(gone, "the caller is no longer a worker")


async def test_a_job_that_an_inline_job_submits_runs_in_the_background(app: Penstock) -> None:
    """It may wait for the slot that its parent has."""
    queue = app.queue("q", inline=True, concurrency=1)

    @app.job(queue=queue)
    async def child(n: int) -> int:
        return n

    @app.job(queue=queue)
    async def parent() -> str:
        return str((await child.submit(n=3)).id)

    ticket = await parent.submit()
    assert await app.ticket(await ticket.result()).result(timeout=10) == 3


async def test_a_cancelled_caller_releases_the_job(app: Penstock, conn: asyncpg.Connection) -> None:
    queue = app.queue("q", inline=True)
    begun, stopped = asyncio.Event(), asyncio.Event()

    @app.job(queue=queue, dedupe="n")
    async def slow(n: int) -> int:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return n

    caller = asyncio.create_task(slow.submit(n=1))
    await begun.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert stopped.is_set()
    [job] = await conn.fetch("select status::text, failures, crashes from penstock.job")
    assert tuple(job) == ("queued", 0, 0)


async def test_the_caller_of_a_paused_queue_does_not_wait_for_ever(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.bounded_run.TURN_SECONDS", 0.2)
    queue = app.queue("q", inline=True)

    @app.job(queue=queue)
    async def nothing() -> None: ...

    await (await app.engine()).queues.pause("q")
    ticket = await nothing.submit()
    assert (await ticket.status())["status"] == "queued"
