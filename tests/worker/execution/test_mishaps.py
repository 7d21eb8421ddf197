"""Rare failures: answers that are lost, outcomes that are refused, handlers that misreport."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from penstock import Cancel, Fail, Job, Penstock, Retry
from penstock.engine.engine import Engine
from penstock.engine.jobs.jobs import Jobs
from penstock.engine.jobs.on_finish import FinishedJob
from penstock.engine.workers import Workers
from penstock.errors import Unavailable
from penstock.worker.worker import Options, Worker
from support import factory
from support.shapes import Connect
from support.waiting import eventually
from support.worker.crew import declare, until_finished, working


def new_app(**options: Any) -> Penstock:
    app = Penstock(name="mishaps")
    app.queue("q", **options)
    return app


async def test_jobs_that_a_lost_answer_has_claimed_are_released(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is committed, its answer is lost: the worker runs jobs that it does not know of."""
    monkeypatch.setattr("penstock.worker.attempts.open_attempts.FORGOTTEN", timedelta(seconds=0.2))
    monkeypatch.setattr("penstock.worker.worker.POLL_SECONDS", 0.05)
    app = new_app()
    claim: Callable[..., Coroutine[Any, Any, Any]] = Jobs.claim
    lost: list[Any] = []

    async def deaf(self: Jobs, *args: Any, **options: Any) -> Any:
        jobs = await claim(self, *args, **options)
        if jobs and not lost:
            lost.extend(jobs)
            raise ConnectionResetError
        return jobs

    monkeypatch.setattr(Jobs, "claim", deaf)

    @app.job(queue="q", attempts=1)
    async def work() -> None: ...

    async with working(database, app):
        job = await factory.submit(conn, "work")
        [finished] = await until_finished(conn, [job])
    assert lost
    assert (finished["status"], finished["attempt"], finished["failures"]) == ("succeeded", 2, 0)
    assert (await factory.read(conn, job))["attempts"][0]["outcome"] == "released"


async def test_an_answer_that_does_not_come_ends_its_connection(database: str) -> None:
    """A network that swallows everything must not hold up the writer of outcomes."""
    async with await Engine.open(database, answer_seconds=0.2) as engine:
        with pytest.raises(Unavailable):
            await engine.jobs._fetch("select pg_sleep(30)", ())
        assert await engine.upkeep.check() == []


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (Fail(ValueError("no such pupil")), "failed", "no such pupil"),
        (Retry(KeyError("x")), "failed", "'x'"),
        (Cancel(ValueError("not now")), "cancelled", "not now"),
        (Fail(MuteError()), "failed", "MuteError"),
        (MuteError(), "failed", "MuteError: MuteError"),
    ],
    ids=["fail", "retry", "cancel", "mute fail", "mute"],
)
async def test_whatever_a_handler_raises_settles_its_attempt(
    database: str, conn: asyncpg.Connection, error: Exception, status: str, message: str
) -> None:
    app = new_app()

    @app.job(queue="q", attempts=1)
    async def work() -> None:
        raise error

    await declare(database, app)
    job = await factory.submit(conn, "work")
    options = Options(name="w", concurrency=1, until_idle=True)
    assert (await Worker(database, app.handlers(), options).run()).processed == 1
    shown = await factory.read(conn, job)
    assert (shown["status"], shown["error"]["message"]) == (status, message)


async def test_usage_that_cannot_be_kept_is_a_bug_of_the_handler(
    database: str, conn: asyncpg.Connection
) -> None:
    app = new_app()

    @app.job(queue="q")
    async def work(job: Job) -> None:
        await job.usage(tokens=1e308)
        await job.usage(tokens=1e308)

    await declare(database, app)
    job = await factory.submit(conn, "work")
    await Worker(database, app.handlers(), Options(name="w", until_idle=True)).run()
    shown = await factory.read(conn, job)
    assert (shown["status"], shown["error"]["class"]) == ("failed", "bug")


