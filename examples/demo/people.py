"""Simulated visitors who use the five systems over HTTP, at the pace of people.

They pause while many jobs wait, and while nobody has used the landing page for a while.
"""

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from uuid import uuid4

import aiohttp

from demo import texts
from demo.readings import DATABASE_UNAVAILABLE
from feedback.pupils import class_of_fifty

# With this many waiting jobs, visitors of that queue pause.
MOST_WAITING = 12
# Visitors pause when nobody has opened the landing page or pressed a button on it for this long. An
# open page does not count: the systems' tables would grow for days.
ATTENTION_SECONDS = 7_200.0
_CALL_SECONDS = 10.0
_AGAIN_SECONDS = 1.0

_log = logging.getLogger("penstock.demo")

Waiting = Callable[[str], Awaitable[int]]


class Unwell(Exception):  # noqa: N818  # named for what happened
    """A call got an unexpected answer."""


class Visitor(ABC):
    """A visitor of one system; `pace`: the average seconds between two visits."""

    queue: str
    pace: float

    def __init__(self, url: str, secrets: dict[str, str], random: Random) -> None:
        self._url = url
        self._secrets = secrets
        self._random = random

    @abstractmethod
    async def seed(self) -> None:
        """Create the first data; repeated calls change nothing."""

    @abstractmethod
    async def visit(self) -> None:
        """Use the system once."""

    @asynccontextmanager
    async def _window(self, **headers: str) -> AsyncIterator["Window"]:
        jar = aiohttp.CookieJar(unsafe=True)  # unsafe: also for an address without a name
        async with aiohttp.ClientSession(
            self._url,
            cookie_jar=jar,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=_CALL_SECONDS),
        ) as client:
            yield Window(client)


