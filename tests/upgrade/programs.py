"""Workers and API servers of any version, as processes, behind something like a load balancer."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from support.http.serving import free_port
from support.http.site import SECRET
from support.waiting import eventually
from upgrade.packages import Package

START_SECONDS, STOP_SECONDS = 30.0, 40.0


class Program:
    """One process and its log."""

    def __init__(self, package: Package, dsn: str, folder: Path, name: str, *words: str) -> None:
        self.name = f"{package.name}-{name}"
        self.log = folder / f"{self.name}.log"
        environment = package.environment(dsn) | {
            "PENSTOCK_WORKER_ID": self.name,
            "UPGRADE_NAME": self.name,
            "UPGRADE_LOG": str(folder / "handlers.log"),
            "UPGRADE_HANDED": str(folder / "handed.jsonl"),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", *words],
                env=environment,
                cwd=package.folder,
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    async def until_said(self, words: str) -> None:
        async def said() -> bool:
            assert self.process.poll() is None, f"{self.name} has ended: {self.said}"
            return words in self.said

        await eventually(said, f"{self.name} says {words!r}", seconds=START_SECONDS)

    async def leave(self) -> None:
        """By SIGTERM, in good order."""
        self.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(self.process.wait, STOP_SECONDS)
        assert code == 0, f"{self.name} left with {code}: {self.said}"

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, START_SECONDS)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Server(Program):
    def __init__(self, package: Package, dsn: str, folder: Path, name: str) -> None:
        self.port = free_port()
        words = ["serve", "upgraded:app", "--port", str(self.port), "--json"]
        super().__init__(package, dsn, folder, name, *words)
        self.leaves = asyncio.Event()
        """Set when the balancer sends nobody there any more."""
        self.open = 0
        """Requests on their way; streams are not counted."""
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {SECRET}"},
            timeout=30,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )


class Site:
    """All programs of one test on one database."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        self.folder = folder
        self.programs: list[Program] = []
        self.servers: list[Server] = []
        """Those that the balancer gives requests to."""
        self._turn = 0

    @property
    def server(self) -> Server:
        """The next one in turn."""
        self._turn += 1
        return self.servers[self._turn % len(self.servers)]

    def begin_worker(self, package: Package, name: str) -> Program:
        """Without waiting until it works."""
        worker = Program(package, self.dsn, self.folder, name, "worker", "upgraded:app")
        self.programs.append(worker)
        return worker

    async def worker(self, package: Package, name: str) -> Program:
        worker = self.begin_worker(package, name)
        await worker.until_said(" serves ")
        return worker

    async def serve(self, package: Package, name: str) -> Server:
        server = Server(package, self.dsn, self.folder, name)
        self.programs.append(server)
        await server.until_said('"url"')
        self.servers.append(server)
        return server

    async def retire(self, server: Server) -> None:
        """As a balancer does: no new requests; when those on their way are answered, SIGTERM."""
        self.servers.remove(server)
        server.leaves.set()

        async def drained() -> bool:
            return server.open == 0

        await eventually(drained, "what was sent there is answered", seconds=STOP_SECONDS)
        await server.leave()
        await server.client.aclose()

    async def close(self) -> None:
        for program in self.programs:
            program.kill()
            if isinstance(program, Server):
                await program.client.aclose()

    def faults(self) -> list[str]:
        """Lines of all logs that tell of an error."""
        return [
            f"{program.name}: {line}"
            for program in self.programs
            for line in program.said.splitlines()
            if "Traceback" in line or " ERROR " in line or " CRITICAL " in line
        ]

    def ran(self) -> list[tuple[str, int, str]]:
        """What handlers noted: job, attempt, worker."""
        lines = (self.folder / "handlers.log").read_text().splitlines()
        return [(job, int(attempt), by) for job, attempt, by in map(str.split, lines)]

    def handed(self, after: int) -> list[dict[str, object]]:
        """What was handed over, but for the first so many."""
        path = self.folder / "handed.jsonl"
        lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        return [json.loads(line) for line in lines[after:]]


@asynccontextmanager
async def site(dsn: str, folder: Path) -> AsyncIterator[Site]:
    made = Site(dsn, folder)
    try:
        yield made
    finally:
        await made.close()
