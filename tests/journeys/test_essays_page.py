"""The practice page in a real browser: what it shows while an essay is analyzed, and afterwards.

The page and its scripts are those the app serves, the answers to its questions are written here,
and time goes on when a test says so. With the whole app it is seen in test_essays_journey.py.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from playwright.async_api import Page, expect

from browser.axe import axe
from browser.watched import Windows
from journeys.browser import ACTION_SECONDS, served, stop_clock
from journeys.essays_site import Person
from journeys.processes import EXAMPLES
from support.waiting import eventually

pytestmark = pytest.mark.timeout(120)

FOLDER = EXAMPLES / "essays"
PENSTOCK = EXAMPLES.parent / "src" / "penstock" / "dashboard" / "static"
POLL_MS = 2000
# All polls of a page stand in one line, a moment apart.
LINE_MS = 200

JOB = "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
OPENED = {"src": f"/penstock/v1/jobs/{JOB}", "token": "pt_of_this_job"}
BASE = {
    "id": 7,
    "task": "academic-task-1",
    "question": "Describe the chart.",
    "essay": "The chart shows <b>much</b>.",
    "image": None,
    "analysis_result": None,
    "error_message": None,
    "submitted_at": "2026-01-01T12:00:00+00:00",
    "processed_at": None,
    "word_count": 250,
    "message": "Waiting for its turn.",
    "next_try_at": None,
}
PENDING = {**BASE, "status": "pending", "job": OPENED}
BANDS = {"task_response": 6.0, "lexical_resource": 7.5}
DONE = {
    **BASE,
    "status": "done",
    "message": "Your essay has been analyzed.",
    "processed_at": "2026-01-01T12:01:30+00:00",
    "analysis_result": {"band": 6.5, "criteria": BANDS, "feedback": "Say <b>more</b>."},
    "job": None,
}
FAILED = {
    **BASE,
    "status": "failed",
    "message": "Your essay could not be analyzed.",
    "processed_at": "2026-01-01T12:01:30+00:00",
    "error_message": "The model refused this essay (422).",
    "job": None,
}


def job(version: int, status: str, **known: Any) -> dict[str, Any]:
    return {"id": JOB, "version": version, "status": status, "attempt": 0, "result": None, **known}


WAITING = job(1, "queued", position=3, eta_seconds=170.0)
WORKING = job(
    2, "running", attempt=1, stage_label="Scoring the essay", progress={"done": 1, "total": 2}
)
AGAIN = job(
    3,
    "scheduled",
    attempt=1,
    waiting_for="backoff",
    run_at="2099-01-01T12:00:00+00:00",
    error={"class": "unavailable", "message": "ConnectError: All connection attempts failed"},
)
SUCCEEDED = job(4, "succeeded", attempt=2, result={"band": 6.5})
ENDED = job(4, "failed", attempt=2, error={"class": "refused", "message": "no"})


def test_the_page_asks_every_two_seconds_until_done_or_failed() -> None:
    """E8: as it is written, for where there is no browser to see it."""
    assert 'poll="2000"' in (FOLDER / "pages" / "practice.html").read_text()
    script = (FOLDER / "static" / "practice.js").read_text()
    assert 'const ENDED = new Set(["done", "failed"]);' in script
    assert "setInterval" not in script


@pytest.mark.parametrize(
    ("jobs", "end"),
    [([WAITING, WORKING, SUCCEEDED], DONE), ([WAITING, AGAIN, ENDED], FAILED)],
    ids=["done", "failed"],
)
async def test_the_page_shows_how_it_goes_and_stops_asking_at_the_end(
    ana: Person,
    windows: Windows,
    allowed_errors: list[str],
    jobs: list[dict[str, Any]],
    end: dict[str, Any],
) -> None:
    """E8: opened with a submission in its address, as after a reload; and without streams."""
    allowed_errors.append("/events")
    stage = Stage(await ana.client.get("/practice"), jobs, end)
    async with stage.running() as port:
        page = await windows.open()
        await stop_clock(page)
        await page.goto(f"http://127.0.0.1:{port}/practice?submission=7")
        for number, state in enumerate(jobs, start=1):
            await _asked(page, stage, number)
            for sentence in SENTENCES[state["version"]]:
                await expect(page.locator("#outcome")).to_contain_text(sentence)
            if state["version"] in LISTED:
                await expect(page.locator("#list strong")).to_have_text(LISTED[state["version"]])
            if number < len(jobs):
                await page.clock.run_for(POLL_MS - LINE_MS)
                assert len(stage.questions) == number, "it asks too often"
                await page.clock.run_for(2 * LINE_MS)
        for sentence in SENTENCES[end["status"]]:
            await expect(page.locator("#outcome")).to_contain_text(sentence)
        await expect(page.locator("penstock-job")).to_be_hidden()
        await expect(page.locator("#analyze")).to_be_enabled()
        await expect(page.locator("#analyze")).to_have_text("Analyze")
        before = list(stage.questions)
        await page.clock.run_for(60_000)
        assert stage.questions == before
        assert set(before) == {f"Bearer {OPENED['token']}"}


async def _asked(page: Page, stage: "Stage", number: int) -> None:
    async def told() -> bool:
        if len(stage.questions) < number:
            await page.clock.run_for(50)
        return len(stage.questions) >= number

    await eventually(told, f"question {number} comes", seconds=ACTION_SECONDS)


# By the version of the job, and by the end of the submission.
SENTENCES: dict[int | str, list[str]] = {
    1: ["Queued", "#3 in queue", "starts in about 3 minutes"],
    2: ["Running", "Scoring the essay", "1 of 2"],
    3: ["Trying again at", "The model cannot be reached. You do not need to do anything."],
    4: [],
    "done": ["Your essay has been analyzed.", "6.5", "Task response", "Say <b>more</b>."],
    "failed": ["The model refused this essay (422). You can press Analyze again."],
}


# What the list of essays says at the same time.
LISTED = {1: "Queued", 2: "Being analyzed", 3: "Queued"}


async def test_a_server_that_is_gone_for_a_moment_is_asked_again(
    ana: Person, windows: Windows, allowed_errors: list[str]
) -> None:
    """E8: first our own, then Penstock's."""
    allowed_errors.append("/events|502")
    jobs = [None, WORKING, SUCCEEDED]
    stage = Stage(await ana.client.get("/practice"), jobs, DONE, gone=1)
    async with stage.running() as port:
        page = await windows.open()
        await stop_clock(page)
        await page.goto(f"http://127.0.0.1:{port}/practice?submission=7")
        await expect(page.locator("#message")).to_contain_text("this page keeps asking")
        for number in range(1, len(jobs) + 1):
            await _asked(page, stage, number)
        await expect(page.locator("#band")).to_have_text("6.5")