class Window:
    """A browser window with its own cookies."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self._client = client

    async def get(self, path: str, **query: str) -> str:
        async with self._client.get(path, params=query) as answer:
            return await self._read(answer)

    async def post(
        self,
        path: str,
        form: dict[str, str] | None = None,
        *,
        body: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> str:
        headers = {"Idempotency-Key": key} if key else None
        async with self._client.post(path, data=form, json=body, headers=headers) as answer:
            return await self._read(answer)

    @staticmethod
    async def _read(answer: aiohttp.ClientResponse) -> str:
        text = await answer.text()
        if not answer.ok:
            raise Unwell(f"{answer.method} {answer.url.path}: {answer.status}")
        return text


class Teacher(Visitor):
    """Requests marks for one assignment, a few at a time; people have the other assignment."""

    queue, pace = "marking", 5.0
    assignment = "a2"

    async def seed(self) -> None:
        await self.visit()

    async def visit(self) -> None:
        path = f"/api/assignments/{self.assignment}"
        async with self._window(**{"X-Requested-With": "marking"}) as window:
            await window.get("/sign-in", code=self._secrets["MARKING_TEACHER_CODE"])
            answers = json.loads(await window.get(path))["answers"]
            new = [one["id"] for one in answers if one["status"] == "unmarked"]
            if not new:
                # Start over when all answers are marked.
                if all(one["status"] == "marked" for one in answers):
                    await window.post(f"{path}/clear")
                return
            for one in new[: self._random.randint(1, 3)]:
                await window.post(f"{path}/mark", body={"submission_id": one})


class Writer(Visitor):
    queue, pace = "essays", 4.0

    async def seed(self) -> None:
        for number in range(4):
            await self._write(f"seed-essay-{number}", Random(number))

    async def visit(self) -> None:
        await self._write(uuid4().hex, self._random)

    async def _write(self, key: str, random: Random) -> None:
        task, essay = texts.essay(random)
        async with self._window(**{"X-Requested-With": "practice"}) as window:
            await window.post("/sign-in", {"name": f"{random.choice(texts.NAMES)} (Demo)"})
            form = {"task": task, "essay": essay, "submission_key": key}
            await window.post("/api/submission-save", form)


class Author(Visitor):
    queue, pace = "scanner", 5.0

    async def seed(self) -> None:
        for number in range(3):
            await self._send(f"seed-package-{number:04}", Random(number))

    async def visit(self) -> None:
        await self._send(uuid4().hex, self._random)

    async def _send(self, key: str, random: Random) -> None:
        name, text = texts.package(random)
        async with self._window() as window:
            await window.post("/api/v1/submissions", body={"name": name, "text": text}, key=key)


class Pupil(Visitor):
    queue, pace = "ollama", 6.0

    async def seed(self) -> None:
        for number, (name, draft) in enumerate(class_of_fifty()[:4]):
            await self._hand_in(name, draft, f"seed-pupil-{number:04}")

    async def visit(self) -> None:
        name, draft = self._random.choice(class_of_fifty())
        await self._hand_in(name, draft, draft.key)

    async def _hand_in(self, name: str, draft: Any, key: str) -> None:
        async with self._window(**{"X-Requested-With": "aufgaben"}) as window:
            # People who sign in with their own name must not see a simulated pupil's texts.
            await window.post("/anmelden", {"name": f"{name} (Demo)"})
            form = {"task": draft.task, "answer": draft.answer, "submission_key": key}
            await window.post("/api/abgaben", form)


class Customer(Visitor):
    """Orders as a customer with a large plan; the other customers are left to people."""

    queue, pace = "studio", 5.0
    # The last one has a plan with a thousand submits per hour and comes most often.
    names, often = ("customer-3", "customer-4"), (1, 12)
    yours = "customer-2"
    least_credits = 12

    async def seed(self) -> None:
        for name in (self.yours, *self.names):
            async with self._at(name) as window:
                if json.loads(await window.get("/api/history"))["items"]:
                    continue
                for number in range(2):
                    await self._order(window, f"seed-{name}-{number}")

    async def visit(self) -> None:
        [name] = self._random.choices(self.names, self.often)
        async with self._at(name) as window:
            has = json.loads(await window.get("/api/balance"))["account"]
            if has["balance"] < self.least_credits:
                await window.post("/api/operator/credits", body={"reference": uuid4().hex})
            await self._order(window, uuid4().hex)

    @asynccontextmanager
    async def _at(self, name: str) -> AsyncIterator[Window]:
        async with self._window(**{"X-Requested-With": "studio"}) as window:
            await window.post("/sign-in", {"customer": name})
            await window.get("/operator", code=self._secrets["STUDIO_OPERATOR_CODE"])
            yield window

    async def _order(self, window: Window, key: str) -> None:
        order = {
            "job_type": self._random.choice(texts.KINDS),
            "prompt": texts.prompt(self._random),
            "images": self._random.randint(1, 3),
            "quality": "standard",
        }
        await window.post("/api/enqueue-generation", body=order, key=key)


KINDS: dict[str, type[Visitor]] = {
    "marking": Teacher,
    "essays": Writer,
    "scanner": Author,
    "feedback": Pupil,
    "studio": Customer,
}


class People:
    def __init__(self, urls: dict[str, str], secrets: dict[str, str], waiting: Waiting) -> None:
        self._visitors = [KINDS[key](url, secrets, Random()) for key, url in urls.items()]
        self._waiting = waiting
        self._seen_at = time.monotonic()
        self._attention = asyncio.Event()
        self._logged: set[tuple[str, type[Exception]]] = set()

    def notice(self) -> None:
        """Note that a person uses the landing page."""
        self._seen_at = time.monotonic()
        self._attention.set()

    @property
    def is_idle(self) -> bool:
        return time.monotonic() - self._seen_at > ATTENTION_SECONDS

    async def live(self) -> None:
        """Let all visitors come, each at their own pace, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for visitor in self._visitors:
                group.create_task(self._come(visitor))

    async def _come(self, visitor: Visitor) -> None:
        await self._managed(visitor, visitor.seed)
        while True:
            await asyncio.sleep(visitor.pace * Random().uniform(0.6, 1.4))
            await self._until_seen()
            await self._managed(visitor, lambda: self._visit(visitor))

    async def _visit(self, visitor: Visitor) -> None:
        if await self._waiting(visitor.queue) < MOST_WAITING:
            await visitor.visit()

    async def _until_seen(self) -> None:
        while self.is_idle:
            self._attention.clear()
            await self._attention.wait()

    async def _managed(self, visitor: Visitor, work: Callable[[], Awaitable[None]]) -> None:
        """Ignore errors of a site or database that restarts; the visitor comes again later."""
        try:
            await work()
        except (
            *DATABASE_UNAVAILABLE,
            TimeoutError,
            aiohttp.ClientError,
            Unwell,
            ValueError,
            LookupError,
        ):
            await asyncio.sleep(_AGAIN_SECONDS)
        except Exception as error:  # noqa: BLE001  # the other visitors continue
            # Logged once per kind of error, because visitors come every few seconds.
            odd = (visitor.queue, type(error))
            if odd not in self._logged:
                self._logged.add(odd)
                _log.exception("a visitor of %s failed and comes again", visitor.queue)
            await asyncio.sleep(_AGAIN_SECONDS)
