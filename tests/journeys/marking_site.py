"""The marking example as its users meet it: a teacher, and a function elsewhere that can fail."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from journeys.processes import EXAMPLES, Program, close_up, free_port
from journeys.site import Shown, Site, Visitor, accepted, having, local, opened, seen, visiting

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


class Teacher(Visitor):
    """Somebody in front of a browser, who came by the link with the code."""

    async def press(self, path: str, **fields: Any) -> httpx.Response:
        return await self.client.post(path, json=fields, headers=HEADERS)

    async def look(self, assignment: str = "a1") -> Shown:
        return await self.ask(f"/api/assignments/{assignment}")

    async def mark(self, pupil: str | None = None, assignment: str = "a1") -> Shown:
        """Press "Mark with AI" of a pupil, or "Mark all"."""
        fields = {}
        if pupil is not None:
            fields["submission_id"] = (await self.answer_of(pupil, assignment))["id"]
        return accepted(await self.press(f"/api/assignments/{assignment}/mark", **fields))

    async def answer_of(self, pupil: str, assignment: str = "a1") -> Shown:
        found: Shown
        [found] = [one for one in (await self.look(assignment))["answers"] if one["pupil"] == pupil]
        return found

    async def sees(self, what: str, assignment: str = "a1", **totals: int) -> Shown:
        """Wait until there are at least so many of each."""

        async def look() -> Shown:
            # The web app is killed in some journeys, and comes back.
            try:
                return await self.look(assignment)
            except httpx.TransportError:
                return {}

        def fits(found: Shown) -> bool:
            return bool(found) and all(
                found["totals"][name] >= number for name, number in totals.items()
            )

        return await seen(look, fits, what)

    async def sees_answer(
        self, pupil: str, what: str, assignment: str = "a1", **wanted: Any
    ) -> Shown:
        return await seen(lambda: self.answer_of(pupil, assignment), having(**wanted), what)

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


class Marking(Site):
    """Web app, function and workers."""

    example = "marking"
    private = MARK

    def __init__(self, dsn: str, folder: Path, drive: str = "worker") -> None:
        super().__init__(dsn, folder)
        self.function_port = free_port()
        self.log = folder / "function.jsonl"
        self.env |= {
            "PENSTOCK_PUBLIC_URL": "",
            # The document's name for it.
            "AI_MARKING_CALLBACK_URL": self.address,
            "MARKING_FUNCTION_URL": f"{local(self.function_port)}/mark",
            "MARKING_FUNCTION_SECRET": "between the queue and the function",
            "MARKING_CONTROL_URL": local(self.control_port),
            "MARKING_TEACHER_CODE": CODE,
            "MARKING_QUEUE_SECRET": QUEUE_SECRET,
            "MARKING_SECRET": "the same for all starts",
            "MARKING_DRIVE": drive,
            "MARKING_CONFIG": str(FOLDER / "penstock.toml"),
        }

    def start_function(self, seconds: float = SECONDS) -> Program:
        at = ["--port", str(self.function_port), "--control", str(self.control_port)]
        words = ["marking.function", *at, "--seconds", str(seconds), "--log", str(self.log)]
        return self.start("function", words, self.control_port)

    def end(self) -> None:
        super().end()
        for program in self.programs:
            assert "Traceback" not in program.printed, program.printed

    def settle(self) -> None:
        """For the next test: nobody at work, nothing in work, and a function that is well."""
        close_up(self.env["PENSTOCK_DSN"], self.programs)
        for port, start in (
            (self.web_port, self.start_web),
            (self.control_port, self.start_function),
        ):
            if not self.runs_at(port):
                start().wait_ready()
        self.command_now("/_start")
        self.command_now("/_order", {**WELL, "seconds": SECONDS})

    async def order(self, **wanted: Any) -> None:
        """Tell the function to misbehave."""
        await self.command("/_order", wanted)

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


def running(
    dsn: str,
    folder: Path,
    *,
    drive: str = "worker",
    seconds: float = SECONDS,
    settings: Mapping[str, str] | None = None,
) -> AbstractContextManager[Marking]:
    """Web app and function; a worker when the test starts one."""
    site = Marking(dsn, folder, drive)
    site.configure(**(settings or {}))
    return opened(site, site.start_web, partial(site.start_function, seconds))


@asynccontextmanager
async def teacher(site: Marking) -> AsyncIterator[Teacher]:
    async with visiting(site) as client:
        person = Teacher(client)
        await person.enter("/sign-in", CODE)
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
