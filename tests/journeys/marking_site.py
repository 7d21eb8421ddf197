"""The marking example as its users meet it: a teacher, and a function elsewhere that can fail."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from journeys.processes import EXAMPLES, LOOK_SECONDS, Program, close_up, free_port
from support.signing import SECRET
from support.waiting import eventually

FOLDER = EXAMPLES / "marking"
# A word of many answers: nothing that pupils write may be printed by any program.
MARK = "sunlight"
HEADERS = {"X-Requested-With": "marking"}
CODE = "only-the-teacher"
QUEUE_SECRET = "only-the-clock"  # noqa: S105
CLASS = 30
# How long the function takes for a mark, and what it is told to do wrong: nothing.
SECONDS = 0.1
WELL = {"repeat": 1, "fail": 0, "retryable": False, "odd": 0, "silent": 0}
# Whole journeys: processes start, a function takes its time, and two of them share two cores.
PATIENCE_SECONDS = 60

Shown = dict[str, Any]


class Teacher:
    """Somebody in front of a browser, who came by the link with the code."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def enter(self) -> None:
        answer = await self.client.get("/sign-in", params={"code": CODE})
        assert answer.status_code == 303, answer.text

    async def ask(self, path: str) -> Shown:
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        found: Shown = answer.json()
        return found

    async def press(self, path: str, **fields: Any) -> httpx.Response:
        return await self.client.post(path, json=fields, headers=HEADERS)

    async def look(self, assignment: str = "a1") -> Shown:
        return await self.ask(f"/api/assignments/{assignment}")

    async def mark(self, pupil: str | None = None, assignment: str = "a1") -> Shown:
        """Press "Mark with AI" of a pupil, or "Mark all"."""
        fields = {}
        if pupil is not None:
            [one] = [
                one for one in (await self.look(assignment))["answers"] if one["pupil"] == pupil
            ]
            fields["submission_id"] = one["id"]
        answer = await self.press(f"/api/assignments/{assignment}/mark", **fields)
        assert answer.status_code == 200, answer.text
        found: Shown = answer.json()
        return found

    async def answer_of(self, pupil: str, assignment: str = "a1") -> Shown:
        found: Shown
        [found] = [one for one in (await self.look(assignment))["answers"] if one["pupil"] == pupil]
        return found

    async def sees(self, what: str, assignment: str = "a1", **totals: int) -> Shown:
        """Wait until there are at least so many of each."""
        found: Shown = {}

        async def shown() -> bool:
            # The web app is killed in some journeys, and comes back.
            try:
                found.update(await self.look(assignment))
            except httpx.TransportError:
                return False
            return all(found["totals"][name] >= number for name, number in totals.items())

        try:
            await eventually(shown, what, seconds=PATIENCE_SECONDS, poll=LOOK_SECONDS)
        except AssertionError as late:
            raise AssertionError(f"{late}; at the end: {found.get('totals')}") from None
        return found

    async def sees_answer(
        self, pupil: str, what: str, assignment: str = "a1", **wanted: Any
    ) -> Shown:
        found: Shown = {}

        async def shown() -> bool:
            found.update(await self.answer_of(pupil, assignment))
            return all(found[name] == value for name, value in wanted.items())

        try:
            await eventually(shown, what, seconds=PATIENCE_SECONDS, poll=LOOK_SECONDS)
        except AssertionError as late:
            raise AssertionError(f"{late}; at the end: {found}") from None
        return found

    @asynccontextmanager
    async def listening(self, assignment: str = "a1") -> AsyncIterator[AsyncIterator[Shown]]:
        """The events of an assignment's topic, as its page gets them."""
        url = (await self.ask(f"/api/assignments/{assignment}/live"))["url"]
        async with self.client.stream("GET", url) as answer:
            assert answer.status_code == 200, answer.status_code
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield _jobs(answer.aiter_lines())


async def _jobs(lines: AsyncIterator[str]) -> AsyncIterator[Shown]:
    event = ""
    async for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data" and event == "job":
            yield json.loads(value)


