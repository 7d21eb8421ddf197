"""Everything stops in the middle of its work, and goes on from there."""

import asyncio
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from penstock.db.connections.connect import open_connection
from penstock.db.embedded.database import Embedded
from penstock.db.schema import migrations
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Error, Retry, Succeeded
from penstock.engine.jobs.jobs import NewJob

DEADLINE_SECONDS = 20


async def work_a_little(dsn: str) -> list[UUID]:
    """Three jobs: one succeeded, one is backing off after an error, one still runs."""
    conn = await open_connection(dsn)
    await migrations.up(conn)
    await conn.close()
    async with await Engine.open(dsn) as engine:
        await engine.queues.declare("q", concurrency=1)
        await engine.queues.declare_kind("mark", "q")
        jobs = [NewJob(kind="mark", payload={"essay": n}) for n in range(3)]
        tickets = await engine.jobs.submit_many(jobs)
        # So short that it has expired before any check.
        worker = await engine.workers.register("w", lease=timedelta(milliseconds=1))
        for outcome in (Succeeded({"score": 7}), Retry(Error("timeout", "too slow"))):
            [job] = await engine.jobs.claim(worker, "q", 1)
            await engine.jobs.finish(worker, [(job, outcome)])
        assert len(await engine.jobs.claim(worker, "q", 1)) == 1
        return [ticket.id for ticket in tickets]


def crash(home: Path) -> None:
    """A power failure: no session is closed properly, nothing more is written."""
    postmaster = int((home / "postgres" / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGQUIT)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while Path(f"/proc/{postmaster}").exists():
        assert time.monotonic() < deadline, "the server does not stop"
        os.sched_yield()


async def test_the_queue_goes_on_after_a_crash_of_everything(tmp_path: Path) -> None:
    """M2, F6, F11: jobs are rows in one Postgres, which has them after a restart."""
    home = tmp_path / "home"
    server = await asyncio.to_thread(Embedded.use, home)
    jobs = await work_a_little(server.dsn)
    await asyncio.to_thread(crash, home)
    await asyncio.to_thread(server.leave)

    server = await asyncio.to_thread(Embedded.use, home)
    async with await Engine.open(server.dsn) as engine:
        done, backing_off, was_running = [await engine.jobs.read(job) for job in jobs]
        assert (done["status"], done["result"]) == ("succeeded", {"score": 7})
        assert (backing_off["status"], backing_off["failures"]) == ("scheduled", 1)
        assert backing_off["error"]["message"] == "too slow"
        assert (was_running["status"], was_running["attempt"]) == ("running", 1)

        [recovered] = await engine.upkeep.recover()
        assert (recovered.job_id, recovered.status) == (jobs[2], "queued")
        await engine.jobs.retry(jobs[1])  # now, instead of in five minutes
        worker = await engine.workers.register("w")
        for _ in range(2):
            [job] = await engine.jobs.claim(worker, "q", 1)
            assert job.attempt == 2
            await engine.jobs.finish(worker, [(job, Succeeded(job.payload))])
        finished = [await engine.jobs.read(job) for job in jobs]
        assert [job["status"] for job in finished] == ["succeeded"] * 3
        assert [job["result"] for job in finished[1:]] == [{"essay": 1}, {"essay": 2}]
        assert await engine.upkeep.check() == []
    await asyncio.to_thread(server.leave)
