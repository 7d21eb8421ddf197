"""How many jobs per second does a worker process run, and what do accounts and a backlog cost?

The workers are warm, and their queue is paused and filled. The clock runs from the resume of the
queue until the database has no more jobs of it. Handlers do nothing. History is kept and every
outcome is fenced, as in production. Database and processes are new each time.
"""

import asyncio
import pstats
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import asyncpg

import bare
from app import build
from penstock.db.embedded.database import Embedded
from report import Found, Line, Rounds, medians
from server import connection, fresh
from worker_process import WorkerProcess, worker_process

WARM_UP = 1_000
BULK = 50_000
DONE_SECONDS = 120.0
_POLL_SECONDS = 0.02

ALL_DONE = "select not exists (select from penstock.job)"
# Except for those that existed before.
BURST_DONE = "select count(*) <= 3 from (select from penstock.job limit 4) j"
# The other accounts' lanes are empty and they run no job. Both tables are small for any backlog.
OTHERS_DONE = """
select not exists (
    select from penstock.lane l join penstock.account a on a.id = l.account_id
    where l.waiting > 0 and a.name <> 'big')
  and not exists (select from penstock.account a where a.running > 0 and a.name <> 'big')
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int
    jobs: int
    accounts: int
    backlog: int

    @classmethod
    def of(cls, *, quick: bool) -> "Sizes":
        return cls(2, 4_000, 100, 10_000) if quick else cls(5, 60_000, 1_000, 200_000)

    @property
    def names(self) -> list[str]:
        return [f"a{n}" for n in range(self.accounts)]


@dataclass(frozen=True, slots=True)
class Bench:
    """A fresh database with warm workers."""

    conn: asyncpg.Connection
    workers: Sequence[WorkerProcess]

    async def fill(self, kind: str, jobs: int, accounts: Sequence[str] | None = None) -> None:
        for begin in range(0, jobs, BULK):
            n = min(BULK, jobs - begin)
            names = list(islice(cycle(accounts), n)) if accounts else None
            await self.conn.execute(
                "select count(*) from penstock.submit_many($1, $2, $3)", [kind] * n, [{}] * n, names
            )

    async def settle(self) -> None:
        await bare.settle(self.conn, "penstock.job", "penstock.lane", "penstock.account")

    async def seconds(self, queue: str, done: str = ALL_DONE, *, settled: bool = True) -> float:
        """Resume the queue; return how long the workers need for its jobs."""
        if settled:
            await self.settle()
        began = time.perf_counter()
        await self.conn.execute("select penstock.resume_queue($1)", queue)
        await self.conn.execute("select penstock.wake_workers(array[$1])", queue)
        while not await self.conn.fetchval(done):
            if time.perf_counter() > began + DONE_SECONDS:
                raise TimeoutError("the jobs were not done in time")
            for worker in self.workers:
                worker.raise_if_exited()
            await asyncio.sleep(_POLL_SECONDS)
        return time.perf_counter() - began

    async def check(self, jobs: int) -> None:
        """Check that all jobs succeeded at their first attempt, and every invariant holds."""
        succeeded = await self.conn.fetchval(
            "select count(*) from penstock.finished where status = 'succeeded' and attempt = 1"
        )
        assert succeeded == jobs + WARM_UP, f"{succeeded} jobs succeeded, not {jobs + WARM_UP}"
        unsound = await self.conn.fetch("select * from penstock.check()")
        assert not unsound, unsound


@asynccontextmanager
async def bench(
    running: Embedded, queue: str, *, processes: int = 1, arguments: Sequence[str] = ()
) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(fresh(running))
        app = build(dsn)
        await app.engine()
        await app.close()
        conn = await connection(dsn)
        workers = [
            await stack.enter_async_context(worker_process(dsn, conn, *arguments))
            for _ in range(processes)
        ]
        ready = Bench(conn, workers)
        await ready.fill("noop", WARM_UP)
        await ready.seconds("plain")
        await conn.execute("select penstock.pause_queue($1)", queue)
        yield ready
        await conn.close()


async def plain(running: Embedded, sizes: Sizes, *, processes: int) -> tuple[float, float]:
    """Return jobs per second, and the CPU time of the workers per job in microseconds."""
    async with bench(running, "plain", processes=processes) as ready:
        await ready.fill("noop", sizes.jobs)
        before = sum(worker.cpu_seconds() for worker in ready.workers)
        seconds = await ready.seconds("plain")
        cpu = sum(worker.cpu_seconds() for worker in ready.workers) - before
        await ready.check(sizes.jobs)
    return sizes.jobs / seconds, cpu / sizes.jobs * 1e6


async def laned(running: Embedded, sizes: Sizes) -> float:
    jobs = sizes.accounts * 20
    async with bench(running, "laned") as ready:
        await ready.fill("noop_laned", jobs, sizes.names)
        seconds = await ready.seconds("laned")
        await ready.check(jobs)
    return jobs / seconds


async def behind(running: Embedded, sizes: Sizes) -> float:
    async with bench(running, "laned") as ready:
        await ready.fill("noop_laned", sizes.backlog, ["big"])
        await ready.fill("noop_laned", sizes.accounts * 20, sizes.names)
        return await ready.seconds("laned", OTHERS_DONE)


async def after_a_quiet_time(running: Embedded, jobs: int) -> float:
    """Measure after the statistics had three jobs and the sessions made their plans."""
    async with bench(running, "plain") as ready:
        await ready.conn.execute("select penstock.resume_queue('plain')")
        await ready.conn.execute(
            "select count(*) from penstock.submit_many($1, $2)",
            ["wait"] * 3,
            [{"seconds": 3_600}] * 3,
        )
        await ready.settle()
        for _ in range(10):
            await ready.fill("noop", 1)
            await ready.seconds("plain", BURST_DONE, settled=False)
        await ready.conn.execute("select penstock.pause_queue('plain')")
        await ready.fill("noop", jobs)
        seconds = await ready.seconds("plain", BURST_DONE, settled=False)
        await ready.conn.execute("select penstock.cancel_job(id) from penstock.job")
    return jobs / seconds


async def throughput(running: Embedded, *, quick: bool) -> Found:
    """No-op jobs through one worker process, and through two."""
    sizes = Sizes.of(quick=quick)
    names = ("bare", "one process", "two processes")
    rounds: Rounds = {name: [] for name in (*names, *(f"CPU of {name}" for name in names))}

    def note(name: str, rate: float, cpu: float) -> None:
        rounds[name].append(rate)
        rounds[f"CPU of {name}"].append(cpu)

    async with fresh(running) as dsn:
        conn = await connection(dsn)
        await conn.execute(bare.TABLES)
        for _ in range(sizes.rounds):
            before = time.process_time()
            rate = await bare.claim_and_finish(conn, sizes.jobs)
            note("bare", rate, (time.process_time() - before) / sizes.jobs * 1e6)
            note("one process", *await plain(running, sizes, processes=1))
            note("two processes", *await plain(running, sizes, processes=2))
        await conn.close()
    found = medians(rounds)
    one, two = found["one process"], found["two processes"]
    what = f"{sizes.jobs:,} no-op jobs,"
    return Found(
        [
            Line(f"{what} one process", one, "/s", found["bare"], "bare SQL", 0.65),
            Line(f"{what} two processes", two, "/s", one, "one process", 1.0),
            Line(
                "  CPU of the worker, a job",
                found["CPU of one process"],
                "µs",
                found["CPU of bare"],
                "the client of the bare SQL",
            ),
        ],
        rounds,
    )


async def accounts(running: Embedded, *, quick: bool) -> Found:
    """Many accounts, each of which may run one job at a time."""
    sizes = Sizes.of(quick=quick)
    rounds: Rounds = {"bare": [], "accounts": []}
    async with fresh(running) as dsn:
        conn = await connection(dsn)
        await conn.execute(bare.TABLES)
        for _ in range(sizes.rounds):
            rounds["bare"].append(await bare.claim_and_finish(conn, sizes.accounts * 20))
            rounds["accounts"].append(await laned(running, sizes))
        await conn.close()
    found = medians(rounds)
    what = f"{sizes.accounts:,} accounts, 20 jobs each, one at a time"
    return Found(
        [Line(what, found["accounts"], "/s", found["bare"], "bare SQL", 12_000, of="ours")], rounds
    )


async def backlog(running: Embedded, *, quick: bool) -> Found:
    """The same accounts, behind one that submitted very many jobs before them."""
    sizes = Sizes.of(quick=quick)
    jobs = sizes.accounts * 20
    rounds: Rounds = {"bare": [], "behind a backlog": [], "without it": []}
    async with fresh(running) as dsn:
        conn = await connection(dsn)
        await conn.execute(bare.TABLES)
        for _ in range(sizes.rounds):
            rounds["bare"].append(jobs / await bare.claim_and_finish(conn, jobs))
            rounds["behind a backlog"].append(await behind(running, sizes))
            rounds["without it"].append(jobs / await laned(running, sizes))
        await conn.close()
    found = medians(rounds)
    ours = found["behind a backlog"]
    what = f"{jobs:,} jobs of {sizes.accounts:,} accounts behind {sizes.backlog:,} of one"
    return Found(
        [
            Line(what, ours, "s", found["bare"], "bare SQL", 3, of="ours", least=False),
            Line(what, ours, "s", found["without it"], "without the backlog"),
        ],
        rounds,
    )


async def burst(running: Embedded, *, quick: bool) -> Found:
    """Many jobs at once after a quiet time, compared with a busy time."""
    sizes = Sizes.of(quick=quick)
    rounds: Rounds = {"burst": [], "busy": []}
    for _ in range(sizes.rounds):
        rounds["burst"].append(await after_a_quiet_time(running, sizes.jobs))
        rounds["busy"].append((await plain(running, sizes, processes=1))[0])
    found = medians(rounds)
    what = f"{sizes.jobs:,} no-op jobs at once after a quiet time"
    return Found([Line(what, found["burst"], "/s", found["busy"], "at a busy time")], rounds)


async def profile(running: Embedded, *, quick: bool) -> None:
    """Print where one process spends its time. The profiler at least halves its speed."""
    sizes = Sizes.of(quick=quick)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-profile-") as folder:
        path = Path(folder) / "profile"
        async with bench(running, "plain", arguments=("--profile", str(path))) as ready:
            await ready.fill("noop", sizes.jobs)
            seconds = await ready.seconds("plain")
        print(f"{sizes.jobs:,} no-op jobs under cProfile: {sizes.jobs / seconds:,.0f} /s")
        # Waiting in the loop counts as own time of run_until_complete.
        pstats.Stats(str(path)).strip_dirs().sort_stats("tottime").print_stats(25)
