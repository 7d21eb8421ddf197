"""The feedback example as its users meet it: pupils, their teacher, and a model with a switch."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg

from journeys.processes import EXAMPLES, LOOK_SECONDS, Program, drain, free_port
from support.signing import SECRET
from support.waiting import eventually

FOLDER = EXAMPLES / "feedback"
# Nothing that pupils write may be printed by any program: `Feedback.end` looks for this word.
MARK = "Zitronenfalter"
ANSWER = f"Ein {MARK} sieht das Blatt und weiß nicht, warum es grün ist."
HEADERS = {"X-Requested-With": "aufgaben"}
CODE = "only-the-teacher"
# Whole journeys: processes start, a model takes its time, and two of them share two cores.
PATIENCE_SECONDS = 60

Shown = dict[str, Any]


class Person:
    """Somebody in front of a browser."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def sign_in(self, name: str) -> None:
        answer = await self.client.post("/anmelden", data={"name": name})
        assert answer.status_code == 303, answer.text

    async def hand_in(self, **fields: str) -> httpx.Response:
        """Press "Abgeben". What is not said is right."""
        right = {"task": "blatt", "answer": ANSWER, "submission_key": uuid4().hex}
        return await self.client.post("/api/abgaben", data={**right, **fields}, headers=HEADERS)

    async def submit(self, **fields: str) -> Shown:
        answer = await self.hand_in(**fields)
        assert answer.status_code == 200, answer.text
        found: Shown = answer.json()["submission"]
        return found

    async def look(self, submission: int) -> Shown:
        answer = await self.client.get(f"/api/abgaben/{submission}")
        assert answer.status_code == 200, answer.text
        found: Shown = answer.json()["submission"]
        return found

    async def sees(self, submission: int, what: str, **wanted: Any) -> Shown:
        """Wait until the submission shows these values."""
        found: Shown = {}

        async def shown() -> bool:
            found.update(await self.look(submission))
            return all(found[name] == value for name, value in wanted.items())

        try:
            await eventually(shown, what, seconds=PATIENCE_SECONDS, poll=LOOK_SECONDS)
        except AssertionError as late:
            raise AssertionError(f"{late}; at the end: {found}") from None
        return found


class Teacher(Person):
    """Who came by the link with the code."""

    async def enter(self) -> None:
        answer = await self.client.get("/klasse", params={"code": CODE})
        assert answer.status_code == 303, answer.text

    async def press(self, path: str) -> Any:
        answer = await self.client.post(f"/api/klasse/{path}", headers=HEADERS)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def sees_class(self) -> Shown:
        answer = await self.client.get("/api/klasse")
        assert answer.status_code == 200, answer.text
        found: Shown = answer.json()
        return found

    async def waits_until(self, what: str, **counts: int) -> Shown:
        """Wait until so many submissions have these states; in the end the whole class."""
        found: Shown = {}

        async def shown() -> bool:
            found.update(await self.sees_class())
            states = [one["feedback_status"] for one in found["submissions"]]
            return all(states.count(name) >= number for name, number in counts.items())

        try:
            await eventually(shown, what, seconds=PATIENCE_SECONDS, poll=LOOK_SECONDS)
        except AssertionError as late:
            raise AssertionError(f"{late}; at the end: {found}") from None
        return found


