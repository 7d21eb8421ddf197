"""Machines in trouble: disks that are slow, broken or full, clocks that are wrong, one server each.

What is done to a process is done from outside: by strace, by libfaketime, by a file system of its
own. Where a machine cannot do it the test is skipped, and fails where CI is set.
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
# A submit that is refused is tried again after this.
AGAIN_SECONDS = 0.05
AGAIN = (429, 503)
# With each job, so that a disk fills up.
PAD = "x" * 400

_stack = ExitStack()
atexit.register(_stack.close)


def need(*tools: str, root: bool = False) -> None:
    """Leave the test where these are missing; fail it where everything has to run."""
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
    """A server of the test's own with our schema, and what runs on it."""

    server: Postmaster
    conn: asyncpg.Connection
    connect: Connect
    crew: Crew
    api: Served
    acked: dict[str, str] = field(default_factory=dict)
    """Jobs that the API has answered for, by key."""

    def client(self) -> httpx.AsyncClient:
        return self.api.client()

    async def submit(
        self, client: httpx.AsyncClient, key: str, kind: str = "nap", **payload: Any
    ) -> httpx.Response:
        """One try. What is answered with a job is kept in mind."""
        told = {"kind": kind, "payload": payload or {"seconds": 0.0}}
        answer = await client.post(
            "/v1/jobs",
            json={**told, "metadata": {"pad": PAD}},
            headers={"Idempotency-Key": key},
        )
        if answer.is_success:
            job = answer.json()["id"]
            assert self.acked.setdefault(key, job) == job, "one key, two jobs"
        return answer

    async def insist(
        self, client: httpx.AsyncClient, key: str, *, within: float = 30, **payload: Any
    ) -> str:
        """Until there is a job; what no repetition would change is a failure."""

        async def taken() -> bool:
            with suppress(httpx.TransportError):
                answer = await self.submit(client, key, **payload)
                assert answer.is_success or answer.status_code in AGAIN, answer.text
            return key in self.acked

        await eventually(taken, f"a job for {key}", seconds=within, poll=AGAIN_SECONDS)
        return self.acked[key]

    async def drained(self, *, seconds: float = 30) -> None:
        """All that was answered for is there, once, and has ended well; nothing else is left."""
        acked = list(self.acked.values())
        async with asyncio.timeout(seconds):
            conn = await self.fresh()
        try:

            async def ended() -> bool:
                return not await conn.fetchval("select count(*) from penstock.job")

            await eventually(ended, "nothing is left to do", seconds=seconds, poll=0.05)
            rows = await conn.fetch(
                "select id::text, status::text from penstock.finished where id::text = any($1)",
                acked,
            )
        finally:
            conn.terminate()
        assert {row["status"] for row in rows} <= {"succeeded"}
        assert sorted(row["id"] for row in rows) == sorted(acked), "answered for, and not there"
        assert_sound(self.server.dsn)

    async def fresh(self) -> asyncpg.Connection:
        """A connection that no fault has touched, as soon as the server takes one."""
        found: asyncpg.Connection | None = None

        async def opened() -> bool:
            nonlocal found
            with suppress(asyncpg.PostgresError, OSError):
                found = await self.connect()
            return found is not None

        await eventually(opened, "the server takes connections", seconds=30, poll=0.05)
        assert found is not None
        return found

    def said(self) -> str:
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
    """`environment`: of the server; `prefix`: what the API is started through.

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
    """The data of a server with our schema, made once; it is gone with this process."""
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
    """Move folders of a server that does not run yet onto file systems of so many MB."""
    mounted: list[Path] = []
    try:
        for name, megabytes in sizes.items():
            place = server.data / name if name else server.data
            aside = place.with_name(place.name + ".aside")
            place.rename(aside)
            place.mkdir()
            _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place))
            mounted.append(place)
            _run("cp", "-a", f"{aside}/.", str(place))
            shutil.rmtree(aside)
        yield
    finally:
        server.kill()
        for place in reversed(mounted):
            _run("umount", "-l", str(place))


class Ballast:
    """A file that takes what is free on a file system."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ballast"

    def fill(self, *, leave: int = 0) -> None:
        """All but so many bytes."""
        found = os.statvfs(self._file.parent)
        size = self._file.stat().st_size if self._file.exists() else 0
        free = found.f_bavail * found.f_frsize
        with suppress(OSError), self._file.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, max(size + free - leave, 1))

    def drop(self) -> None:
        self._file.unlink(missing_ok=True)


@asynccontextmanager
async def injected(pids: Sequence[int], *faults: str) -> AsyncIterator[None]:
    """These processes and the children they get have system calls that are slow, or that fail.

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
        # Detached in good order: killed, it would leave what it stopped stopped.
        tracer.send_signal(signal.SIGINT)
        await asyncio.to_thread(tracer.wait, ATTACH_SECONDS)
        assert tracer.stderr
        tracer.stderr.close()


def _tracer_of(pid: int) -> int | None:
    """Who traces it, 0 if nobody; None where it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("TracerPid:"):
                return int(line.split()[1])
    return None


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@asynccontextmanager
async def supervised(server: Postmaster) -> AsyncIterator[None]:
    """Starts it again whenever it has ended, as the service manager of a machine does."""

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

        To read the file at each look takes most of the time of a process that looks often.
        """
        self._file = file
        self._at_once = at_once
        self.set(0)

    def set(self, seconds: float) -> None:
        """Ahead of the true time by so many."""
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
            # As on a machine whose clock is set: what measures lengths of time is not.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    @property
    def prefix(self) -> list[str]:
        """The same, for what is started through a command."""
        return ["env", *(f"{name}={value}" for name, value in self.environment.items())]
