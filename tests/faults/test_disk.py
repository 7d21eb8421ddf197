"""R-F9, R-F9b: disks that are full, slow or broken, under a server that reports commits."""

import asyncio
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from penstock.engine.engine import Engine
from penstock.engine.jobs.jobs import NewJob
from penstock.errors import Unavailable
from penstock.server import ANSWER_SECONDS
from support.servers.faulty_machines import (
    AGAIN_SECONDS,
    Ballast,
    Ground,
    ground,
    injected,
    need,
    supervised,
)
from support.shapes import Scale
from support.waiting import eventually

BACK_SECONDS = 10
# Beside other tests: a server first replays its WAL, which needs the processor.
BUSY_SECONDS = 40
SLOW_SECONDS = 0.5
HANG_SECONDS = 8
# A little free space on a full disk: some calls succeed, some do not.
CRUMBS = 200_000

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def tools() -> None:
    need("strace", "mount", root=True)


class Answers:
    """The answers to clients that kept submitting."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.codes: Counter[str] = Counter()
        self.slowest = 0.0
        self.soonest = float("inf")

    def hear(self, answer: httpx.Response, seconds: float) -> None:
        self.statuses[answer.status_code] += 1
        self.slowest = max(self.slowest, seconds)
        if answer.is_success:
            self.soonest = min(self.soonest, seconds)
        else:
            answers = answer.json()
            self.codes[answers["code"]] += 1
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["retry-after"]) >= 1, answers


async def submit_on(on: Ground, answers: Answers, seconds: float) -> None:
    """A client that submits again after any answer, each time with a new key."""
    ends = time.monotonic() + seconds
    async with on.client() as client:
        while time.monotonic() < ends:
            begun = time.monotonic()
            with suppress(httpx.TransportError):
                answers.hear(
                    await on.submit(client, uuid.uuid4().hex),
                    time.monotonic() - begun,
                )
            await asyncio.sleep(AGAIN_SECONDS / 10)


async def back(on: Ground, *, seconds: float = BUSY_SECONDS) -> float:
    """Wait until a submit succeeds again and its job has run; return after how many seconds."""
    begun = time.monotonic()
    async with on.client() as client:
        job = await on.insist(client, uuid.uuid4().hex, within=seconds)

        async def ran() -> bool:
            with suppress(httpx.TransportError):
                answer = await client.get(f"/v1/jobs/{job}")
                return answer.is_success and answer.json()["status"] == "succeeded"
            return False

        await eventually(ran, "a job runs", seconds=seconds, poll=AGAIN_SECONDS)
    return time.monotonic() - begun


async def test_a_full_disk_refuses_and_recovers(tmp_path: Path, scale: Scale) -> None:
    """R-F9b: 503 with the reason, for jobs and uploads; no acknowledged one is lost; recovery."""
    async with ground(tmp_path, disks={"base": 80}, settings={"autovacuum": "off"}) as on:
        await on.api.start()
        workers = [await on.crew.start(name) for name in ("one", "two")]
        ballast = Ballast(on.server.data / "base")
        answers = Answers()
        for leave in scale((0, CRUMBS), (0, CRUMBS) * 5):
            ballast.fill(leave=leave)
            await asyncio.gather(*(submit_on(on, answers, scale(2, 10)) for _ in range(4)))
            async with on.client() as client:
                answer = await client.post("/v1/uploads", files={"file": b"text " * 600_000})
            assert (answer.status_code, answer.json()["code"]) == (503, "disk_full")
            assert "disk is full" in answer.json()["detail"]
            ballast.drop()
            took = await back(on, seconds=scale(BUSY_SECONDS, BACK_SECONDS))
            print(f"disk full: {dict(answers.statuses)}, back after {took:.2f} s")
        assert set(answers.statuses) == {201, 503}
        assert set(answers.codes) == {"disk_full"}
        await on.drained()
        assert all(worker.popen.poll() is None for worker in workers)
        assert "Traceback" not in on.logs()


async def test_a_full_disk_of_the_log_stops_the_server_and_loses_nothing(
    tmp_path: Path, scale: Scale
) -> None:
    """R-F9b: Postgres stops; its supervisor restarts it, and all works when there is space."""
    async with ground(
        tmp_path,
        disks={"pg_wal": 64},
        settings={"min_wal_size": "32MB", "max_wal_size": "48MB"},
    ) as on:
        await on.api.start()
        await on.crew.start("one")
        ballast = Ballast(on.server.data / "pg_wal")
        for _ in range(scale(1, 5)):
            answers = Answers()
            async with supervised(on.server):
                await back(on)
                ballast.fill()
                clients = asyncio.gather(*(submit_on(on, answers, scale(3, 15)) for _ in range(4)))
                await _write_log(on)
                await clients
                ballast.drop()
                took = await back(on, seconds=scale(BUSY_SECONDS, BACK_SECONDS))
            print(f"log full: {dict(answers.statuses)}, back after {took:.2f} s")
            assert answers.statuses[503]
            assert set(answers.statuses) <= {201, 503}
        assert "No space left on device" in on.server.log.read_text()
        await on.drained()
        assert "Traceback" not in on.logs()


async def _write_log(on: Ground) -> None:
    """Write more WAL than there is space for, until the server stops."""
    with suppress(Exception):
        conn = await on.fresh()
        await conn.execute("create table if not exists ballast (pad text)")
        for _ in range(100):
            await conn.execute(
                "insert into ballast select repeat('x', 1000) from generate_series(1, 5000)"
            )
            await conn.execute("select pg_switch_wal()")


async def test_a_slow_disk_answers_late_and_never_early(tmp_path: Path, scale: Scale) -> None:
    """R-F9: no job is acknowledged before its commit is on disk; then the queue drains."""
    async with ground(tmp_path, settings={"wal_sync_method": "fdatasync"}) as on:
        await on.api.start()
        await on.crew.start("one")
        await back(on)
        answers = Answers()
        slow = f"fdatasync:delay_enter={int(SLOW_SECONDS * 1e6)}"
        async with injected(sorted(on.server.processes()), slow):
            await asyncio.gather(*(submit_on(on, answers, scale(3, 30)) for _ in range(4)))
        took = await back(on)
        print(
            f"slow disk: {dict(answers.statuses)}, {answers.soonest:.2f} to {answers.slowest:.2f} s"
        )
        print(f"slow disk: back after {took:.2f} s")
        assert answers.statuses[201] > 0
        assert answers.soonest >= SLOW_SECONDS
        await on.drained(seconds=60)
        assert "Traceback" not in on.logs()


async def test_only_workers_see_a_job_before_it_is_on_disk(tmp_path: Path) -> None:
    """R-F9: the caller that repeats its submit and the handler must wait; then the server dies."""
    job = NewJob(kind="nap", payload={"seconds": 0.0})
    async with ground(tmp_path, settings={"wal_sync_method": "fdatasync"}) as on:
        await on.crew.start("one")
        hints: list[object] = []
        await on.conn.add_listener("penstock_job", lambda *answers: hints.append(answers[-1]))
        async with await Engine.open(on.server.dsn) as engine:
            # Two connections, and the worker's.
            await asyncio.gather(*(engine.jobs.submit(job, wake="q") for _ in range(2)))
            await on.crew.until_noted("start", 2)
            hints.clear()
            hangs = f"fdatasync:delay_enter={int(HANG_SECONDS * 1e6)}"
            async with injected(sorted(on.server.processes()), hangs):
                calls = [
                    asyncio.create_task(engine.jobs.submit(job, idempotency_key="k", wake="q"))
                ]
                await eventually(lambda: _is_there(on, hints), "a hint, and its job", poll=0.02)
                calls.append(asyncio.create_task(engine.jobs.submit(job, idempotency_key="k")))
                await eventually(lambda: _wait(on, 3), "two submits and a claim wait", poll=0.02)
                assert not any(call.done() for call in calls)
                assert len(on.crew.noted("start")) == 2
                on.server.kill()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(one) for one in answers] == [Unavailable, Unavailable]
            on.server.start()
            await engine.jobs.submit(job, idempotency_key="k", wake="q")
            await on.crew.until_noted("start", 3)
        await on.drained(seconds=BUSY_SECONDS)
        assert len(on.crew.noted("start")) == 3


async def _wait(on: Ground, n: int) -> bool:
    """Return whether so many sessions wait for the disk."""
    waiting = await on.conn.fetchval(
        "select count(*) from pg_stat_activity where wait_event ilike 'wal%'"
        " and query ~ 'submit_waking|submit_one|claim_jobs'"
    )
    return bool(waiting == n)


async def _is_there(on: Ground, hints: list[object]) -> bool:
    return bool(hints and await on.conn.fetchval("select count(*) from penstock.job"))


async def test_a_broken_disk_loses_no_acknowledged_job(tmp_path: Path, scale: Scale) -> None:
    """R-F9: Postgres does not trust a disk that has failed once: it stops, and recovers."""
    async with ground(tmp_path, settings={"wal_sync_method": "fdatasync"}) as on:
        await on.api.start()
        await on.crew.start("one")
        for _ in range(scale(1, 10)):
            answers = Answers()
            async with supervised(on.server):
                clients = asyncio.gather(*(submit_on(on, answers, 4) for _ in range(4)))
                await asyncio.sleep(1)
                postmaster = on.server.pid
                others = sorted(on.server.processes() - {postmaster})
                async with injected(others, "fdatasync:error=EIO"):
                    await eventually(lambda: _panicked(on), "it ends itself", poll=0.02)
                await clients
                took = await back(on)
            print(f"broken disk: {dict(answers.statuses)}, back after {took:.2f} s")
            assert set(answers.statuses) <= {201, 503}
        await on.drained()
        assert "Traceback" not in on.logs()


async def _panicked(on: Ground) -> bool:
    return "PANIC" in on.server.log.read_text()


@pytest.mark.faults
async def test_a_hanging_disk_is_reported_in_time_and_the_key_stays_valid(tmp_path: Path) -> None:
    """R-F9: 503 at the API's deadline; the commit succeeds later, and the key returns the job."""
    async with ground(tmp_path, settings={"wal_sync_method": "fdatasync"}) as on:
        await on.api.start()
        await on.crew.start("one")
        await back(on)
        hangs = f"fdatasync:delay_enter={int(2 * ANSWER_SECONDS * 1e6)}"
        async with on.client() as client:
            async with injected(sorted(on.server.processes()), hangs):
                begun = time.monotonic()
                answer = await on.submit(client, "hangs")
                took = time.monotonic() - begun
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                assert took < ANSWER_SECONDS + BACK_SECONDS
                print(f"a disk that hangs: answer after {took:.2f} s")
            await on.insist(client, "hangs", within=60)
        await on.drained(seconds=60)
        assert await _count(on) == 2


async def _count(on: Ground) -> int:
    conn = await on.fresh()
    n: int = await conn.fetchval("select count(*) from penstock.finished")
    return n
