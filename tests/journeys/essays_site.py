"""The essays example as its users meet it: a browser's requests, and the model's faults."""

import base64
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from journeys.processes import Program, close_up
from journeys.site import Shown, Site, Visitor, accepted, local, seen, visiting

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
Files = Mapping[str, tuple[str, bytes, str]]


class Person(Visitor):
    async def sign_in(self, name: str) -> None:
        await self.sign_in_at("/sign-in", name=name)

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
        number: int = accepted(await self.save(files=files, **fields))["submission_id"]
        return number

    async def status(self, submission: int) -> Shown:
        found: Shown = (await self.ask("/api/essay-status", id=submission))["submission"]
        return found

    async def sees(self, submission: int, what: str, **wanted: Any) -> Shown:
        """Wait until the submission shows these values; texts may stand anywhere in theirs."""

        def fits(found: Shown) -> bool:
            return all(_fits(found[name], value) for name, value in wanted.items())

        return await seen(lambda: self.status(submission), fits, what)


def _fits(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, str) and isinstance(found, str):
        return wanted in found
    return bool(found == wanted)


class Essays(Site):
    """Web app, model and worker."""

    example = "essays"
    web_options = ()

    def __init__(self, dsn: str, folder: Path) -> None:
        super().__init__(dsn, folder)
        self.env |= {
            "AI_SERVICE_URL": local(self.model_port),
            "ESSAYS_SECRET": "the same for all starts",
            "ESSAYS_RETRY_DELAY": "0.2",
            "MODEL_SECONDS": "0.2",
        }

    @property
    def model_port(self) -> int:
        """It takes orders where it takes calls."""
        return self.control_port

    def start_model(self) -> Program:
        words = ["essays.model", "--port", str(self.model_port)]
        return self.start("model", words, self.model_port)

    def settle(self) -> None:
        """For the next test: nobody at work, nothing in work, and a model that is well."""
        close_up(self.env["PENSTOCK_DSN"], self.programs)
        if not self.runs_at(self.model_port):
            self.start_model().wait_ready()
        self.command_now("/fault", {"mode": "ok"})

    async def order(self, mode: str, *, path: str | None = None) -> None:
        """Tell the model to misbehave, or to stop it."""
        await self.command("/fault", {"mode": mode, "path": path})

    async def paid(self) -> dict[str, int]:
        """How often each call to the model was made, by its idempotency key."""
        calls: dict[str, int] = await self.command("/calls", method="GET")
        return calls


@asynccontextmanager
async def browser(site: Essays) -> AsyncIterator[Person]:
    async with visiting(site) as client:
        yield Person(client)
