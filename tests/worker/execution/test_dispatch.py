"""Jobs handed to outside functions, by real workers: repeated, late or missing results."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock import Job, Misconfigured, Penstock
from penstock.client.config.toml import load
from penstock.engine.engine import Engine
from penstock.engine.jobs.callbacks import Callbacks
from penstock.engine.jobs.on_finish import FinishedJob
from penstock.errors import Unavailable
from penstock.security import callback_token
from penstock.security.roots import Roots
from penstock.worker.worker import Options, Worker
from support import factory
from support.clock import Clock
from support.models.answering import closed_port
from support.signing import SECRET
from support.waiting import eventually
from support.worker.crew import declare, outcomes, until_finished, working
from support.worker.outside import Function, call_back, function

TOML = """
[queues.q]
concurrency = {concurrency}
retry = {{ attempts = 3, backoff = "constant", delay = 0 }}
[jobs.f]
queue = "q"
handler = "dispatch"
url = "{url}"
fields = {{ n = "int" }}
timeout = "{timeout}"
answer_timeout = "{answer}"
"""

Made = Callable[..., Penstock]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)
    monkeypatch.delenv("PENSTOCK_PUBLIC_URL", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def outside() -> AsyncIterator[Function]:
    async with function() as made:
        yield made


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    async with await Engine.open(database, max_connections=2) as engine:
        yield engine


@pytest.fixture
def made(tmp_path: Path, database: str) -> Made:
    def make(
        url: str, *, concurrency: int = 4, timeout: str = "1m", answer: str = "5s"
    ) -> Penstock:
        path = tmp_path / "penstock.toml"
        path.write_text(
            TOML.format(url=url, concurrency=concurrency, timeout=timeout, answer=answer)
        )
        app = load(path)
        app._dsn = database  # as PENSTOCK_DSN would do
        return app

    return make


async def submit(conn: asyncpg.Connection, n: int = 1) -> UUID:
    return await factory.submit(conn, "f", payload={"n": n})


async def until_status(conn: asyncpg.Connection, job: UUID, *wanted: str) -> dict[str, Any]:
    async def there() -> bool:
        return await factory.status(conn, job) in wanted

    await eventually(there, f"the job is {' or '.join(wanted)}")
    return await factory.read(conn, job)


async def test_a_job_is_dispatched_and_finishes_with_its_callback(
    database: str, conn: asyncpg.Connection, made: Made, outside: Function, engine: Engine
) -> None:
    """M3, M5: its queue's only slot is taken until then, the worker's slot is free."""
    app = made(outside.url, concurrency=1)
    other = app.queue("other")

    @app.job(queue=other, name="plain")
    async def plain() -> str:
        return "ran"

    async with working(database, app, concurrency=1):
        job = await submit(conn)
        sent = await outside.until_taken()
        shown = await until_status(conn, job, "awaiting")
        assert (shown["stage"], shown["waiting_for"]) == ("outside", "callback")
        assert sent["expires_at"] == shown["timeout_at"]
        assert sent["callback_url"] == f"http://127.0.0.1:8484/v1/callbacks/{job}"
        second = await submit(conn, 2)
        # The worker has one slot for async jobs, in which this one runs.
        [ran] = await until_finished(conn, [await factory.submit(conn, "plain")])
        assert ran["result"] == "ran"
        assert (await factory.read(conn, second))["status"] == "queued"
        assert await call_back(engine, sent, result={"image": 1}) == "accepted"
        [finished] = await until_finished(conn, [job])
        assert (finished["status"], finished["result"]) == ("succeeded", {"image": 1})
        await outside.until_taken(2)
    assert await outcomes(conn, job) == ["succeeded"]


async def test_the_base_of_the_callback_address_is_configured(
    database: str,
    conn: asyncpg.Connection,
    made: Made,
    outside: Function,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M6"""
    monkeypatch.setenv("PENSTOCK_PUBLIC_URL", "https://tunnel.example.org/queue/")
    async with working(database, made(outside.url)):
        job = await submit(conn)
        sent = await outside.until_taken()
    assert sent["callback_url"] == f"https://tunnel.example.org/queue/v1/callbacks/{job}"


async def test_a_callback_may_come_before_the_answer(
    database: str, conn: asyncpg.Connection, made: Made, outside: Function, engine: Engine
) -> None:
    reports: list[str] = []

    async def call_back_first(job: dict[str, Any]) -> int:
        reports.append(await call_back(engine, job, result=7))
        return 500  # and even then

    outside.answer = call_back_first
    async with working(database, made(outside.url)):
        job = await submit(conn)
        [finished] = await until_finished(conn, [job])
    assert (reports, finished["status"], finished["result"]) == (["accepted"], "succeeded", 7)
    assert await outcomes(conn, job) == ["succeeded"]
    assert len(outside.taken) == 1


