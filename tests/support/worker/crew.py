"""Workers for tests: real processes, and ones in the test's own loop."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from penstock import Penstock
from penstock.engine.engine import Engine
from penstock.worker.worker import Options, Ran, Worker
from support.factory import submit_rows
from support.waiting import eventually

END_SECONDS = 20
TESTS = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Line:
    """A line that a handler wrote."""

    job: UUID
    attempt: int
    word: str
    pid: int
    at: float


class Process:
    """A worker in another process, with the app of apps.py."""

    def __init__(
        self, dsn: str, folder: Path, name: str, *, prefix: Sequence[str] = (), **options: Any
    ) -> None:
        """`prefix`: the command that starts it, like `ip netns exec a`."""
        self.name = name
        self.log = folder / f"{name}.log"
        words = ["-m", "support.worker.runner", dsn, json.dumps({"name": name, **options})]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
            "WORKER_LOG": str(folder / "handlers.log"),
        }
        with self.log.open("ab") as output:
            self.popen = subprocess.Popen(
                [*prefix, sys.executable, *words],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait(END_SECONDS)

    async def left(self) -> dict[str, Any]:
        """Wait until it has exited without a kill; what it printed last."""
        code = await asyncio.to_thread(self.popen.wait, END_SECONDS)
        assert code == 0, self.log_text
        answer: dict[str, Any] = json.loads(self.log_text.splitlines()[-1])
        return answer


class Crew:
    """The worker processes of one test, and the lines of their handlers."""

    def __init__(self, dsn: str, conn: asyncpg.Connection, folder: Path) -> None:
        self.dsn = dsn
        self.conn = conn
        self.folder = folder
        self.started: list[Process] = []

    async def start(self, name: str, **options: Any) -> Process:
        """A worker that is registered and locks its key in both sessions."""
        process = Process(self.dsn, self.folder, name, **options)
        self.started.append(process)
        await self.settled(process)
        return process

    async def settled(self, process: Process) -> None:
        async def is_there() -> bool:
            assert process.popen.poll() is None, process.log_text
            return bool(await self.conn.fetchval(_BOTH_KEYS, process.name))

        await eventually(is_there, f"worker {process.name} is registered", seconds=15)

    async def past_grace(self) -> None:
        """Return when the upkeep sessions are old enough to expire leases."""
        await eventually(
            lambda: self.conn.fetchval(_OLD_UPKEEP), "upkeep sessions older than the grace"
        )

    def gate(self, name: str = "gate") -> Path:
        return self.folder / name

    def noted(self, word: str | None = None) -> list[Line]:
        return noted_in(self.folder, word)

    async def until_noted(self, word: str, n: int, *, seconds: float = 15) -> list[Line]:
        async def enough() -> bool:
            return len(self.noted(word)) >= n

        await eventually(enough, f"{n} times {word}", seconds=seconds)
        return self.noted(word)

    async def until_finished(self, jobs: Sequence[UUID], *, seconds: float = 15) -> list[Any]:
        return await until_finished(self.conn, jobs, seconds=seconds)

    def close(self) -> None:
        for process in self.started:
            with suppress(ProcessLookupError):
                process.signal(signal.SIGCONT)
                process.kill()


def noted_in(folder: Path, word: str | None = None) -> list[Line]:
    """The lines of all handlers of workers with this folder; only those with `word`, if given."""
    path = folder / "handlers.log"
    if not path.exists():
        return []
    found = []
    # Of a line that is being written, a reader may see a part.
    for line in path.read_text().rpartition("\n")[0].splitlines():
        job, attempt, written, pid, at = line.split()
        if word in (None, written):
            found.append(Line(UUID(job), int(attempt), written, int(pid), float(at)))
    return found


# Two sessions lock the key of the worker of this name: heartbeat and upkeep.
_BOTH_KEYS = """
select count(*) = 2 from pg_locks l join penstock.worker w
  on w.id = (l.classid::bigint << 32) | l.objid::bigint
where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and w.name = $1
  and w.lost_at is null
"""
_OLD_UPKEEP = """
select bool_and(backend_start < clock_timestamp() - interval '3.1 seconds')
from pg_stat_activity where application_name = 'penstock upkeep' and datname = current_database()
"""


async def submit_many(
    conn: asyncpg.Connection, kind: str, n: int, payload: dict[str, Any]
) -> list[UUID]:
    return await submit_rows(conn, [{"kind": kind, "payload": payload} for _ in range(n)])


async def until_finished(
    conn: asyncpg.Connection, jobs: Sequence[UUID], *, seconds: float = 15
) -> list[Any]:
    """Wait until these jobs have finished; their rows of history, in order."""

    async def all_there() -> bool:
        n = await conn.fetchval("select count(*) from penstock.finished where id = any($1)", jobs)
        return bool(n == len(jobs))

    try:
        await eventually(all_there, f"{len(jobs)} jobs finish", seconds=seconds)
    except AssertionError as error:
        left = await conn.fetch(
            "select status::text, attempt, failures, crashes, error, run_at from penstock.job"
            " where id = any($1) limit 5",
            jobs,
        )
        raise AssertionError(f"{error}; among those that did not: {left}") from None
    rows = await conn.fetch("select * from penstock.finished where id = any($1)", jobs)
    by_id = {row["id"]: row for row in rows}
    assert len(rows) == len(jobs)  # each of them once
    return [by_id[job] for job in jobs]


async def outcomes(conn: asyncpg.Connection, job: UUID) -> list[str]:
    """The outcomes of its attempts, in order."""
    rows = await conn.fetch(
        "select outcome from penstock.attempts where job_id = $1 order by attempt", job
    )
    return [row["outcome"] for row in rows]


async def declare(dsn: str, app: Penstock) -> None:
    async with await Engine.open(dsn, max_connections=1) as engine:
        await app.declare(engine)


def count(words: Iterable[Any]) -> dict[Any, int]:
    return dict(Counter(words))


@dataclass
class Here:
    """A worker in the test's loop."""

    worker: Worker
    task: "asyncio.Task[Ran]"

    async def ran(self, seconds: float = 10) -> Ran:
        async with asyncio.timeout(seconds):
            return await asyncio.shield(self.task)


@asynccontextmanager
async def working(
    dsn: str, app: Penstock, *, name: str = "here", **given: Any
) -> AsyncIterator[Here]:
    """A worker of this app, in the test's loop; it leaves at once at the end."""
    await declare(dsn, app)
    for option in ("poll", "lease", "beat", "drain"):
        if isinstance(given.get(option), float | int):
            given[option] = timedelta(seconds=given[option])
    worker = Worker(dsn, app.handlers(), Options(name=name, **given))
    task = asyncio.create_task(worker.run())
    try:
        yield Here(worker, task)
    finally:
        worker.stop_at_once()
        async with asyncio.timeout(END_SECONDS):
            await task
