"""What do thousands of jobs cost that only wait, in one worker process? (Linux only)

Calls to models are like that: seconds of waiting. CPU is counted from when all of them run until
shortly before the first one finishes; memory at its peak, including the time when they finish. For
comparison: the same process when it was idle.
"""

import asyncio
import time

from app import build
from penstock.db.embedded.database import Embedded
from report import Found, Line, Rounds
from server import connection, fresh, until
from throughput import ALL_DONE
from worker_process import worker_process

IDLE_SECONDS = 3.0
_POLL_SECONDS = 0.1
_ALL_RUN = "select count(*) = $1 from penstock.job where status = 'running'"


async def waiting(running: Embedded, *, quick: bool) -> Found:
    """Memory and CPU of a worker whose jobs all wait."""
    jobs, seconds = (500, 5.0) if quick else (5_000, 30.0)
    async with fresh(running) as dsn:
        app = build(dsn)
        conn = await connection(dsn)
        await app.engine()
        async with worker_process(dsn, conn, "--concurrency", str(jobs)) as worker:
            idle_from, idle_at = worker.cpu_seconds(), time.monotonic()
            await asyncio.sleep(IDLE_SECONDS)
            idle = (worker.cpu_seconds() - idle_from) / (time.monotonic() - idle_at)
            idle_mb = worker.memory_mb()

            began, begun_from = time.monotonic(), worker.cpu_seconds()
            await app.kinds["wait"].submit_many({"seconds": seconds} for _ in range(jobs))
            submitted = time.monotonic()
            await until(conn, _ALL_RUN, jobs, seconds=seconds, every=_POLL_SECONDS)
            from_cpu, at = worker.cpu_seconds(), time.monotonic()
            start_seconds, start_cpu = at - submitted, from_cpu - begun_from
            # The first job started after `began`, so none finishes before this.
            await asyncio.sleep(began + seconds - 0.5 - at)
            busy = (worker.cpu_seconds() - from_cpu) / (time.monotonic() - at)
            waiting_mb = worker.memory_mb()
            last_cpu, last_at = worker.cpu_seconds(), time.monotonic()
            await until(conn, ALL_DONE, seconds=60, every=_POLL_SECONDS)
            end_cpu, end_seconds = worker.cpu_seconds() - last_cpu, time.monotonic() - last_at
            peak_mb = worker.memory_mb(peak=True)
        succeeded = await conn.fetchval(
            "select count(*) from penstock.finished where status = 'succeeded' and attempt = 1"
        )
        assert succeeded == jobs, f"{succeeded} jobs succeeded at their first attempt, not {jobs}"
        await app.close()
        await conn.close()
    rounds: Rounds = {
        "idle cores": [idle],
        "idle MB": [idle_mb],
        "waiting cores": [busy],
        "waiting MB": [waiting_mb],
        "peak MB": [peak_mb],
        "all started after, s": [start_seconds],
        "CPU to start all, s": [start_cpu],
        "CPU to finish all, s": [end_cpu],
        "all finished within, s": [end_seconds],
    }
    what = f"{jobs:,} jobs that wait {seconds:g} s, one process:"
    return Found(
        [
            Line(
                f"{what} peak", peak_mb, "MB", idle_mb, "idle worker", 600, of="ours", least=False
            ),
            Line(f"{what} CPU", busy, "core", idle, "idle worker", 0.5, of="ours", least=False),
        ],
        rounds,
    )
