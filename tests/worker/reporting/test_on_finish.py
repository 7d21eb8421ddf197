"""on_finish: the app writes in the transaction that finishes its job, in whatever way."""

import asyncio
import os
from collections.abc import Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock import Fail, Job, Penstock, Retries
from penstock.engine.jobs.on_finish import FinishedJob
from penstock.worker.reporting import on_finish
from support.clock import Clock
from support.factory import submit
from support.shapes import Connect
from support.waiting import eventually
from support.worker.crew import outcomes, until_finished, working

AT_ONCE = Retries(attempts=3, backoff="constant", delay="0s")
Act = Callable[[FinishedJob, asyncpg.Connection], Any]


class Shop:
    """An app that writes a bill for each finished job, and then does what the test asks for."""

    def __init__(self) -> None:
        self.calls: list[tuple[UUID, str, int]] = []
        self.act: Act | None = None
        self.app = app = Penstock(name="shop")
        app.queue("q", retry=AT_ONCE, timeout="10m", stuck_after="1h")

        @app.job(queue="q")
        async def sell(job: Job, how: str = "") -> str:
            match how:
                case "fail":
                    raise Fail("no stock")
                case "hang":
                    await asyncio.Event().wait()
            return f"attempt {job.attempt}"

        @sell.on_finish
        async def bill(job: FinishedJob, conn: asyncpg.Connection) -> None:
            self.calls.append((job.id, job.status, job.attempt))
            await conn.execute(
                "insert into bill (job_id, status, words) values ($1, $2, $3)",
                job.id,
                job.status,
                job.result or (job.error or {}).get("class"),
            )
            if self.act is not None:
                await self.act(job, conn)


@pytest.fixture
async def shop(conn: asyncpg.Connection) -> Shop:
    # Without a unique key, so that a second call would be seen.
    await conn.execute("create table bill (job_id uuid, status text, words text)")
    return Shop()


async def bills(conn: asyncpg.Connection) -> list[tuple[UUID, str, str]]:
    return [tuple(row) for row in await conn.fetch("select job_id, status, words from bill")]


async def until_billed(conn: asyncpg.Connection, n: int = 1) -> None:
    async def billed() -> bool:
        return bool(await conn.fetchval("select count(*) from bill") >= n)

    await eventually(billed, f"{n} bills")


async def test_the_apps_row_is_written_with_the_outcome(
    database: str, conn: asyncpg.Connection, shop: Shop
) -> None:
    """E3: for successes and failures, once each; not for a retry."""
    async with working(database, shop.app):
        sold = await submit(conn, "sell")
        failed = await submit(conn, "sell", payload={"how": "fail"})
        await until_finished(conn, [sold, failed])
    assert sorted(await bills(conn)) == sorted(
        [(sold, "succeeded", "attempt 1"), (failed, "failed", "invalid_request")]
    )


async def break_down(_: FinishedJob, __: asyncpg.Connection) -> None:
    raise RuntimeError


async def break_quietly(_: FinishedJob, conn: asyncpg.Connection) -> None:
    """The statement fails and the app ignores that: the transaction is aborted anyway."""
    try:
        await conn.execute("select 1 / 0")
    except asyncpg.DivisionByZeroError:
        return


async def break_at_the_commit(job: FinishedJob, conn: asyncpg.Connection) -> None:
    await conn.execute("insert into late_check values ($1)", job.attempt)