async def test_an_outcome_that_is_refused_for_a_while_is_written_later(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only server, a full disk: it passes, and the work is done and paid for."""
    monkeypatch.setattr("penstock.worker.reporting.outcomes.LATER_SECONDS", 0.05)
    finish: Callable[..., Coroutine[Any, Any, Any]] = Jobs.finish_rows
    refused = 0

    async def reads_only(self: Jobs, *args: Any, **options: Any) -> Any:
        nonlocal refused
        refused += 1
        if refused <= 12:
            raise asyncpg.ReadOnlySQLTransactionError
        return await finish(self, *args, **options)

    monkeypatch.setattr(Jobs, "finish_rows", reads_only)
    app = new_app()
    runs = []

    @app.job(queue="q")
    async def work() -> str:
        runs.append(1)
        return "done"

    async with working(database, app):
        job = await factory.submit(conn, "work")
        [finished] = await until_finished(conn, [job])
    assert (finished["status"], finished["result"], runs) == ("succeeded", "done", [1])


async def test_a_slow_on_finish_causes_no_backlog_of_outcomes(
    database: str, conn: asyncpg.Connection
) -> None:
    """The slot is kept until the outcome is written, or waiting outcomes would time out."""
    app = new_app()
    seen: list[int] = []

    @app.job(queue="q")
    async def work() -> None: ...

    @work.on_finish
    async def store(_: FinishedJob, own: asyncpg.Connection) -> None:
        count = "select count(*) from penstock.job where status = 'running'"
        seen.append(await own.fetchval(count))
        await own.execute("select pg_sleep(0.02)")

    async with working(database, app, concurrency=4):
        jobs = await factory.submit_rows(conn, [{"kind": "work"}] * 60)
        finished = await until_finished(conn, jobs, seconds=30)
    assert {(job["status"], job["attempt"]) for job in finished} == {("succeeded", 1)}
    assert max(seen) <= 4


async def test_a_worker_that_has_left_does_not_register_again(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat after the worker unregistered finds no lease, and that is no loss."""
    app = new_app()

    @app.job(queue="q")
    async def work() -> None: ...

    await declare(database, app)
    worker = Worker(database, app.handlers(), Options(name="w", until_idle=True))
    stop: Callable[..., Coroutine[Any, Any, None]] = Workers.stop

    async def and_a_late_beat(self: Workers, number: int) -> None:
        await stop(self, number)
        worker._registration.lose(number)
        await asyncio.sleep(0.2)

    monkeypatch.setattr(Workers, "stop", and_a_late_beat)
    await worker.run()
    assert await conn.fetchval("select count(*) from penstock.worker") == 1


async def test_an_on_finish_locks_no_row_that_a_whole_queue_needs(
    database: str, conn: asyncpg.Connection
) -> None:
    app = new_app(concurrency=2)
    inside, go_on = asyncio.Event(), asyncio.Event()

    @app.job(queue="q")
    async def work() -> None: ...

    @work.on_finish
    async def store(_: FinishedJob, __: asyncpg.Connection) -> None:
        inside.set()
        await go_on.wait()

    async with working(database, app):
        job = await factory.submit(conn, "work")
        await asyncio.wait_for(inside.wait(), 10)
        await conn.execute("select from penstock.gate for update nowait")
        go_on.set()
        [finished] = await until_finished(conn, [job])
    assert finished["status"] == "succeeded"


async def test_an_on_finish_that_hangs_is_stopped(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.reporting.on_finish.ON_FINISH_SECONDS", 0.05)
    monkeypatch.setattr("penstock.worker.reporting.on_finish.TRY_SECONDS", 0.0)
    app = new_app()

    @app.job(queue="q", attempts=1)
    async def work() -> None: ...

    @work.on_finish
    async def store(job: FinishedJob, _: asyncpg.Connection) -> None:
        if job.status == "succeeded":
            await asyncio.sleep(60)

    async with working(database, app):
        job = await factory.submit(conn, "work")
        [finished] = await until_finished(conn, [job])
    assert finished["status"] == "failed"


async def test_on_finish_for_a_locked_account_does_not_delay_others(
    database: str, conn: asyncpg.Connection, connect: Connect
) -> None:
    app = new_app()
    app.plan("free", concurrency=20)
    go_on = asyncio.Event()

    @app.job(queue="q", account="who")
    async def work(who: str) -> None:
        assert who
        await go_on.wait()

    @work.on_finish
    async def store(job: FinishedJob, conn: asyncpg.Connection) -> None: ...

    async with working(database, app):
        rows = [{"kind": "work", "payload": {"who": "a"}}] * 5
        busy = await factory.submit_rows(conn, rows)
        [other] = await factory.submit_rows(conn, [{"kind": "work", "payload": {"who": "b"}}])

        async def running() -> bool:
            return bool(
                await conn.fetchval("select bool_and(status = 'running') from penstock.job")
            )

        await eventually(running, "all six to run")
        app_conn = await connect()
        async with app_conn.transaction():
            await app_conn.execute("select from penstock.account where name = 'a' for update")
            go_on.set()
            await until_finished(conn, [other])
        await until_finished(conn, busy)


async def test_a_pass_after_a_restart_gives_live_workers_a_moment(
    database: str, conn: asyncpg.Connection, connect: Connect
) -> None:
    """`--once` by cron, right after a restart: its session is new, and expires no leases."""
    app = new_app()

    @app.job(queue="q")
    async def work() -> None: ...

    await declare(database, app)
    job = await factory.submit(conn, "work")
    worker = await factory.worker(conn)
    await factory.claim(conn, worker)
    await conn.execute("update penstock.worker set locks = true")  # as before the restart
    once = asyncio.create_task(
        Worker(database, app.handlers(), Options(name="once", until_idle=True)).run()
    )
    await asyncio.sleep(0.5)
    session = await connect()
    assert await session.fetchval("select penstock.lock_worker($1)", worker)
    assert (await once).processed == 0
    assert await factory.status(conn, job) == "running"
    await conn.execute("select penstock.stop_worker($1)", worker)


async def test_a_worker_with_one_session_is_not_dead_when_that_breaks(
    database: str, conn: asyncpg.Connection
) -> None:
    """`--once` and inline runs have only a heartbeat session."""
    app = new_app()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.job(queue="q")
    async def work() -> None:
        begun.set()
        await go_on.wait()

    await declare(database, app)
    job = await factory.submit(conn, "work")
    once = asyncio.create_task(
        Worker(database, app.handlers(), Options(name="once", until_idle=True)).run()
    )
    await asyncio.wait_for(begun.wait(), 10)
    await conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'penstock heartbeat' and datname = current_database()"
    )
    assert await factory.recover(conn) == []
    go_on.set()
    await once
    assert (await factory.read(conn, job))["attempt"] == 1


async def test_when_stopped_between_two_identities_it_leaves(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app()

    @app.job(queue="q")
    async def work() -> None: ...

    await declare(database, app)
    worker = Worker(database, app.handlers(), Options(name="w"))
    at_work = asyncio.create_task(worker.run())

    async def lives() -> bool:
        return worker._claims is not None and worker._registration.worker is not None

    await eventually(lives, "the worker to live")

    async def refused(*_: Any, **__: Any) -> int:
        raise Unavailable("not now")

    monkeypatch.setattr("penstock.engine.workers.Workers.register", refused)
    worker._registration.lose(worker._registration.worker or 0)
    worker.stop_at_once()
    assert (await asyncio.wait_for(at_work, 15)).reason == "stopped"


async def test_plain_steps_do_not_keep_a_worker_from_leaving(
    database: str, conn: asyncpg.Connection
) -> None:
    app = new_app()

    @app.job(queue="q")
    async def work(job: Job) -> None:
        await job.step("slow", time.sleep, 20)

    await declare(database, app)
    await factory.submit_rows(conn, [{"kind": "work"}] * 12)
    worker = Worker(database, app.handlers(), Options(name="w"))
    at_work = asyncio.create_task(worker.run())

    async def running() -> bool:
        n = await conn.fetchval("select count(*) from penstock.job where status = 'running'")
        return bool(n > 11)

    await eventually(running, "all to run")
    worker.stop_at_once()
    await asyncio.wait_for(at_work, 8)


async def test_a_handler_has_time_to_clean_up(database: str, conn: asyncpg.Connection) -> None:
    app = new_app()
    cleaned = []

    @app.job(queue="q")
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1.5)
            cleaned.append(1)

    async with working(database, app):
        job = await factory.submit(conn, "work")

        async def running() -> bool:
            return await factory.status(conn, job) == "running"

        await eventually(running, "it to run")
        await conn.execute("select penstock.cancel_job($1)", job)
        [finished] = await until_finished(conn, [job])
    assert (finished["status"], cleaned) == ("cancelled", [1])


async def test_an_emitted_value_is_written_as_it_was_then(
    database: str, conn: asyncpg.Connection
) -> None:
    app = new_app()

    @app.job(queue="q")
    async def work(job: Job) -> None:
        emitted = {"n": 1}
        await job.emit(emitted)
        emitted["n"] = 2
        await job.emit(emitted)

    await declare(database, app)
    job = await factory.submit(conn, "work")
    await Worker(database, app.handlers(), Options(name="w", until_idle=True)).run()
    rows = await conn.fetch("select data from penstock.read_chunks($1)", job)
    assert [row["data"] for row in rows] == [{"n": 1}, {"n": 2}]


async def test_outcomes_of_many_locked_accounts_do_not_delay_others(
    database: str, conn: asyncpg.Connection, connect: Connect
) -> None:
    """Outcomes wait for the accounts, longer each time, and beside all other outcomes."""
    app = new_app()
    go_on = asyncio.Event()

    @app.job(queue="q", account="who", price=1)
    async def paid(who: str) -> None:
        assert who
        await go_on.wait()

    @app.job(queue="q", timeout="1s", attempts=1)
    async def free() -> None: ...

    names = [f"a{n}" for n in range(30)]
    for name in names:
        await conn.execute("select penstock.grant_credits($1, 1)", name)
    async with working(database, app):
        rows = [{"kind": "paid", "payload": {"who": name}} for name in names]
        jobs = await factory.submit_rows(conn, rows)

        async def running() -> bool:
            return bool(
                await conn.fetchval("select bool_and(status = 'running') from penstock.job")
            )

        await eventually(running, "all of them to run")
        held = await connect()
        async with held.transaction():
            await held.execute("select from penstock.account order by id for no key update")
            go_on.set()
            for _ in range(5):
                [finished] = await until_finished(conn, [await factory.submit(conn, "free")])
                assert finished["status"] == "succeeded"
        finished = await until_finished(conn, jobs)
    assert {row["status"] for row in finished} == {"succeeded"}