class Feedback:
    """Web app, model and worker, each to be started and ended by itself."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._folder = folder
        self.web_port = free_port()
        self.model_port = free_port()
        self.control_port = free_port()
        self.env = {
            "PENSTOCK_DSN": dsn,
            "PENSTOCK_SECRET": SECRET,
            "OLLAMA_URL": f"http://127.0.0.1:{self.model_port}",
            "OLLAMA_MODEL": "llama3.2",
            "MODEL_CONTROL_URL": f"http://127.0.0.1:{self.control_port}",
            "FEEDBACK_TEACHER_CODE": CODE,
            "FEEDBACK_SECRET": "the same for all starts",
            "FEEDBACK_CONFIG": str(FOLDER / "penstock.toml"),
            "ENABLE_ASYNC_FEEDBACK": "true",
        }
        self.programs: list[Program] = []

    def configure(self, file: str = "penstock.toml", **settings: str) -> None:
        """A file of the example with these settings instead, for web app and worker."""
        text = (FOLDER / file).read_text()
        for name, value in settings.items():
            text, times = re.subn(
                rf'^{name} = (""".*?"""|.*?$)',
                f"{name} = {value}",
                text,
                flags=re.MULTILINE | re.DOTALL,
            )
            assert times == 1, name
        path = self._folder / "penstock.toml"
        path.write_text(text)
        self.env["FEEDBACK_CONFIG"] = str(path)

    def start_web(self) -> Program:
        words = ["uvicorn", "feedback.app:web", "--port", str(self.web_port)]
        # Fifty people sign in one after the other before the first one sends something.
        words += ["--timeout-keep-alive", "60"]
        return self._start("web", words, self.web_port)

    def start_model(self, *options: str) -> Program:
        """One that takes a third of a second for an answer of 20 tokens, unless told otherwise."""
        pace = options or ("--latency", "0.1", "--tokens", "20", "--tokens-per-second", "90")
        at = ("--port", str(self.model_port), "--control", str(self.control_port))
        return self._start("model", ["penstock", "model", *at, *pace], self.model_port)

    def start_worker(self, name: str = "worker") -> Program:
        self.env["PENSTOCK_WORKER_ID"] = name
        return self._start(name, ["penstock", "worker", self.env["FEEDBACK_CONFIG"]], None)

    def run(self, *words: str) -> str:
        """A command of `penstock`, to its end; what it printed."""
        command = self._start("command", ["penstock", *words], None)
        before = len(command.printed)
        assert command.popen.wait(PATIENCE_SECONDS) == 0, command.printed
        return command.printed[before:]

    def _start(self, name: str, words: list[str], port: int | None) -> Program:
        program = Program(["-m", *words], self.env, self._folder / f"{name}.log", port=port)
        self.programs.append(program)
        return program

    def end(self) -> None:
        """End all at once; nobody's text has been printed."""
        for program in self.programs:
            program.ask_to_end()
        for program in self.programs:
            program.end()
        for program in self.programs:
            assert MARK not in program.printed, program.words

    def settle(self) -> None:
        """For the next test: no submissions, nothing in work, and a model that is well."""
        for path in ("/_heal", "/_start"):
            url = f"http://127.0.0.1:{self.control_port}{path}"
            httpx.post(url, trust_env=False).raise_for_status()
        drain(self.env["PENSTOCK_DSN"], self.programs)
        with psycopg.connect(self.env["PENSTOCK_DSN"]) as conn:
            conn.execute("delete from feedback.submission")
            conn.execute("select penstock.reset_queue('ollama')")

    async def order(self, **fault: Any) -> None:
        """Tell the model to misbehave."""
        await self._model("POST", "/_order", fault)

    async def report(self) -> Any:
        """What was asked of the model."""
        return await self._model("GET", "/_calls")

    async def _model(self, method: str, path: str, body: Any = None) -> Any:
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{self.control_port}{path}"
            return (await client.request(method, url, json=body)).raise_for_status().json()


@contextmanager
def running(dsn: str, folder: Path, *, model: bool = True) -> Iterator[Feedback]:
    """Web app and model; a worker when the test starts one."""
    site = Feedback(dsn, folder)
    try:
        # Side by side: most of a start is Python reading files.
        started = [site.start_web(), *([site.start_model()] if model else [])]
        for program in started:
            program.wait_ready()
        yield site
    finally:
        site.end()


@asynccontextmanager
async def pupil(site: Feedback, name: str = "Ada") -> AsyncIterator[Person]:
    async with _client(site.web_port) as client:
        person = Person(client)
        await person.sign_in(name)
        yield person


@asynccontextmanager
async def teacher(site: Feedback) -> AsyncIterator[Teacher]:
    async with _client(site.web_port) as client:
        person = Teacher(client)
        await person.enter()
        yield person


def _client(port: int) -> httpx.AsyncClient:
    # A submit with the queue off takes as long as the model does.
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE_SECONDS
    )
