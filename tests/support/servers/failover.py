"""A primary and its standby on this machine, and the programs of Penstock that use them."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg

from support.http.serving import free_port
from support.http.site import SECRET
from support.servers.postmaster import ROLE, Postmaster, room
from support.waiting import eventually
from support.worker.crew import TESTS

APP = "support.worker.apps:app"
START_SECONDS = 40.0
ASK_SECONDS = 15.0
PAUSE_SECONDS = 0.05
AGAIN = (409, 500, 502, 503)


class Pair:
    """Two servers: the primary, and its standby, for which commits wait if `sync`."""

    def __init__(self, *servers: Postmaster, sync: bool = True) -> None:
        self.primary, self.standby = servers
        self._servers = servers
        self._sync = sync

    @property
    def dsn(self) -> str:
        """Both, in the same order whichever is the primary."""
        named = ",".join(f"{one.host}:{one.port}" for one in self._servers)
        return f"postgresql://{ROLE}@{named}/postgres?target_session_attrs=read-write"

    def start(self) -> "Pair":
        self.primary.make().start()
        self.follow()
        return self

    def follow(self) -> None:
        """Make the other server, whatever it was, a standby of the primary."""
        self.standby.remove()
        self.standby.copy_of(self.primary, self.standby.folder.name).start()
        if self._sync:
            configure(self.primary, "synchronous_standby_names", self.standby.folder.name)
        wanted = "sync" if self._sync else "async"
        state = "select sync_state from pg_stat_replication"
        until(lambda: ask(self.primary, state) == wanted, "the standby follows")

    def promote(self) -> float:
        """Promote the standby to primary; return when it accepted writes."""
        # First, or it would wait for a standby that it does not have.
        configure(self.standby, "synchronous_standby_names", "")
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary
        return time.monotonic()

    def close(self) -> None:
        for server in self._servers:
            server.resume()
            server.kill()


@asynccontextmanager
async def pair(*, sync: bool = True) -> AsyncIterator[Pair]:
    with room() as folder:
        made = Pair(*(Postmaster(folder / name, free_port()) for name in ("one", "two")), sync=sync)
        try:
            yield await asyncio.to_thread(made.start)
        finally:
            await asyncio.to_thread(made.close)


def ask(server: Postmaster, sql: str) -> Any:
    """The first value of an answer, if there is one."""
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        done = conn.execute(sql.encode())
        row = done.fetchone() if done.description else None
        return None if row is None else row[0]


def configure(server: Postmaster, name: str, value: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"alter system set {name} = '{value}'".encode())
        conn.execute("select pg_reload_conf()")
    shown = f"select current_setting('{name}')"
    until(lambda: ask(server, shown) == value, f"{name} is {value!r}")


def until(condition: Callable[[], object], what: str) -> None:
    """As `eventually`, for code that blocks."""
    ends = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < ends, f"not within {START_SECONDS:g} s: {what}"
        time.sleep(PAUSE_SECONDS)


# A server whose callers wait for less time than usual.
_IMPATIENT = """
import sys
from penstock import __main__, server
from penstock.engine.queries import json_texts
server.ANSWER_SECONDS = json_texts.WAIT_SECONDS = float(sys.argv.pop(1))
__main__.main()
"""


class Program:
    """`penstock WORDS` as a process, with its log."""

    def __init__(
        self, dsn: str, folder: Path, name: str, *words: str, answer_seconds: float | None = None
    ) -> None:
        self.log = folder / f"{name}.log"
        way = ["-m", "penstock"] if answer_seconds is None else ["-c", _IMPATIENT, answer_seconds]
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, *map(str, way), *words],
                env=_environment(dsn, folder),
                stdout=log,
                stderr=log,
            )

    @property
    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


def run(dsn: str, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `penstock WORDS` until it exits."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        env=_environment(dsn, folder),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


def _environment(dsn: str, folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return kept | {
        "PENSTOCK_DSN": dsn,
        "PENSTOCK_SECRET": SECRET,
        "PENSTOCK_LOG_LEVEL": "info",
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
        "WORKER_LOG": str(folder / "handlers.log"),
    }


class Programs:
    """Servers of the API and workers on one address, whose database has the schema."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        self.folder = folder
        self.urls: list[str] = []
        self.all: list[Program] = []

    async def serve(self, many: int, answer_seconds: float | None = None) -> None:
        for _ in range(many):
            port = free_port()
            words = ["serve", APP, "--port", str(port)]
            self.all.append(
                Program(
                    self.dsn,
                    self.folder,
                    f"serve-{port}",
                    *words,
                    answer_seconds=answer_seconds,
                )
            )
            self.urls.append(f"http://127.0.0.1:{port}")
        async with httpx.AsyncClient() as http:
            for url, program in zip(self.urls, self.all[-many:], strict=True):

                async def ready(url: str = url, program: Program = program) -> bool:
                    assert program.popen.poll() is None, program.log_text
                    try:
                        return (await http.get(f"{url}/readyz")).status_code == 200
                    except httpx.HTTPError:
                        return False

                await eventually(ready, "the API answers", seconds=START_SECONDS, poll=0.05)

    def work(self, many: int) -> None:
        for number in range(many):
            self.all.append(Program(self.dsn, self.folder, f"worker-{number}", "worker", APP))

    def close(self) -> None:
        for program in self.all:
            program.kill()