async def test_what_has_ended_is_shown_at_once_and_nobody_is_asked(
    ana: Person, windows: Windows
) -> None:
    """E7: from the app's own row, which outlives the queue's history."""
    stage = Stage(await ana.client.get("/practice"), [], DONE)
    async with stage.running() as port:
        page = await windows.open()
        await page.goto(f"http://127.0.0.1:{port}/practice?submission=7")
        await expect(page.locator("#band")).to_have_text("6.5")
        await expect(page.locator("#message")).to_have_text("Your essay has been analyzed.")
        await axe(page)
        assert stage.questions == []


async def test_a_failed_one_is_there_to_be_sent_again_where_it_was_not_written(
    ana: Person, windows: Windows
) -> None:
    """E8: in another browser; but what is being written there stays."""
    stage = Stage(await ana.client.get("/practice"), [], FAILED)
    async with stage.running() as port:
        page = await windows.open()
        await page.goto(f"http://127.0.0.1:{port}/practice?submission=7")
        await expect(page.get_by_label("Your essay")).to_have_value("The chart shows <b>much</b>.")
        await expect(page.get_by_label("Task", exact=True)).to_have_value("academic-task-1")
        await expect(page.locator("#facts")).to_contain_text("submitted 1 Jan 2026, 12:00")
        await expect(page.locator("#list")).to_contain_text("Academic Task 1")
        await expect(page.locator("#list strong")).to_have_text("Failed")
        await page.get_by_text("What you sent in").click()
        await expect(page.locator("#question")).to_have_text("Describe the chart.")
        await axe(page)
        await page.get_by_label("Your essay").fill("Something else.")
        await page.reload()
        await expect(page.locator("#failure")).to_be_visible()
        await expect(page.get_by_label("Your essay")).to_have_value("Something else.")


class Stage:
    """A server with the real page and written answers; None is an answer that never comes."""

    def __init__(
        self,
        page: httpx.Response,
        jobs: Sequence[dict[str, Any] | None],
        end: dict[str, Any],
        *,
        gone: int = 0,
    ) -> None:
        self._page = page
        self._jobs = jobs
        self._end = end
        self._gone = gone
        self.questions: list[str] = []

    def app(self) -> FastAPI:
        app = FastAPI()
        app.mount("/static", StaticFiles(directory=FOLDER / "static"))
        app.mount("/penstock/static", StaticFiles(directory=PENSTOCK))
        app.add_api_route("/practice", self.show, response_class=HTMLResponse)
        app.add_api_route("/api/essay-status", self.status)
        app.add_api_route(OPENED["src"], self.answer)
        return app

    async def show(self) -> HTMLResponse:
        # What the app forbids its page stays forbidden.
        policy = self._page.headers["content-security-policy"]
        return HTMLResponse(self._page.text, headers={"content-security-policy": policy})

    async def status(self) -> JSONResponse:
        self._gone -= 1
        if self._gone >= 0:
            return JSONResponse({"ok": False, "error": "Bad gateway"}, 502)
        over = len(self.questions) >= len(self._jobs)
        return JSONResponse({"ok": True, "submission": self._end if over else PENDING})

    async def answer(self, request: Request) -> Response:
        self.questions.append(request.headers["authorization"])
        found = self._jobs[min(len(self.questions), len(self._jobs)) - 1]
        if found is None:
            return JSONResponse({"detail": "Bad gateway"}, 502)
        return JSONResponse(found)

    def running(self) -> AbstractAsyncContextManager[int]:
        return served(self.app(), lambda: None)