@pytest.mark.parametrize("act", [break_down, break_quietly, break_at_the_commit])
async def test_an_app_that_fails_leaves_neither_row_nor_outcome(
    database: str,
    conn: asyncpg.Connection,
    connect: Connect,
    *,
    shop: Shop,
    act: Act,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E3, M10: tried a few times, then the attempt fails; the next one may succeed."""
    monkeypatch.setattr(on_finish, "TRY_SECONDS", 0.01)
    watcher = await connect()
    await conn.execute(
        "create table late_check (n integer unique deferrable initially deferred);"
        " insert into late_check values (1)"
    )

    async def fail_first(job: FinishedJob, on: asyncpg.Connection) -> None:
        if job.attempt == 1:
            assert await watcher.fetchval("select count(*) from penstock.finished") == 0
            await act(job, on)

    shop.act = fail_first
    async with working(database, shop.app):
        job = await submit(conn, "sell")
        [row] = await until_finished(conn, [job])
    assert [attempt for _, _, attempt in shop.calls] == [1] * on_finish.TRIES + [2]
    assert (row["attempt"], row["failures"]) == (2, 1)
    assert await bills(conn) == [(job, "succeeded", "attempt 2")]
    assert await outcomes(conn, job) == ["retried", "succeeded"]


async def test_an_on_finish_that_always_fails_is_called_again_later(
    database: str, conn: asyncpg.Connection, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M10: the job fails after its attempts; on_finish is called for that until it succeeds."""
    monkeypatch.setattr(on_finish, "TRY_SECONDS", 0.01)
    shop.act = break_down
    async with working(database, shop.app):
        job = await submit(conn, "sell")
        [row] = await until_finished(conn, [job])
        assert (row["status"], row["failures"], row["attempt"]) == ("failed", 3, 3)
        assert await bills(conn) == []

        async def called_for_the_failure() -> bool:
            return (job, "failed", 3) in shop.calls

        await eventually(called_for_the_failure, "on_finish is called")
        shop.act = None
        await until_billed(conn)
    assert await bills(conn) == [(job, "failed", "bug")]


async def test_it_is_called_for_jobs_that_no_worker_finished(
    database: str, conn: asyncpg.Connection, clock: Clock, shop: Shop
) -> None:
    """E12, G13: a time-out by upkeep, a cancel while the job waits, an expiry; once each."""
    async with working(database, shop.app):
        over = await submit(conn, "sell", payload={"how": "hang"}, max_attempts=1)

        async def runs() -> bool:
            return bool(await conn.fetchval("select status = 'running' from penstock.job"))

        await eventually(runs, "it runs")
        waits = await submit(conn, "sell", delay_seconds=3600)
        expires = await submit(conn, "sell", delay_seconds=300, expires_seconds=60)
        await conn.execute("select penstock.cancel_job($1)", waits)
        await clock.advance("11m", beats=True)  # the worker's own clock has not moved
        await until_billed(conn, 3)
    assert sorted(await bills(conn)) == sorted(
        [
            (over, "failed", "timeout"),
            (waits, "cancelled", "cancelled"),
            (expires, "failed", "expired"),
        ]
    )


async def test_the_apps_row_is_written_although_the_job_was_locked_before(
    database: str, conn: asyncpg.Connection, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: a claim may lock the job for a moment, just when the worker wants to lock it."""

    async def locked(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr("penstock.engine.jobs.on_finish.OnFinish.hold", locked)
    async with working(database, shop.app):
        job = await submit(conn, "sell")
        await until_finished(conn, [job])
        # In the finishing transaction: as soon as the job is seen as finished, the bill is there.
        assert await bills(conn) == [(job, "succeeded", "attempt 1")]
        assert await conn.fetchval("select count(*) from penstock.pending_on_finish") == 0


async def test_it_is_called_once_for_each_of_a_hundred_jobs(
    database: str, conn: asyncpg.Connection, shop: Shop
) -> None:
    """M4: two workers share them."""
    async with working(database, shop.app, name="a"), working(database, shop.app, name="b"):
        jobs = [await submit(conn, "sell") for _ in range(100)]
        await until_finished(conn, jobs)
        assert sorted(job for job, _, _ in await bills(conn)) == sorted(jobs)
    assert await conn.fetchval("select count(*) from penstock.pending_on_finish") == 0


async def test_a_session_that_is_lost_during_it_is_no_failure_of_the_app(
    database: str, conn: asyncpg.Connection, connect: Connect, shop: Shop
) -> None:
    """M4, E12: it is done again on another session, and counts once."""
    cut: list[int] = []
    killer = await connect()

    async def cut_the_line(_: FinishedJob, on: asyncpg.Connection) -> None:
        if not cut:
            cut.append(os.getpid())
            pid = await on.fetchval("select pg_backend_pid()")
            await killer.execute("select pg_terminate_backend($1, 5000)", pid)

    shop.act = cut_the_line
    async with working(database, shop.app):
        job = await submit(conn, "sell")
        [row] = await until_finished(conn, [job])
    assert cut
    assert (row["attempt"], row["failures"]) == (1, 0)
    assert await bills(conn) == [(job, "succeeded", "attempt 1")]
