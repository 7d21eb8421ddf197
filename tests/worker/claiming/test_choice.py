"""Which jobs a worker takes, how many at once, and which it leaves to others."""

import asyncio
import threading
import time
from datetime import timedelta
from pathlib import Path
from resource import getpagesize
from typing import Any

import asyncpg
import pytest

from penstock import Job, Penstock, Retries
from penstock.errors import Misconfigured
from penstock.worker.worker import Options, Worker
from support.factory import plan, read, submit, submit_rows
from support.servers.pooler import pooled
from support.shapes import Scale
from support.worker.crew import declare, submit_many, until_finished, working


class Meter:
    """Counts how many handlers run, and how many ran at most."""

    def __init__(self) -> None:
        self.most = 0
        self._inside = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1


async def test_never_more_at_once_than_its_slots(database: str, conn: asyncpg.Connection) -> None:
    """E9: coroutines and functions of one queue, and of another beside it."""
    app = Penstock(name="slots")
    app.queue("mixed")
    app.queue("other")
    coroutines, functions = Meter(), Meter()

    @app.job(queue="mixed")
    async def coroutine() -> None:
        with coroutines:
            await asyncio.sleep(0.002)

    @app.job(queue="mixed")
    def function() -> None:
        with functions:
            time.sleep(0.002)

    @app.job(queue="other")
    async def beside() -> None:
        with coroutines:
            await asyncio.sleep(0.002)

    async with working(database, app, concurrency=7, threads=3):
        jobs = []
        for kind in app.kinds:
            jobs += await submit_many(conn, kind, 60, {})
        rows = await until_finished(conn, jobs)
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 1)}
    assert (coroutines.most, functions.most) == (7, 3)


async def test_one_at_a_time_over_all_workers(database: str, conn: asyncpg.Connection) -> None:
    """M3: a queue of concurrency 1 runs strictly one job at a time."""
    app = Penstock(name="one")
    app.queue("one", concurrency=1)
    meter = Meter()

    @app.job(queue="one")
    async def mark() -> None:
        with meter:
            await asyncio.sleep(0.001)

    async with (
        working(database, app, name="a", poll=0.05),
        working(database, app, name="b", poll=0.05),
    ):
        rows = await until_finished(conn, await submit_many(conn, "mark", 40, {}))
    assert {row["attempt"] for row in rows} == {1}
    assert meter.most == 1


async def test_a_job_that_finishes_lets_the_next_one_start(
    database: str, conn: asyncpg.Connection
) -> None:
    """F1, M3: also if the queue was found full in between; the poll would come much later."""
    app = Penstock(name="next")
    app.queue("one", concurrency=1, retry=Retries(attempts=2, backoff="constant", delay="0s"))
    begun: asyncio.Queue[int] = asyncio.Queue()

    @app.job(queue="one")
    async def generate(job: Job) -> None:
        begun.put_nowait(job.attempt)
        await asyncio.sleep(0.05)
        if job.attempt == 1:
            raise RuntimeError

    async with working(database, app, poll=30):
        jobs = [await submit(conn, "generate")]
        await begun.get()
        for _ in range(4):
            jobs.append(await submit(conn, "generate"))  # wakes the worker, which finds it full
            await asyncio.sleep(0.005)
        rows = await until_finished(conn, jobs, seconds=10)
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 2)}


async def test_a_kind_without_a_handler_waits_for_a_worker_that_has_one(
    database: str, conn: asyncpg.Connection
) -> None:
    """E9: it is not claimed, and `waiting_for` says why."""
    ours, theirs = Penstock(name="ours"), Penstock(name="theirs")
    for app in (ours, theirs):
        app.queue("q")

    @ours.job(queue="q")
    async def known() -> str:
        return "ours"

    @theirs.job(queue="q")
    async def strange() -> str:
        return "theirs"

    await declare(database, theirs)
    async with working(database, ours, name="ours"):
        job = await submit(conn, "strange")
        await until_finished(conn, [await submit(conn, "known")])
        row = await read(conn, job)
        assert (row["status"], row["attempt"]) == ("queued", 0)
        assert row["waiting_for"] == "no_handler"
    async with working(database, theirs, name="theirs"):
        [row] = await until_finished(conn, [job])
    assert (row["result"], row["attempt"]) == ("theirs", 1)


@pytest.mark.alone
@pytest.mark.parametrize(("account", "old"), [(False, 40), (True, 300)])
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_jobs_of_a_removed_kind_delay_no_others(
    database: str, conn: asyncpg.Connection, concurrency: int, account: bool, old: int
) -> None:
    """D1, M3, G6: five known jobs behind many of a removed kind start within 2 s of the worker."""
    app = Penstock(name="app")
    app.queue("q", concurrency=concurrency)

    @app.job(queue="q")
    async def known() -> None:
        await asyncio.sleep(0.05)

    await declare(database, app)
    await conn.execute("select penstock.declare_kind('removed', 'q')")
    await plan(conn, concurrency=1)
    names = [f"a{n}" for n in range(old)] if account else [None] * old
    await submit_rows(conn, [{"kind": "removed", "account": name} for name in names])
    jobs = await submit_rows(conn, [{"kind": "known", "account": name} for name in names[:5]])
    async with working(database, app):
        rows = await until_finished(conn, jobs, seconds=10)
        [waiting] = await conn.fetch("select * from penstock.list_unhandled() u (row)")
    begun = await conn.fetchval("select started_at from penstock.worker")
    assert max(row["started_at"] for row in rows) - begun < timedelta(seconds=2)
    assert await conn.fetchval("select max(attempt) from penstock.job") == 0
    assert waiting["row"]["kind"] == "removed"
    assert waiting["row"]["jobs"] == old


