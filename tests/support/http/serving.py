"""`penstock serve` as another process, to be killed, restarted, or started more than once."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from support.http.site import SECRET

START_SECONDS = 30.0
STOP_SECONDS = 20.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Served:
    def __init__(
        self,
        dsn: str,
        folder: Path,
        port: int | None = None,
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`prefix`: the command that starts it, like `ip netns exec a`."""
        self._more = {"PENSTOCK_SECRET": SECRET, **(environment or {})}
        self.port = port or free_port()
        self.host = host
        self._prefix = prefix
        self._dsn = dsn
        self._log = folder / f"serve-{self.port}.log"
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def client(self, key: str = SECRET) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"http://{self.host}:{self.port}",
            headers={"Authorization": f"Bearer {key}"},
            timeout=30,
            limits=httpx.Limits(max_connections=None),
        )

    async def start(self) -> None:
        """Return when it accepts requests."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
        }
        words = ["serve", "--host", self.host, "--port", str(self.port), "--json"]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220  # returns at once
                [*self._prefix, sys.executable, "-m", "penstock", *words],
                env=environment | {"PENSTOCK_DSN": self._dsn, **self._more},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout
        async with asyncio.timeout(START_SECONDS):
            line = await asyncio.to_thread(self._process.stdout.readline)
        assert line, self._log.read_text()
        assert json.loads(line)["url"].endswith(str(self.port))

    async def stop(self) -> int:
        """Stop it; return its exit code."""
        assert self._process
        self._process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        self.kill()  # closes its pipe
        return code

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process is not None and self._process.stdout:
            self._process.stdout.close()


@contextmanager
def serving(
    dsn: str, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Served]:
    served = Served(dsn, folder, environment=environment)
    try:
        yield served
    finally:
        served.kill()