async def test_a_function_that_took_it_and_did_not_answer_in_time(
    database: str, conn: asyncpg.Connection, made: Made, outside: Function, engine: Engine
) -> None:
    outside.answer = outside.hang
    async with working(database, made(outside.url, answer="0.3s")) as here:
        job = await submit(conn)
        sent = await outside.until_taken()

        async def close_in_background() -> bool:
            return not here.worker._attempts

        await eventually(close_in_background, "the worker has dispatched it")
        assert await factory.status(conn, job) == "awaiting"
        assert await call_back(engine, sent) == "accepted"
        await until_finished(conn, [job])
    assert len(outside.taken) == 1


async def test_an_unavailable_function_costs_nothing_and_gets_its_job_later(
    database: str, conn: asyncpg.Connection, made: Made, engine: Engine
) -> None:
    """F5: the function cannot be reached at first; then it can."""
    port = closed_port()
    async with working(database, made(f"http://127.0.0.1:{port}/f")):
        jobs = [await submit(conn, n) for n in range(4)]

        async def is_open() -> bool:
            state = await conn.fetchval("select state from penstock.circuit where state = 'open'")
            return bool(state)

        await eventually(is_open, "the circuit is open")
        for job in jobs:
            shown = await factory.read(conn, job)
            assert shown["failures"] == 0
            assert shown["status"] in ("queued", "scheduled", "running", "awaiting")

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            sent = json.loads(await reader.readexactly(length))
            writer.write(b"HTTP/1.1 202 Taken\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
            writer.close()
            await call_back(engine, sent)

        server = await asyncio.start_server(answer, "127.0.0.1", port)
        rows = await until_finished(conn, jobs, seconds=30)
        server.close()
    assert {(row["status"], row["failures"]) for row in rows} == {("succeeded", 0)}


async def test_a_refused_job_fails_and_another_failure_is_tried_again(
    database: str, conn: asyncpg.Connection, made: Made, outside: Function, engine: Engine
) -> None:
    async def refuse(_: dict[str, Any]) -> int:
        return 422

    outside.answer = refuse
    async with working(database, made(outside.url)):
        [finished] = await until_finished(conn, [await submit(conn)])
        assert (finished["status"], finished["error"]["class"]) == ("failed", "invalid_request")

        async def stumble(_: dict[str, Any]) -> int:
            return 500 if len(outside.taken) < 3 else 202

        outside.answer = stumble
        job = await submit(conn)
        first = await outside.until_taken(2)
        second = await outside.until_taken(3)
        assert (first["attempt"], second["attempt"]) == (1, 2)
        assert first["token"] != second["token"]
        # Too late: the worker had taken the job back.
        assert await call_back(engine, first, result="old") == "stale"
        assert await call_back(engine, second, result="new") == "accepted"
        [finished] = await until_finished(conn, [job])
    assert finished["result"] == "new"
    assert await outcomes(conn, job) == ["retried", "succeeded"]
    assert (
        await conn.fetchval("select result from penstock.late_result where job_id = $1", job)
        == "old"
    )


def worker_process(database: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", "penstock.toml"],
        env={**os.environ, "PENSTOCK_DSN": database},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


async def test_a_worker_that_dies_in_between_leaves_a_job_that_awaits(
    *,
    database: str,
    conn: asyncpg.Connection,
    clock: Clock,
    made: Made,
    outside: Function,
    engine: Engine,
) -> None:
    """M3: killed after the hand-over, before the answer; the attempt counts, and it goes on."""
    outside.answer = outside.hang
    app = made(outside.url, timeout="5m", answer="60s")
    await declare(database, app)
    worker = worker_process(database)
    try:
        job = await submit(conn)
        await eventually(lambda: until_handed(conn, job), "it was handed over", seconds=20)
    finally:
        worker.kill()
        worker.wait(10)
    outside.answer = outside.take
    old = callback_token.make(Roots((SECRET,)), job, 1)
    async with working(database, app):
        # Its worker is lost, but the job is not: it awaits its callback.
        await eventually(
            lambda: conn.fetchval(
                "select count(*) > 0 from penstock.worker where lost_at is not null"
            ),
            "the dead worker is declared lost",
            seconds=20,
        )
        assert await factory.status(conn, job) == "awaiting"
        await clock.advance("6m", beats=True)
        # The first call may have arrived as well: the worker died before or after it.
        again = await outside.until_taken_as(2)
        assert await call_back(engine, {**again, "attempt": 1, "token": old}) == "stale"
        assert await call_back(engine, again, result="in time") == "accepted"
        [finished] = await until_finished(conn, [job])
    assert (finished["failures"], finished["result"]) == (1, "in time")
    rows = await conn.fetch("select error from penstock.attempt where job_id = $1", job)
    assert [row["error"]["class"] for row in rows] == ["no_callback"]


async def until_handed(conn: asyncpg.Connection, job: UUID) -> bool:
    return await factory.status(conn, job) == "awaiting"


async def test_a_hand_over_whose_answer_is_lost_happens_once(
    *,
    database: str,
    conn: asyncpg.Connection,
    made: Made,
    outside: Function,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection broke after the commit: the function is called anyway."""
    hand_over = Callbacks.hand_over
    lost: list[str] = []

    async def lose(self: Callbacks, *args: Any) -> str:
        verdict = await hand_over(self, *args)
        if not lost:
            lost.append(verdict)
            raise Unavailable("the connection is gone")
        return verdict

    monkeypatch.setattr(Callbacks, "hand_over", lose)
    async with working(database, made(outside.url)):
        job = await submit(conn)
        assert await call_back(engine, await outside.until_taken()) == "accepted"
        await until_finished(conn, [job])
    assert (lost, len(outside.taken)) == (["done"], 1)


async def test_a_worker_that_leaves_does_not_take_back_a_job_that_may_run_outside(
    database: str, conn: asyncpg.Connection, made: Made, outside: Function, engine: Engine
) -> None:
    outside.answer = outside.hang
    async with working(database, made(outside.url)):
        job = await submit(conn)
        sent = await outside.until_taken()
    assert await factory.status(conn, job) == "awaiting"
    assert await call_back(engine, sent) == "accepted"


async def test_a_cancelled_job_frees_its_slots(
    database: str, conn: asyncpg.Connection, made: Made, outside: Function, engine: Engine
) -> None:
    async with working(database, made(outside.url, concurrency=1)):
        job = await submit(conn)
        sent = await outside.until_taken()
        await until_status(conn, job, "awaiting")
        await conn.execute("select penstock.cancel_job($1)", job)
        shown = await until_status(conn, job, "cancelled")
        assert await call_back(engine, sent, result="too late") == "duplicate"
        await submit(conn)
        await outside.until_taken(2)
    assert shown["error"]["class"] == "cancelled"
    kept = await conn.fetchval("select result from penstock.late_result where job_id = $1", job)
    assert kept == "too late"


async def test_on_finish_is_called_after_a_callback(
    database: str, conn: asyncpg.Connection, made: Made, outside: Function, engine: Engine
) -> None:
    app = made(outside.url)
    reports: list[tuple[str, Any]] = []

    @app.kinds["f"].on_finish
    async def store(job: FinishedJob, conn: asyncpg.Connection) -> None:
        assert await conn.fetchval("select 1") == 1
        reports.append((job.status, job.result))

    async with working(database, app):
        await submit(conn)
        await call_back(engine, await outside.until_taken(), result=3)

        async def heard() -> bool:
            return bool(reports)

        await eventually(heard, "on_finish was called")
    assert reports == [("succeeded", 3)]


async def test_a_handler_may_hand_over_its_job(
    database: str, conn: asyncpg.Connection, engine: Engine
) -> None:
    app = Penstock(database, name="tests")
    queue = app.queue("q")
    given: list[Any] = []

    @app.job(queue=queue)
    async def render(n: int, job: Job) -> None:
        await job.progress(1, 2)
        given.append(await job.hand_over())
        if n == 2:
            raise RuntimeError("the call failed")
        with pytest.raises(Exception, match="was dispatched"):
            await job.progress(2, 2)

    async with working(database, app):
        first = await factory.submit(conn, "render", payload={"n": 1})
        shown = await until_status(conn, first, "awaiting")
        assert shown["progress"]["done"] == 1
        dispatched = {"job_id": str(first), "attempt": 1, "token": given[0].token}
        assert await call_back(engine, dispatched, result="done") == "accepted"
        second = await factory.submit(conn, "render", payload={"n": 2})
        shown = await until_status(conn, second, "scheduled")
    assert (shown["failures"], shown["error"]["class"]) == (1, "bug")
    assert given[0].expires_at.tzinfo is not None


async def test_without_a_secret_a_worker_refuses_to_start(
    database: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_SECRET")
    app = made("http://127.0.0.1:1/f")
    with pytest.raises(Misconfigured, match="PENSTOCK_SECRET is not set"):
        await Worker(database, app.handlers(), Options(name="w")).run()


async def test_progress_postpones_when_it_counts_as_stuck(
    conn: asyncpg.Connection, clock: Clock, engine: Engine
) -> None:
    """R-S29: only a report of the attempt that awaits."""
    await factory.queue(conn, timeout_seconds=3600, stuck_after_seconds=60)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    [start] = await factory.claim(conn, worker)
    token = "a token of some length"  # noqa: S105  # of a job of this test
    sent = {"job_id": str(job), "attempt": 1, "token": token}
    assert await call_back(engine, sent, "progress") == "invalid"  # not dispatched yet
    await factory.hand_over(conn, worker, start, token)
    for done in range(1, 5):
        await clock.advance("50s")
        fields = {"progress": {"done": done, "total": 4, "partial": None}, "stage": f"S{done}"}
        assert await call_back(engine, sent, "progress", units=done, **fields) == "accepted"
        assert await factory.recover(conn) == []
    shown = await factory.read(conn, job)
    assert (shown["progress"]["done"], shown["stage"], shown["status"]) == (4, "S4", "awaiting")
    wrong = {**sent, "token": "some other token here"}
    assert await call_back(engine, wrong, "progress") == "invalid"
    await clock.advance("61s")
    [row] = await factory.recover(conn)
    assert row["outcome"] == "stuck"
    assert await call_back(engine, sent, "progress") == "stale"