async def test_a_kind_that_moved_to_its_queue_from_another_runs_too(
    database: str, conn: asyncpg.Connection
) -> None:
    """A newer version of the app has declared it there; one of the kinds has its own slots."""
    app = Penstock(name="moving")
    app.queue("q")
    app.queue("other")

    @app.job(queue="q")
    async def stays() -> None:
        return

    @app.job(queue="other")
    async def moves() -> None:
        return

    @app.job(queue="other")
    def moves_apart() -> None:
        return

    async with working(database, app, queues=("q",)):
        await conn.execute(
            "select penstock.declare_kind(k.name, 'q', k.declared - 'queue', k.declared_by)"
            " from penstock.kind k where k.name ~ 'moves'"
        )
        for kind in ("moves", "moves_apart", "stays"):
            await until_finished(conn, [await submit(conn, kind)])


async def test_only_the_queues_that_it_is_given(database: str, conn: asyncpg.Connection) -> None:
    """E9: and a queue without a handler is refused at once."""
    app = Penstock(name="queues")
    for name in ("a", "b"):
        app.queue(name)

        @app.job(queue=name, name=name)
        async def run() -> None:
            return

    await declare(database, app)
    jobs = [await submit(conn, name) for name in ("a", "b")]
    async with working(database, app, queues=("a",), until_idle=True) as here:
        assert (await here.ran()).processed == 1
    assert [(await read(conn, job))["status"] for job in jobs] == ["succeeded", "queued"]
    with pytest.raises(
        Misconfigured, match="The app declares no job kind for queue c; its queues are a, b"
    ):
        await Worker(database, app.handlers(), Options(name="w", queues=("c",))).run()


async def test_suspects_run_one_after_the_other(database: str, conn: asyncpg.Connection) -> None:
    """E12: beside jobs that are not suspect; short ones need not pause."""
    app = Penstock(name="suspects")
    app.queue("q", timeout="10m")
    suspects, others = Meter(), Meter()

    @app.job(queue="q")
    async def run(job: Job, suspect: bool) -> int:
        with suspects if suspect else others:
            await asyncio.sleep(0.005)
        return job.attempt

    await declare(database, app)
    jobs = [await submit(conn, "run", payload={"suspect": n < 10}) for n in range(20)]
    await conn.execute("update penstock.job set losses = 2 where payload -> 'suspect' = 'true'")
    async with working(database, app):
        rows = await until_finished(conn, jobs)
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 1)}
    assert suspects.most == 1
    assert others.most > 1


async def test_behind_a_pooler_of_transactions_it_does_not_start(database: str) -> None:
    """E9: its sessions would be another client's; the error says what to do."""
    app = Penstock(name="pooled")
    app.queue("q")

    @app.job(queue="q")
    async def run() -> None:
        return

    async with pooled(database) as dsn:
        with pytest.raises(Misconfigured, match="use the address of the server itself"):
            await Worker(dsn, app.handlers(), Options(name="w")).run()


@pytest.mark.alone
@pytest.mark.timeout(180)
async def test_thousands_of_jobs_await_at_once_in_one_worker(
    database: str, conn: asyncpg.Connection, scale: Scale, record_property: Any
) -> None:
    """E9, E15: waiting costs neither memory nor CPU time."""
    app = Penstock(name="many")
    app.queue("q", timeout="5m")
    many = scale(1_000, 5_000)
    seconds = scale(0.0, 30.0)
    meter = Meter()
    all_inside = asyncio.Event()

    @app.job(queue="q")
    async def wait(job: Job) -> int:
        with meter:
            if meter.most == many:
                all_inside.set()
            await all_inside.wait()
            await asyncio.sleep(seconds)
        return job.attempt

    async with working(database, app, concurrency=many):
        jobs = await submit_many(conn, "wait", many, {})
        async with asyncio.timeout(30):
            await all_inside.wait()
        used, begun, memory = time.process_time(), time.monotonic(), _resident_bytes() / 2**20
        rows = await until_finished(conn, jobs, seconds=seconds + 30)
    share = (time.process_time() - used) / (time.monotonic() - begun)
    print(f"{many} jobs at once: {memory:.0f} MiB, {share:.2f} of a core")
    record_property("memory_mebibytes", round(memory))
    record_property("core_share", round(share, 2))
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 1)}
    assert meter.most == many
    assert memory < 600
    if seconds:
        assert share < 0.5


def _resident_bytes() -> int:
    """Of this process, including the test's own memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()
