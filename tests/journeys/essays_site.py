"""The essays example as its users meet it: a browser's requests, and the model's faults."""

import base64
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from journeys.processes import LOOK_SECONDS, Program, close_up, free_port
from support.signing import SECRET
from support.waiting import eventually

ESSAY = "However, the sea is blue because light scatters. Therefore it looks cold in winter."
TASK = "task-2"


def _part(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + kind + data + checksum


# A point each.
PNG = (
    b"\x89PNG\r\n\x1a\n"
    + _part(b"IHDR", b"\0\0\0\x01\0\0\0\x01\x08\0\0\0\0")
    + _part(b"IDAT", zlib.compress(b"\0\0"))
    + _part(b"IEND", b"")
)
JPEG = (
    b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"
    b"\xff\xc0\0\x0b\x08\0\x01\0\x01\x01\x01\x11\0\xff\xda\0\x08\x01\x01\0\0\x3f\0\x7f\xff\xd9"
)
GIF = b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;"
WEBP = base64.b64decode("UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==")
HEADERS = {"X-Requested-With": "practice"}
# Whole journeys: processes start, a model takes its time, and two of them share two cores.
PATIENCE_SECONDS = 60

Files = Mapping[str, tuple[str, bytes, str]]


class Person:
    """Somebody in front of a browser."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def sign_in(self, name: str) -> None:
        answer = await self.client.post("/sign-in", data={"name": name})
        assert answer.status_code == 303, answer.text

    async def save(self, *, files: Files | None = None, **fields: str) -> httpx.Response:
        """Press Analyze. What is not said is right."""
        right = {"task": TASK, "essay": ESSAY, "submission_key": uuid4().hex}
        return await self.client.post(
            "/api/submission-save",
            data={**right, **fields},
            files=files or {"image": ("", b"", "application/octet-stream")},
            headers=HEADERS,
        )

    async def submit(self, *, files: Files | None = None, **fields: str) -> int:
        answer = await self.save(files=files, **fields)
        assert answer.status_code == 200, answer.text
        number: int = answer.json()["submission_id"]
        return number

    async def status(self, submission: int) -> dict[str, Any]:
        answer = await self.client.get("/api/essay-status", params={"id": submission})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["submission"]
        return found

    async def sees(self, submission: int, what: str, **wanted: Any) -> dict[str, Any]:
        """Wait until the submission shows these values; texts may stand anywhere in theirs."""
        found: dict[str, Any] = {}

        async def shown() -> bool:
            found.update(await self.status(submission))
            return all(_fits(found[name], value) for name, value in wanted.items())

        try:
            await eventually(shown, what, seconds=PATIENCE_SECONDS, poll=LOOK_SECONDS)
        except AssertionError as late:
            raise AssertionError(f"{late}; at the end: {found}") from None
        return found


def _fits(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, str) and isinstance(found, str):
        return wanted in found
    return bool(found == wanted)


@asynccontextmanager
async def browser(port: int) -> AsyncIterator[Person]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        yield Person(client)


class Essays:
    """Web app, model and worker, each to be started and ended by itself."""

    def __init__(self, dsn: str, logs: Path) -> None:
        self._logs = logs
        self.web_port = free_port()
        self.model_port = free_port()
        self.env = {
            "PENSTOCK_DSN": dsn,
            "PENSTOCK_SECRET": SECRET,
            "AI_SERVICE_URL": f"http://127.0.0.1:{self.model_port}",
            "ESSAYS_SECRET": "the same for all starts",
            "ESSAYS_RETRY_DELAY": "0.2",
            "MODEL_SECONDS": "0.2",
        }
        self.programs: list[Program] = []

    def start_web(self) -> Program:
        return self._start("web", ["uvicorn", "essays.app:web"], self.web_port)

    def start_model(self) -> Program:
        return self._start("model", ["essays.model"], self.model_port)

    def start_worker(self, name: str = "worker") -> Program:
        self.env["PENSTOCK_WORKER_ID"] = name
        return self._start(name, ["penstock", "worker", "essays.jobs:app"], None)

    def _start(self, name: str, words: list[str], port: int | None) -> Program:
        at = ["--port", str(port)] if port else []
        program = Program(["-m", *words, *at], self.env, self._logs / f"{name}.log", port=port)
        self.programs.append(program)
        return program

    def end(self) -> None:
        """End all at once: a worker waits for its jobs, and those for a model that may hang."""
        for program in self.programs:
            program.ask_to_end()
        for program in self.programs:
            program.end()

    def settle(self) -> None:
        """For the next test: nobody at work, nothing in work, and a model that is well."""
        close_up(self.env["PENSTOCK_DSN"], self.programs)
        if not any(one.port == self.model_port and one.is_running for one in self.programs):
            self.start_model().wait_ready()
        url = f"http://127.0.0.1:{self.model_port}/fault"
        httpx.post(url, json={"mode": "ok"}, trust_env=False).raise_for_status()

    async def order(self, mode: str, *, path: str | None = None) -> None:
        """Tell the model to misbehave, or to stop it."""
        await self._model("POST", "/fault", {"mode": mode, "path": path})

    async def paid(self) -> dict[str, int]:
        """How often each call to the model was made, by its idempotency key."""
        calls: dict[str, int] = await self._model("GET", "/calls")
        return calls

    async def _model(self, method: str, path: str, body: Any = None) -> Any:
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{self.model_port}{path}"
            return (await client.request(method, url, json=body)).raise_for_status().json()
