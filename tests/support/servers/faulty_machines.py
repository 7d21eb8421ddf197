"""Machines with faults: slow, broken or full disks, wrong clocks; each has one server.

Faults are made from outside of the processes: by strace, by libfaketime, by separate file systems.
If a machine does not support this, the test is skipped; if CI is set, it fails.
"""

import asyncio
import atexit
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from penstock.db.schema import migrations
from support.cluster import assert_sound
from support.connections import connections
from support.http.serving import Served, free_port
from support.servers.postmaster import Postmaster, room
from support.shapes import Connect
from support.waiting import eventually
from support.worker.apps import app
from support.worker.crew import Crew, declare

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
ATTACH_SECONDS = 10
RESTART_SECONDS = 0.5
# The pause before a refused submit is repeated.
AGAIN_SECONDS = 0.05
AGAIN = (429, 503)
# Added to each job, so that a disk fills up.
PAD = "x" * 400

_stack = ExitStack()
atexit.register(_stack.close)


def need(*tools: str, root: bool = False) -> None:
    """Skip the test if these are missing; fail it where everything has to run."""
    missing = [tool for tool in tools if tool != "faketime" and shutil.which(tool) is None]
    if "faketime" in tools and FAKETIME is None:
        missing.append("faketime")
    if root and os.geteuid() != 0:
        missing.append("root")
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            f"this needs {' and '.join(missing)}: .ci/install-fault-tools"
        )


@dataclass
class Ground:
    """A server of this test with Penstock's schema, and the programs that use it."""

    server: Postmaster
    conn: asyncpg.Connection
    connect: Connect
    crew: Crew
    api: Served
    acked: dict[str, str] = field(default_factory=dict)
    """Jobs that the API has acknowledged, by key."""

    def client(self) -> httpx.AsyncClient:
        return self.api.client()

    async def submit(
        self, client: httpx.AsyncClient, key: str, kind: str = "nap", **payload: Any
    ) -> httpx.Response:
        """Try once. Remember a job that was acknowledged."""
        body = {"kind": kind, "payload": payload or {"seconds": 0.0}}
        answer = await client.post(
            "/v1/jobs",
            json={**body, "metadata": {"pad": PAD}},
            headers={"Idempotency-Key": key},
        )
        if answer.is_success:
            job = answer.json()["id"]
            assert self.acked.setdefault(key, job) == job, "one key, two jobs"
        return answer

    async def insist(
        self, client: httpx.AsyncClient, key: str, *, within: float = 30, **payload: Any
    ) -> str:
        """Repeat until there is a job; fail on an error that repetition would not change."""

        async def taken() -> bool:
            with suppress(httpx.TransportError):
                answer = await self.submit(client, key, **payload)
                assert answer.is_success or answer.status_code in AGAIN, answer.text
            return key in self.acked

        await eventually(taken, f"a job for {key}", seconds=within, poll=AGAIN_SECONDS)
        return self.acked[key]

    async def drained(self, *, seconds: float = 30) -> None:
        """Every acknowledged job exists, once, and succeeded; nothing else is left."""
        acked = list(self.acked.values())
        async with asyncio.timeout(seconds):
            conn = await self.fresh()
        try:

            async def finished() -> bool:
                return not await conn.fetchval("select count(*) from penstock.job")

            await eventually(finished, "nothing is left to do", seconds=seconds, poll=0.05)
            rows = await conn.fetch(
                "select id::text, status::text from penstock.finished where id::text = any($1)",
                acked,
            )
        finally:
            conn.terminate()
        assert {row["status"] for row in rows} <= {"succeeded"}
        assert sorted(row["id"] for row in rows) == sorted(acked), "acknowledged, and missing"
        assert_sound(self.server.dsn)

    async def fresh(self) -> asyncpg.Connection:
        """A connection without faults, as soon as the server accepts one."""
        found: asyncpg.Connection | None = None

        async def opened() -> bool:
            nonlocal found
            with suppress(asyncpg.PostgresError, OSError):
                found = await self.connect()
            return found is not None

        await eventually(opened, "the server takes connections", seconds=30, poll=0.05)
        assert found is not None
        return found

    def logs(self) -> str:
        """The logs of the API and the workers."""
        logs = [*self.crew.folder.glob("serve-*.log"), *(one.log for one in self.crew.started)]
        return "\n".join(log.read_text(errors="replace") for log in logs)


