"""Queues that only calls drive, with real servers: chains of calls, and what interrupts them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from journeys.processes import free_port
from support.signing import SECRET
from support.waiting import eventually

WAIT_SECONDS = 60

APP = """
import asyncio
import os
from pathlib import Path
from penstock import Job, Penstock

app = Penstock()
marks = app.queue("marks", concurrency=1, drive="http", recovery=5)

@app.job(queue=marks)
async def mark(n: int, job: Job, seconds: float = 0.2) -> int:
    with Path("notes").open("a") as notes:
        notes.write(f"begun {n} {job.attempt} {os.getpid()}\\n")
    await asyncio.sleep(seconds)
    with Path("notes").open("a") as notes:
        notes.write(f"ended {n} {job.attempt} {os.getpid()}\\n")
    return n
"""


class Host:
    """A server without a worker: jobs run only because of calls."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
        }
        self.environment = {
            **inherited,
            "PENSTOCK_DSN": database,
            "PENSTOCK_SECRET": SECRET,
            "PENSTOCK_PUBLIC_URL": self.url,
        }
        self.process: subprocess.Popen[str] | None = None
        self.client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {SECRET}"},
            timeout=WAIT_SECONDS,
        )
        (folder / "host_app.py").write_text(APP)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "penstock", "serve", "host_app:app"),
                *("--port", str(self.port), "--json"),
            ],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        assert json.loads(self.process.stdout.readline())["url"] == self.url

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.communicate()
            self.process = None

    def notes(self) -> list[list[str]]:
        file = self.folder / "notes"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    async def submit(self, n: int, **payload: Any) -> None:
        jobs = [{"kind": "mark", "payload": {"n": one, **payload}} for one in range(n)]
        sent = await self.client.post("/v1/jobs/batch", json={"jobs": jobs})
        assert sent.status_code == 201, sent.text


@pytest.fixture
async def host(tmp_path: Path, database: str) -> AsyncIterator[Host]:
    host = Host(tmp_path, database)
    await asyncio.to_thread(host.start)
    yield host
    await host.client.aclose()
    host.kill()


async def succeeded(conn: asyncpg.Connection) -> int:
    found: int = await conn.fetchval(
        "select count(*) from penstock.finished where status = 'succeeded'"
    )
    return found


async def test_a_submit_is_all_it_takes(host: Host, conn: asyncpg.Connection) -> None:
    """M12: no worker is running; the submit starts the first call, and calls start one another."""
    await host.submit(6)

    async def done() -> bool:
        return await succeeded(conn) == 6

    await eventually(done, "all have run", seconds=WAIT_SECONDS)
    words = [word for word, *_ in host.notes()]
    assert words == ["begun", "ended"] * 6, "never two at once"


async def test_calls_start_one_another(host: Host, conn: asyncpg.Connection) -> None:
    """M12: each works for a second or so; the chain goes on until nothing is due."""
    await conn.execute("update penstock.queue set drive = 'worker'")  # no call by the submit
    await host.submit(8, seconds=0.4)
    options = {"seconds": 2, "max_jobs": 3, "chain": True}
    first = (await host.client.post("/v1/queues/marks/process", json=options)).json()
    assert 1 <= first["processed"] <= 3
    assert first["chained"]

    async def done() -> bool:
        return await succeeded(conn) == 8

    await eventually(done, "the chain has run all", seconds=WAIT_SECONDS)
    drivers = await conn.fetchval(
        "select count(distinct worker_id) from penstock.attempts where outcome = 'succeeded'"
    )
    assert drivers >= 3, "a call is a worker"


async def test_a_killed_driver_loses_no_job(host: Host, conn: asyncpg.Connection) -> None:
    """M12: killed in the middle of a job, on a host that restarts: the chain begins again."""
    await host.submit(6, seconds=0.5)

    async def in_the_middle() -> bool:
        return [word for word, *_ in host.notes()].count("ended") >= 2

    await eventually(in_the_middle, "some have run", seconds=WAIT_SECONDS)

    async def one_runs() -> bool:
        return host.notes()[-1][0] == "begun"

    await eventually(one_runs, "one is running", seconds=WAIT_SECONDS)
    host.kill()
    await asyncio.to_thread(host.start)

    async def done() -> bool:
        return await succeeded(conn) == 6

    await eventually(done, "all have run", seconds=WAIT_SECONDS)
    finished = [n for word, n, *_ in host.notes() if word == "ended"]
    assert sorted(set(finished)) == [str(n) for n in range(6)]
    assert len(finished) <= 7, "only the one whose outcome was being written at the kill ran again"
    failures = await conn.fetchval("select max(failures) from penstock.finished")
    assert failures == 0
