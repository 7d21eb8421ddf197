"""A worker in a separate process, as `penstock worker` runs one: uvloop, and all defaults.

    PENSTOCK_DSN=... python bench/worker_process.py [--concurrency N] [--profile FILE]

The benchmarks start it by `worker_process`.
"""

import argparse
import asyncio
import cProfile
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg
import uvloop

from app import build
from penstock.worker.memory import settle_memory
from penstock.worker.worker import Options, Worker

READY_SECONDS = 30.0
STOP_SECONDS = 40.0
_POLL_SECONDS = 0.02
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

# How many workers are registered and listen to all channels, and have their advisory lock.
_LISTENING = """
select least(
  count(*) filter (where application_name = 'penstock control' and query ilike 'listen %circuit%'),
  count(distinct l.pid) / 2)
from pg_stat_activity a
left join pg_locks l on l.pid = a.pid and l.locktype = 'advisory' and l.objsubid = 1
where datname = current_database() and state = 'idle'
"""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """Kill it, as when a machine loses power."""
        self.process.kill()
        self.process.wait()

    def cpu_seconds(self) -> float:
        """Return the CPU time so far, of all threads, user and system; NaN except on Linux."""
        if not sys.platform.startswith("linux"):
            return float("nan")
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS

    def memory_mb(self, *, peak: bool = False) -> float:
        """Return resident memory, now or at its peak; NaN except on Linux."""
        if not sys.platform.startswith("linux"):
            return float("nan")
        name = "VmHWM:" if peak else "VmRSS:"
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
        raise LookupError(name)

    def raise_if_exited(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"the worker exited:\n{self.log.read_text()}")


@asynccontextmanager
async def worker_process(
    dsn: str, conn: asyncpg.Connection, *arguments: str
) -> AsyncIterator[WorkerProcess]:
    """Start a worker, yield it when it is ready, and stop it at the end if it still runs."""
    before = await conn.fetchval(_LISTENING)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-worker-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as file:
            started = subprocess.Popen(  # noqa: ASYNC220  # returns at once
                [sys.executable, __file__, *arguments],
                env={**os.environ, "PENSTOCK_DSN": dsn},
                stderr=file,
            )
        worker = WorkerProcess(started, log)
        try:
            async with asyncio.timeout(READY_SECONDS):
                while await conn.fetchval(_LISTENING) <= before:
                    worker.raise_if_exited()
                    await asyncio.sleep(_POLL_SECONDS)
            yield worker
            if started.poll() is None:
                started.send_signal(signal.SIGTERM)
                await asyncio.to_thread(started.wait, STOP_SECONDS)
        finally:
            if started.poll() is None:
                worker.kill()
        if output := log.read_text():
            print(f"output of a worker:\n{output[:2_000]}")


async def _serve(concurrency: int | None) -> None:
    app = build()
    await app.engine()  # sends the declarations, like the command line
    options = Options(name=f"bench-{os.getpid()}")
    if concurrency is not None:
        options = replace(options, concurrency=concurrency)
    worker = Worker(await app.dsn(), app.handlers(), options)
    settle_memory()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()
    await app.close()


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--profile", type=Path)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if arguments.profile is None:
        uvloop.run(_serve(arguments.concurrency))
        return
    profile = cProfile.Profile()
    profile.runcall(uvloop.run, _serve(arguments.concurrency))
    profile.dump_stats(arguments.profile)


if __name__ == "__main__":
    _main()