@asynccontextmanager
async def programs(
    dsn: str,
    folder: Path,
    *,
    servers: int = 2,
    workers: int = 2,
    answer_seconds: float | None = None,
) -> AsyncIterator[Programs]:
    """Programs that are killed in the end; a test that wants them to stop properly stops them."""
    done = await asyncio.to_thread(run, dsn, folder, "migrate", "up")
    assert done.returncode == 0, done.stderr
    made = Programs(dsn, folder)
    try:
        made.work(workers)
        await made.serve(servers, answer_seconds)
        yield made
    finally:
        made.close()


class Client:
    """Submits with a key, and repeats the submit with that key until there is an answer."""

    def __init__(self, urls: list[str], name: str) -> None:
        self._urls = urls
        self._name = name
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {SECRET}"}, timeout=ASK_SECONDS
        )
        self._asked = 0
        self.jobs: dict[str, str] = {}
        """By key: the job of the answer."""
        self.at: list[float] = []
        """When it got each first answer."""
        self.doubts = 0
        self.replays = 0

    async def run(self, until: asyncio.Event, payload: dict[str, Any], kind: str = "nap") -> None:
        while not until.is_set():
            self._asked += 1
            await self.submit(f"{self._name}-{self._asked}", payload, kind)

    async def submit(self, key: str, payload: dict[str, Any], kind: str = "nap") -> None:
        while True:
            answer = await self.ask(key, payload, kind)
            if answer is not None and answer.status_code not in AGAIN:
                assert answer.status_code == 201, answer.text
                self.replays += answer.headers.get("Idempotent-Replayed") == "true"
                self.jobs[key] = answer.json()["id"]
                self.at.append(time.monotonic())
                return
            self.doubts += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def ask(
        self, key: str | None, payload: dict[str, Any], kind: str = "nap", **more: Any
    ) -> httpx.Response | None:
        """Submit once; None if nothing was answered."""
        body = {"kind": kind, "payload": payload, **more}
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            return await self._http.post(
                f"{random.choice(self._urls)}/v1/jobs", json=body, headers=headers
            )
        except httpx.HTTPError:
            return None

    async def get(self, url: str) -> httpx.Response:
        return await self._http.get(url)

    async def close(self) -> None:
        await self._http.aclose()


@asynccontextmanager
async def clients(urls: list[str], many: int) -> AsyncIterator[Sequence[Client]]:
    made = [Client(urls, f"c{number}") for number in range(many)]
    try:
        yield made
    finally:
        for client in made:
            await client.close()
