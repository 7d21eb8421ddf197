"""How soon are the jobs of a killed worker running again in another one?

One worker process has 50 running jobs, another is idle. Measured is the time from just before
`kill -9` of the first to the first line of the last handler that runs again. Each round is at
another moment between two passes of upkeep. For comparison: when Postgres has closed the dead
worker's last session.
"""

import asyncio
import random
import tempfile
import time
from pathlib import Path

from app import build
from penstock.db.embedded.database import Embedded
from penstock.worker.maintenance.upkeep import GRACE, PASS_SECONDS
from report import Found, Line, Rounds
from server import connection, fresh, until
from worker_process import worker_process

JOBS = 50
AGAIN_SECONDS = 60.0
_POLL_SECONDS = 0.005

# Upkeep expires no leases on a new session.
_READY = """
select count(*) >= 2 from pg_stat_activity
where datname = current_database() and application_name = 'penstock upkeep'
  and backend_start < clock_timestamp() - $1::interval
"""
_SESSIONS = """
select array_agg(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
  and application_name like 'penstock%'
"""
_GONE = "select not exists (select from pg_stat_activity where pid = any ($1))"


async def kill(running: Embedded, *, quick: bool) -> Found:
    """The time from the kill of a worker to the last new attempt of its jobs."""
    turns = 2 if quick else 5
    rounds: Rounds = {"first restart": [], "last restart": [], "sessions gone": []}
    for _ in range(turns):
        with tempfile.TemporaryDirectory(prefix="penstock-bench-kill-") as folder:
            first, last, gone = await _once(running, Path(folder) / "attempts")
        rounds["first restart"].append(first)
        rounds["last restart"].append(last)
        rounds["sessions gone"].append(gone)
    return Found(
        [
            Line(
                f"kill -9 to the last of {JOBS} restarts, worst of {turns}",
                max(rounds["last restart"]),
                "s",
                max(rounds["sessions gone"]),
                "its sessions gone, worst",
                1,
                of="ours",
                least=False,
            )
        ],
        rounds,
    )


async def _once(running: Embedded, path: Path) -> tuple[float, float, float]:
    async with fresh(running) as dsn:
        app = build(dsn)
        await app.engine()
        conn = await connection(dsn)
        async with worker_process(dsn, conn) as victim:
            await app.kinds["hold"].submit_many({"path": str(path)} for _ in range(JOBS))
            await app.close()
            await _lines(path, JOBS)
            sessions = await conn.fetchval(_SESSIONS)
            async with worker_process(dsn, conn) as other:
                await until(conn, _READY, GRACE, seconds=AGAIN_SECONDS)
                await asyncio.sleep(random.uniform(0, PASS_SECONDS))
                killed = time.time_ns()
                victim.kill()
                await until(conn, _GONE, sessions, seconds=AGAIN_SECONDS, every=_POLL_SECONDS)
                gone = (time.time_ns() - killed) / 1e9
                attempts = await _lines(path, 2 * JOBS)
                other.kill()  # its handlers would wait for an hour
        await conn.close()
    again = [(int(at) - killed) / 1e9 for at, attempt in attempts if attempt != "1"]
    assert len(again) == JOBS, f"{len(again)} jobs ran again, not {JOBS}"
    return min(again), max(again), gone


async def _lines(path: Path, wanted: int) -> list[list[str]]:
    async with asyncio.timeout(AGAIN_SECONDS):
        while len(found := _read(path)) < wanted:  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(_POLL_SECONDS)
    return found


def _read(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
