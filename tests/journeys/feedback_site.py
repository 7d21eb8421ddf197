"""The feedback example as its users meet it: pupils, their teacher, and a model with a switch."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg

from journeys.processes import EXAMPLES, drain
from journeys.site import (
    PATIENCE_SECONDS,
    Shown,
    SiteWithModel,
    Visitor,
    accepted,
    having,
    opened,
    seen,
    visiting,
)

FOLDER = EXAMPLES / "feedback"
# Nothing that pupils write may be printed by any program: `Site.end` looks for this word.
MARK = "Zitronenfalter"
ANSWER = f"Ein {MARK} sieht das Blatt und weiß nicht, warum es grün ist."
HEADERS = {"X-Requested-With": "aufgaben"}
CODE = "only-the-teacher"


class Person(Visitor):
    async def sign_in(self, name: str) -> None:
        await self.sign_in_at("/anmelden", name=name)

    async def hand_in(self, **fields: str) -> httpx.Response:
        """Press "Abgeben". What is not said is right."""
        right = {"task": "blatt", "answer": ANSWER, "submission_key": uuid4().hex}
        return await self.client.post("/api/abgaben", data={**right, **fields}, headers=HEADERS)

    async def submit(self, **fields: str) -> Shown:
        found: Shown = accepted(await self.hand_in(**fields))["submission"]
        return found

    async def look(self, submission: int) -> Shown:
        found: Shown = (await self.ask(f"/api/abgaben/{submission}"))["submission"]
        return found

    async def sees(self, submission: int, what: str, **wanted: Any) -> Shown:
        """Wait until the submission shows these values."""
        return await seen(lambda: self.look(submission), having(**wanted), what)


class Teacher(Visitor):
    """Who came by the link with the code."""

    async def press(self, path: str) -> Any:
        return accepted(await self.client.post(f"/api/klasse/{path}", headers=HEADERS))

    async def sees_class(self) -> Shown:
        return await self.ask("/api/klasse")

    async def waits_until(self, what: str, **counts: int) -> Shown:
        """Wait until so many submissions have these states; in the end the whole class."""

        def fits(found: Shown) -> bool:
            states = [one["feedback_status"] for one in found["submissions"]]
            return all(states.count(name) >= number for name, number in counts.items())

        return await seen(self.sees_class, fits, what)


class Feedback(SiteWithModel):
    """Web app, model and worker."""

    example = "feedback"
    private = MARK
    # Fifty people sign in one after the other before the first one sends something.
    web_options = ("--timeout-keep-alive", str(PATIENCE_SECONDS))
    # A third of a second for an answer of 20 tokens.
    pace = ("--latency", "0.1", "--tokens", "20", "--tokens-per-second", "90")

    def __init__(self, dsn: str, folder: Path) -> None:
        super().__init__(dsn, folder, "OLLAMA_URL")
        self.env |= {
            "OLLAMA_MODEL": "llama3.2",
            "FEEDBACK_TEACHER_CODE": CODE,
            "FEEDBACK_SECRET": "the same for all starts",
            "FEEDBACK_CONFIG": str(FOLDER / "penstock.toml"),
            "ENABLE_ASYNC_FEEDBACK": "true",
        }

    @property
    def worker_target(self) -> str:
        return self.env["FEEDBACK_CONFIG"]

    def run(self, *words: str) -> str:
        """A command of `penstock`, to its end; what it printed."""
        command = self.start("command", ["penstock", *words], None)
        before = len(command.printed)
        assert command.popen.wait(PATIENCE_SECONDS) == 0, command.printed
        return command.printed[before:]

    def settle(self) -> None:
        """For the next test: no submissions, nothing in work, and a model that is well."""
        self.heal()
        drain(self.env["PENSTOCK_DSN"], self.programs)
        with psycopg.connect(self.env["PENSTOCK_DSN"]) as conn:
            conn.execute("delete from feedback.submission")
            conn.execute("select penstock.reset_queue('ollama')")


def running(dsn: str, folder: Path, *, model: bool = True) -> AbstractContextManager[Feedback]:
    """Web app and model; a worker when the test starts one."""
    site = Feedback(dsn, folder)
    return opened(site, site.start_web, *([site.start_model] if model else []))


@asynccontextmanager
async def pupil(site: Feedback, name: str = "Ada") -> AsyncIterator[Person]:
    async with visiting(site) as client:
        person = Person(client)
        await person.sign_in(name)
        yield person


@asynccontextmanager
async def teacher(site: Feedback) -> AsyncIterator[Teacher]:
    async with visiting(site) as client:
        person = Teacher(client)
        await person.enter("/klasse", CODE)
        yield person