class Marking:
    """Web app, function and workers, each to be started and ended by itself."""

    def __init__(self, dsn: str, folder: Path, drive: str = "worker") -> None:
        self._folder = folder
        self.web_port = free_port()
        self.function_port = free_port()
        self.control_port = free_port()
        self.log = folder / "function.jsonl"
        self.env = {
            "PENSTOCK_DSN": dsn,
            "PENSTOCK_SECRET": SECRET,
            "PENSTOCK_PUBLIC_URL": "",
            # The document's name for it.
            "AI_MARKING_CALLBACK_URL": f"http://127.0.0.1:{self.web_port}",
            "MARKING_FUNCTION_URL": f"http://127.0.0.1:{self.function_port}/mark",
            "MARKING_FUNCTION_SECRET": "between the queue and the function",
            "MARKING_CONTROL_URL": f"http://127.0.0.1:{self.control_port}",
            "MARKING_TEACHER_CODE": CODE,
            "MARKING_QUEUE_SECRET": QUEUE_SECRET,
            "MARKING_SECRET": "the same for all starts",
            "MARKING_DRIVE": drive,
            "MARKING_CONFIG": str(FOLDER / "penstock.toml"),
        }
        self.programs: list[Program] = []

    def configure(self, settings: Mapping[str, str]) -> None:
        """The example's file with these settings instead, for web app and worker."""
        text = (FOLDER / "penstock.toml").read_text()
        for name, value in settings.items():
            text, times = re.subn(rf"^{name} = .*?$", f"{name} = {value}", text, flags=re.MULTILINE)
            assert times == 1, name
        path = self._folder / "penstock.toml"
        path.write_text(text)
        self.env["MARKING_CONFIG"] = str(path)

    def start_web(self) -> Program:
        words = ["uvicorn", "marking.app:web", "--port", str(self.web_port)]
        words += ["--timeout-keep-alive", str(PATIENCE_SECONDS), "--timeout-graceful-shutdown", "8"]
        return self._start("web", words, self.web_port)

    def start_function(self, seconds: float = SECONDS) -> Program:
        at = ["--port", str(self.function_port), "--control", str(self.control_port)]
        words = ["marking.function", *at, "--seconds", str(seconds), "--log", str(self.log)]
        return self._start("function", words, self.control_port)

    def start_worker(self, name: str = "worker") -> Program:
        self.env["PENSTOCK_WORKER_ID"] = name
        return self._start(name, ["penstock", "worker", "marking.jobs:app"], None)

    def _start(self, name: str, words: list[str], port: int | None) -> Program:
        program = Program(["-m", *words], self.env, self._folder / f"{name}.log", port=port)
        self.programs.append(program)
        return program

    def end(self) -> None:
        """End all at once; nobody's answer has been printed."""
        for program in self.programs:
            program.ask_to_end()
        for program in self.programs:
            program.end()
        for program in self.programs:
            assert MARK not in program.printed.lower(), program.words
            assert "Traceback" not in program.printed, program.printed

    def settle(self) -> None:
        """For the next test: nobody at work, nothing in work, and a function that is well."""
        close_up(self.env["PENSTOCK_DSN"], self.programs)
        for port, start in (
            (self.web_port, self.start_web),
            (self.control_port, self.start_function),
        ):
            if not any(one.port == port and one.is_running for one in self.programs):
                start().wait_ready()
        for path, body in (("/_start", None), ("/_order", {**WELL, "seconds": SECONDS})):
            url = f"http://127.0.0.1:{self.control_port}{path}"
            httpx.post(url, json=body, trust_env=False).raise_for_status()

    async def order(self, **wanted: Any) -> None:
        """Tell the function to misbehave."""
        await self.command("/_order", wanted)

    async def command(self, path: str, body: Any = None) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{self.control_port}{path}"
            (await client.post(url, json=body)).raise_for_status()

    def events(self, *names: str) -> list[Shown]:
        """What the function has written down."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        found = [json.loads(line) for line in lines]
        return [one for one in found if not names or one["event"] in names]

    def most_at_once(self) -> int:
        """The referee: how many the function had in hand at the same time, at most."""
        most = 0
        at_work: set[tuple[str, int]] = set()
        for one in self.events("up", "begin", "end"):
            if one["event"] == "up":
                at_work.clear()  # what an earlier process had in hand went with it
            elif one["event"] == "begin":
                at_work.add((one["job"], one["attempt"]))
            else:
                at_work.discard((one["job"], one["attempt"]))
            most = max(most, len(at_work))
        return most


@contextmanager
def running(
    dsn: str,
    folder: Path,
    *,
    drive: str = "worker",
    seconds: float = SECONDS,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Marking]:
    """Web app and function; a worker when the test starts one."""
    site = Marking(dsn, folder, drive)
    site.configure(settings or {})
    try:
        # Side by side: most of a start is Python reading files.
        for program in (site.start_web(), site.start_function(seconds)):
            program.wait_ready()
        yield site
    finally:
        site.end()


@asynccontextmanager
async def teacher(site: Marking) -> AsyncIterator[Teacher]:
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{site.web_port}", trust_env=False, timeout=PATIENCE_SECONDS
    ) as client:
        person = Teacher(client)
        await person.enter()
        yield person


async def assert_each_marked_once(
    conn: asyncpg.Connection, site: Marking, assignment: str = "a1"
) -> None:
    """All thirty have a mark that was written once, and the function never had two in hand."""
    rows = await conn.fetch(
        "select pupil, times_marked, cardinality(job_ids) as jobs from marking.submission"
        " where assignment_id = $1",
        assignment,
    )
    assert len(rows) == CLASS
    assert {(row["times_marked"], row["jobs"]) for row in rows} == {(1, 1)}
    assert site.most_at_once() == 1
    ends = await conn.fetch(
        "select status::text, count(*) from penstock.finished where topic = $1 group by 1",
        assignment,
    )
    assert [tuple(row) for row in ends] == [("succeeded", CLASS)]
    assert await conn.fetchval("select count(*) from penstock.job") == 0
    assert await conn.fetch("select * from penstock.check()") == []
