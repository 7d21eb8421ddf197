"""`penstock dev` without an app, as a person meets it: one command in an empty folder, one link."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from journeys.site import accepted, seen
from support.waiting import eventually

SYSTEMS = ("marking", "essays", "scanner", "feedback", "studio")
# Five programs and a database start on two cores that others use as well.
PATIENCE_SECONDS = 90
LOOK_SECONDS = 0.2

ELSEWHERE = {
    "PENSTOCK_PUBLIC_URL": "https://queue.example.org",
    "PENSTOCK_WORKER_ID": "the-large-one",
}

Now = dict[str, Any]


class Demo:
    """One start of it. What it prints is JSON, and then what it logs."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "dev", "--port", str(port), "--json"],
                cwd=folder,
                # What is set for something else is not for the demo.
                env=_environment() | ELSEWHERE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout
        greeting = self.process.stdout.readline()
        assert greeting, self.printed
        self.told: dict[str, Any] = json.loads(greeting)

    @property
    def printed(self) -> str:
        return self.log.read_text()

    async def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Another Python program in its folder."""
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, *words],
            cwd=self.folder,
            env=_environment() | env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )

    def pids(self) -> list[int]:
        """Of its processes, but for itself and the database."""
        pid = self.process.pid
        # Of each thread its own children: it may be any of them that has started them.
        lists = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(one) for text in lists for one in text.read_text().split()]

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.process.stdout:
            self.process.stdout.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}


class Visitor:
    """Somebody on the landing page, signed in."""

    def __init__(self, client: httpx.AsyncClient, form_token: str) -> None:
        self.client = client
        self.form_token = form_token

    async def now(self) -> Now:
        return accepted(await self.client.get("/demo/now?lang=en"))

    async def press(self, order: str, **fields: str) -> httpx.Response:
        """One of the buttons: `worker/kill`, `model/stop`, `model/start`."""
        return await self.client.post(
            f"/demo/{order}", data={"form_token": self.form_token, **fields}
        )

    async def sees(self, what: str, test: Any) -> Now:
        """Wait until `test` holds of what the page is told."""
        return await seen(self.now, test, what, seconds=PATIENCE_SECONDS, poll=LOOK_SECONDS)

    async def reads(self, pattern: str) -> str:
        """Wait for a line of the story."""

        def lines(now: Now) -> list[str]:
            return [one["text"] for one in now["story"] if re.search(pattern, one["text"])]

        now = await self.sees(f"a line of the story: {pattern}", lines)
        return lines(now)[0]


@asynccontextmanager
async def visitor(demo: Demo) -> AsyncIterator[Visitor]:
    """By the operator's secret: the printed link is good for one."""
    async with _client(demo) as client:
        page = await client.get("/login")
        token = _field(page.text, "form_token")
        form = {"key": demo.told["secret"], "form_token": token, "next": "demo"}
        landing = await client.post("/login", data=form)
        assert landing.url.path == "/demo", landing.text
        yield Visitor(client, _field(landing.text, "form_token"))


def stranger(demo: Demo) -> httpx.AsyncClient:
    return _client(demo)


def _client(demo: Demo) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=demo.told["url"],
        trust_env=False,
        follow_redirects=True,
        timeout=PATIENCE_SECONDS,
    )


def _field(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]+)"', page)
    assert found, page
    return found[1]


async def are_gone(pids: list[int]) -> None:
    async def gone() -> bool:
        await asyncio.sleep(LOOK_SECONDS)
        return not any(_is_alive(pid) for pid in pids)

    await eventually(gone, f"the processes {pids} are gone", seconds=PATIENCE_SECONDS)


def _is_alive(pid: int) -> bool:
    try:
        # Z: it has ended, and nobody has asked for its exit code yet.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
