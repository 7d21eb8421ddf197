"""What does it cost to read position and ETA of a job in a queue of a million, during claims?

    python bench/position.py [--smoke]

One connection claims and finishes jobs in batches without a pause, upkeep measures as in a worker,
and one reader reads jobs at random depths. Each answer is compared, in the same snapshot of the
database, with the exact count, which gives its error, and with the time of that count.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg
import uvloop

import bare
from penstock.db.embedded.database import Embedded
from report import Found, Line, Rounds, percentile
from server import connection, fresh, record_part, server, smoke

QUICK = smoke()
QUEUED = 20_000 if QUICK else 1_000_000
SAMPLES = 100 if QUICK else 1_000
BULK = 10_000 if QUICK else 50_000
BATCH = 200
MEASURE_SECONDS = 1.25  # as upkeep does

_EXACT = """
select count(*) + 1 from penstock.job j
where j.queue_id = $1 and j.lane = -1 and j.status = 'queued' and j.rank < $2
"""
_DEPTH = """
select id, rank from penstock.job
where queue_id = $1 and lane = -1 and status = 'queued' and rank >= $2 order by rank limit 1
"""


async def fill(conn: asyncpg.Connection, jobs: int) -> None:
    for begin in range(0, jobs, BULK):
        n = min(BULK, jobs - begin)
        await conn.execute(
            "select count(*) from penstock.submit_many($1, $2)", ["noop"] * n, [{}] * n
        )


async def work(conn: asyncpg.Connection, worker: int, over: asyncio.Event) -> int:
    """Claim and finish jobs, and submit as many new ones."""
    done = 0
    while not over.is_set():
        rows = await conn.fetch("select * from penstock.claim_jobs($1, 'q', $2)", worker, BATCH)
        n = len(rows)
        await conn.execute(
            "select count(*) from penstock.finish_jobs($1, $2, $3, $4)",
            worker,
            [row["id"] for row in rows],
            [row["attempt"] for row in rows],
            ["succeeded"] * n,
        )
        await fill(conn, n)
        done += n
    return done


async def keep(conn: asyncpg.Connection, over: asyncio.Event, took: list[float]) -> None:
    """Measure like upkeep; record how long a pass with a new snapshot takes, in milliseconds."""
    while not over.is_set():
        due = await conn.fetchval("select max(snapshot_due_at) from penstock.flow")
        began = time.perf_counter()
        await conn.execute("select penstock.measure_waits()")
        seconds = time.perf_counter() - began
        if due != await conn.fetchval("select max(snapshot_due_at) from penstock.flow"):
            took.append(seconds * 1e3)
        try:
            await asyncio.wait_for(over.wait(), MEASURE_SECONDS)
        except TimeoutError:
            continue


class Reader:
    def __init__(self, conn: asyncpg.Connection, queue: int) -> None:
        self._conn = conn
        self._queue = queue
        self._chance = random.Random(1)
        self.times: list[float] = []
        self.exact_times: list[float] = []
        self.bare_times: list[float] = []
        self.off: list[float] = []

    async def some_job(self) -> tuple[UUID, int]:
        """Return a job at a random depth, more often near the head."""
        low, high = await self._conn.fetchrow(
            "select (select rank from penstock.job where queue_id = $1 and lane = -1"
            " and status = 'queued' order by rank limit 1), (select rank from penstock.job"
            " where queue_id = $1 and lane = -1 and status = 'queued' order by rank desc limit 1)",
            self._queue,
        )
        depth = self._chance.random() ** 2
        row = await self._conn.fetchrow(_DEPTH, self._queue, int(low + (high - low) * depth))
        return row["id"], row["rank"]

    async def sample(self) -> None:
        job, rank = await self.some_job()
        async with self._conn.transaction(isolation="repeatable_read", readonly=True):
            began = time.perf_counter()
            await self._conn.fetchval("select 1 from penstock.job where id = $1", job)
            self.bare_times.append((time.perf_counter() - began) * 1e3)
            began = time.perf_counter()
            job_info = await self._conn.fetchval("select penstock.read_job($1)", job)
            self.times.append((time.perf_counter() - began) * 1e3)
            began = time.perf_counter()
            truly = await self._conn.fetchval(_EXACT, self._queue, rank)
            self.exact_times.append((time.perf_counter() - began) * 1e3)
        if job_info["status"] == "queued":
            error = abs(job_info["position"] - truly)
            self.off.append(0 if error <= 5 else 100 * error / truly)


@asynccontextmanager
async def deep_queue(running: Embedded) -> AsyncIterator[tuple[str, asyncpg.Connection, int]]:
    async with fresh(running) as dsn:
        conn = await connection(dsn)
        await conn.execute("select penstock.declare_queue('q', '{}')")
        await conn.execute("select penstock.declare_kind('noop', 'q')")
        worker = await conn.fetchval("select penstock.register_worker('bench', '1 day')")
        await fill(conn, QUEUED)
        await bare.settle(conn, "penstock.job")
        yield dsn, conn, worker
        await conn.close()


async def position(running: Embedded) -> Found:
    """Position and ETA by read_job, compared with the exact count of the same moment."""
    snapshots: list[float] = []
    async with deep_queue(running) as (dsn, conn, worker):
        upkeep, claimer = await connection(dsn), await connection(dsn)
        over = asyncio.Event()
        began = time.perf_counter()
        await upkeep.execute("select penstock.measure_waits('0')")
        snapshots.append((time.perf_counter() - began) * 1e3)
        keeping = asyncio.create_task(keep(upkeep, over, snapshots))
        working = asyncio.create_task(work(claimer, worker, over))
        reader = Reader(conn, await conn.fetchval("select id from penstock.queue"))
        began = time.perf_counter()
        for _ in range(SAMPLES):
            await reader.sample()
        seconds = time.perf_counter() - began
        over.set()
        done = await working
        await keeping
        await upkeep.close()
        await claimer.close()
    rounds: Rounds = {
        "read_job": reader.times,
        "exact count": reader.exact_times,
        "error, in per cent of the position": reader.off,
        "snapshot": snapshots,
    }
    what = f"place and wait at {QUEUED:,} queued,"
    p50, p99 = (percentile(reader.times, percent) for percent in (50, 99))
    exact = percentile(reader.exact_times, 50)
    bare_p50, bare_p99 = (percentile(reader.bare_times, percent) for percent in (50, 99))
    return Found(
        [
            Line(f"{what} p50", p50, "ms", exact, "exact count, p50"),
            Line(
                f"{what} p99", p99, "ms", bare_p99, "row by its key, p99", 10, "ours", least=False
            ),
            Line("  p50", p50, "ms", bare_p50, "row by its key, p50"),
            Line(
                "  error, p99",
                percentile(reader.off, 99),
                "%",
                percentile(reader.off, 50),
                "p50",
                1,
                "ours",
                least=False,
            ),
            Line("  a snapshot", percentile(snapshots, 50), "ms", exact, "exact count, p50"),
            Line(
                "  claimed and finished meanwhile", done / seconds, "/s", QUEUED / seconds, "queued"
            ),
        ],
        rounds,
    )


async def main() -> None:
    async with server() as running:
        found = await position(running)
    for line in found.lines:
        print(line)
    if not QUICK:
        record_part("position", "position", found.kept())


if __name__ == "__main__":
    uvloop.run(main())