@asynccontextmanager
async def ground(
    tmp_path: Path,
    *,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    disks: Mapping[str, int] | None = None,
    prefix: Sequence[str] = (),
) -> AsyncIterator[Ground]:
    """`environment`: the server's; `prefix`: the command that starts the API.

    `disks`: folders of the data that get a file system of so many MB; "" is all of it.
    """
    template = await asyncio.to_thread(_template)
    with room() as folder:
        server = Postmaster(folder / "one", free_port(), settings=settings, environment=environment)
        _run("cp", "-a", str(template), str(server.data))
        with small_disks(server, disks or {}):
            try:
                await asyncio.to_thread(server.start)
                async with connections(server.dsn) as connect:
                    conn = await connect()
                    crew = Crew(server.dsn, conn, tmp_path)
                    api = Served(server.dsn, tmp_path, prefix=prefix)
                    try:
                        yield Ground(server, conn, connect, crew, api)
                    finally:
                        crew.close()
                        api.kill()
            finally:
                server.kill()


@cache
def _template() -> Path:
    """The data of a server with Penstock's schema, made once; removed with this process."""
    folder = _stack.enter_context(room())
    server = Postmaster(folder / "template", free_port()).make().start()
    asyncio.run(_migrate(server.dsn))
    server.stop()
    return server.data


async def _migrate(dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        await migrations.up(conn)
    finally:
        await conn.close()
    await declare(dsn, app)


# --- disks ---------------------------------------------------------------------------------------


@contextmanager
def small_disks(server: Postmaster, sizes: Mapping[str, int]) -> Iterator[None]:
    """Move folders of a stopped server onto file systems of so many MB."""
    mounted: list[Path] = []
    try:
        for name, megabytes in sizes.items():
            folder = server.data / name if name else server.data
            aside = folder.with_name(folder.name + ".aside")
            folder.rename(aside)
            folder.mkdir()
            _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
            mounted.append(folder)
            _run("cp", "-a", f"{aside}/.", str(folder))
            shutil.rmtree(aside)
        yield
    finally:
        server.kill()
        for folder in reversed(mounted):
            _run("umount", "-l", str(folder))


class Ballast:
    """A file that fills the free space of a file system."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ballast"

    def fill(self, *, leave: int = 0) -> None:
        """Fill all but so many bytes."""
        found = os.statvfs(self._file.parent)
        size = self._file.stat().st_size if self._file.exists() else 0
        free = found.f_bavail * found.f_frsize
        with suppress(OSError), self._file.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, max(size + free - leave, 1))

    def drop(self) -> None:
        self._file.unlink(missing_ok=True)


@asynccontextmanager
async def injected(pids: Sequence[int], *faults: str) -> AsyncIterator[None]:
    """Make system calls of these processes and their children slow, or let them fail.

    `faults`: as strace takes them, like `fdatasync:delay_enter=500000`.
    """
    names = ",".join(sorted({fault.partition(":")[0] for fault in faults}))
    words = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={names}"]
    for fault in faults:
        words += ["-e", f"inject={fault}"]
    words += [word for pid in pids for word in ("-p", str(pid))]
    tracer = subprocess.Popen(words, stderr=subprocess.PIPE)  # noqa: ASYNC220  # returns at once

    async def attached() -> bool:
        assert tracer.poll() is None, tracer.stderr and tracer.stderr.read()
        return all(_tracer_of(pid) in (tracer.pid, None) for pid in pids)

    try:
        await eventually(attached, "strace is attached", seconds=ATTACH_SECONDS)
        yield
    finally:
        # Detached properly: if killed, it would leave stopped processes stopped.
        tracer.send_signal(signal.SIGINT)
        await asyncio.to_thread(tracer.wait, ATTACH_SECONDS)
        assert tracer.stderr
        tracer.stderr.close()


def _tracer_of(pid: int) -> int | None:
    """The process that traces it, 0 if none; None if it has exited."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("TracerPid:"):
                return int(line.split()[1])
    return None


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@asynccontextmanager
async def supervised(server: Postmaster) -> AsyncIterator[None]:
    """Restart the server whenever it has stopped, as the service manager of a machine does."""

    async def watch() -> None:
        while True:
            if not server.runs:
                server.start(wait=False)
            await asyncio.sleep(RESTART_SECONDS)

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()


# --- clocks --------------------------------------------------------------------------------------


class Watch:
    """A clock that the test sets, for the processes that are started with its environment."""

    def __init__(self, file: Path, *, at_once: bool = False) -> None:
        """`at_once`: all processes see a step at the same moment, as those of one machine do.

        Reading the file at each call takes most of the time of a process that reads the clock
        often.
        """
        self._file = file
        self._at_once = at_once
        self.set(0)

    def set(self, seconds: float) -> None:
        """Set it ahead of the true time by so many seconds."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+g}\n")
        new.chmod(0o644)
        new.replace(self._file)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            **({"FAKETIME_NO_CACHE": "1"} if self._at_once else {"FAKETIME_CACHE_DURATION": "1"}),
            # As on a machine whose clock is set: clocks that measure durations are not.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    @property
    def prefix(self) -> list[str]:
        """The same, for a program that is started through a command."""
        return ["env", *(f"{name}={value}" for name, value in self.environment.items())]
