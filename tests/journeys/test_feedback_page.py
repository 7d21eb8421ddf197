"""The pupil's page in a real browser: what it shows, how calm it is, and that it stops asking.

The page and its scripts are those the app serves, the answers to its questions are written here,
and time goes on when a test says so. Where streams do not work, that is: it asks instead.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from playwright.async_api import Locator, Page, Route, expect

from browser.axe import axe
from browser.watched import Windows, fits_sideways
from journeys.browser import ACTION_SECONDS, served, stop_clock
from journeys.feedback_site import FOLDER, Feedback, pupil, running
from journeys.processes import EXAMPLES
from support.waiting import eventually

pytestmark = pytest.mark.timeout(120)

PENSTOCK = EXAMPLES.parent / "src" / "penstock" / "dashboard" / "static"
POLL_MS = 3000
# All polls of a page stand in one line, a moment apart.
LINE_MS = 200

OFFLINE = "Die Seite ist gerade nicht verbunden."
JOB = "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
OPENED = {"src": f"/penstock/v1/jobs/{JOB}", "token": "pt_of_this_job"}
BASE: dict[str, Any] = {
    "id": 7,
    "task": "blatt",
    "answer": "Das <b>Blatt</b> ist grün.",
    "message": "Deine Abgabe ist da und wartet, bis sie dran ist.",
    "feedback_status": "pending",
    "feedback": None,
    "job": None,
}
PENDING = {**BASE, "job": OPENED}
DONE = {
    **BASE,
    "feedback_status": "completed",
    "message": "Deine Rückmeldung ist da.",
    "feedback": "Sag <i>mehr</i>.",
}
FAILED = {**BASE, "feedback_status": "failed", "message": "Das hat leider nicht geklappt."}
SWITCHED_OFF = {**BASE, "message": "Die Auswertung ist gerade ausgeschaltet."}

Job = dict[str, Any]


def job(status: str, **known: Any) -> Job:
    return {"id": JOB, "status": status, "attempt": 0, "result": None, **known}


def waits(place: int, seconds: float | None) -> Job:
    return job("queued", position=place, eta_seconds=seconds, waiting_for="queue_limit")


AWAY = job("queued", position=2, eta_seconds=None, waiting_for="circuit_open")
WORKING = job("running", attempt=1)
STALE = {
    **WORKING,
    "staleness": {"stale": True, "since": "2026-01-01T10:35:00Z", "stage": "", "message": "…"},
}
# Without a zone, so that it is the same hour wherever the browser is.
AGAIN = job("scheduled", attempt=1, waiting_for="backoff", run_at="2099-01-01T10:35:00")
SUCCEEDED = job("succeeded", attempt=1, result={"text": "Sag <i>mehr</i>."})
BROKEN = job("failed", attempt=3, error={"class": "bad_output", "message": "no end"})
WORKING_WORDS = ["Wird gerade ausgewertet …"]


@pytest.fixture(scope="module")
def shop_window(
    shared_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Feedback]:
    with running(shared_database, tmp_path_factory.mktemp("feedback"), model=False) as site:
        yield site


@pytest.fixture
async def real(shop_window: Feedback) -> httpx.Response:
    async with pupil(shop_window) as ada:
        return await ada.client.get("/aufgaben")


def test_the_page_asks_every_three_seconds_until_completed_or_failed() -> None:
    """F2: as it is written, for where there is no browser to see it."""
    assert 'poll="3000"' in (FOLDER / "pages" / "task.html").read_text()
    script = (FOLDER / "static" / "tasks.js").read_text()
    assert 'const FINISHED = new Set(["completed", "failed"]);' in script
    assert "setInterval" not in script


@pytest.mark.parametrize(
    ("looks", "end"),
    [
        (
            [
                (waits(7, 170), ["Platz 7 in der Warteschlange", "beginnt in etwa 3 Minuten"]),
                (waits(1, 9), ["Du bist als Nächstes dran", "beginnt in wenigen Sekunden"]),
                (WORKING, WORKING_WORDS),
                (SUCCEEDED, []),
            ],
            DONE,
        ),
        (
            # Somebody whose turn had failed comes back in front: 4 becomes 5, and is not shown. A
            # wait that grows by a tenth is not shown either, one that grows by a half is.
            [
                (waits(4, 600), ["Platz 4 in der Warteschlange", "in etwa 10 Minuten"]),
                (waits(5, 660), ["Platz 4 in der Warteschlange", "in etwa 10 Minuten"]),
                (waits(4, 900), ["Platz 4 in der Warteschlange", "in etwa 15 Minuten"]),
                (waits(3, 300), ["Platz 3 in der Warteschlange", "in etwa 5 Minuten"]),
                (SUCCEEDED, []),
            ],
            DONE,
        ),
        (
            # No promise while it is away; and no worse place afterwards.
            [
                (waits(2, 60), ["Platz 2 in der Warteschlange", "in etwa einer Minute"]),
                (AWAY, ["Die KI ist seit ", "Deine Abgabe ist sicher"]),
                (waits(3, 60), ["Platz 2 in der Warteschlange", "in etwa einer Minute"]),
                (SUCCEEDED, []),
            ],
            DONE,
        ),
        ([(WORKING, WORKING_WORDS), (BROKEN, [])], FAILED),
        (
            [
                (AGAIN, ["Das hat noch nicht geklappt.", "10:35 Uhr bist du wieder an der Reihe."]),
                (SUCCEEDED, []),
            ],
            DONE,
        ),
        (
            [(STALE, ["Das dauert heute länger als sonst. Du musst nichts tun"]), (BROKEN, [])],
            FAILED,
        ),
    ],
    ids=["done", "calm", "outage", "failed", "retry", "yellow banner"],
)
async def test_the_page_shows_place_and_wait_and_stops_asking_at_the_end(
    real: httpx.Response,
    windows: Windows,
    allowed_errors: list[str],
    looks: list[tuple[Job, list[str]]],
    end: dict[str, Any],
) -> None:
    """F2, F12; S8: opened while a submission waits, as after a reload."""
    allowed_errors.append("/events")
    stage = Stage(real, [found for found, _ in looks], end)
    async with stage.running() as port:
        page = await windows.open()
        await stop_clock(page)
        card = await _open(page, port)
        for number, (_, sentences) in enumerate(looks, start=1):
            await _asked(page, stage, number)
            await _has_read(card, number)
            # What is seen, and not what was read out before.
            await _shows(card.locator("penstock-job .known"), sentences)
            if number < len(looks):
                await page.clock.run_for(POLL_MS - LINE_MS)
                assert len(stage.questions) == number, "it asks too often"
                await page.clock.run_for(2 * LINE_MS)
        await expect(card.locator(".message")).to_have_text(end["message"])
        await expect(card.locator(".feedback")).to_have_text(end["feedback"] or "")
        await expect(card.locator("penstock-job")).to_be_hidden()
        await expect(card.locator(".answer")).to_have_text(BASE["answer"])
        await expect(card.locator(".again")).to_be_visible()
        before = list(stage.questions)
        await page.clock.run_for(60_000)
        assert stage.questions == before
        assert set(before) == {f"Bearer {OPENED['token']}"}


async def _open(page: Page, port: int) -> Locator:
    await page.goto(f"http://127.0.0.1:{port}/aufgaben")
    return page.locator("[data-task=blatt]")


async def _shows(place: Locator, sentences: Sequence[str]) -> None:
    for sentence in sentences:
        await expect(place).to_contain_text(sentence)


async def _asked(page: Page, stage: "Stage", number: int) -> None:
    async def told() -> bool:
        if len(stage.questions) < number:
            await page.clock.run_for(50)
        return len(stage.questions) >= number

    await eventually(told, f"question {number} comes", seconds=ACTION_SECONDS)


async def _has_read(card: Locator, number: int) -> None:
    """Also where nothing changes by it."""

    async def has() -> bool:
        element = card.locator("penstock-job")
        return bool(await element.evaluate("one => one.job?.version") == number)

    await eventually(has, f"answer {number} is read", seconds=ACTION_SECONDS)


async def test_a_server_that_is_gone_for_a_moment_is_asked_again(
    real: httpx.Response, windows: Windows, allowed_errors: list[str]
) -> None:
    """F2: ours, then the queue that was taken away for a while, then Penstock's."""
    allowed_errors.append("/events|502")
    stage = Stage(real, [None, WORKING, SUCCEEDED], DONE, before=[None, SWITCHED_OFF])
    async with stage.running() as port:
        page = await windows.open()
        await stop_clock(page)
        card = await _open(page, port)
        await expect(page.locator("#offline")).to_contain_text(OFFLINE)
        await page.clock.run_for(POLL_MS)
        await _shows(card, [SWITCHED_OFF["message"]])
        await expect(page.locator("#offline")).to_be_hidden()
        await page.clock.run_for(POLL_MS)
        for number in (1, 2, 3):
            await _asked(page, stage, number)
        await _shows(card, [DONE["feedback"]])


async def test_what_is_typed_before_the_script_is_there_stays(
    real: httpx.Response, windows: Windows
) -> None:
    """A phone may take a while to load it: nothing is lost, nothing is sent without it."""
    typed = asyncio.Event()

    async def wait(route: Route) -> None:
        await typed.wait()
        await route.continue_()

    stage = Stage(real, [], DONE)
    async with stage.running() as port:
        page = await windows.open()
        await page.route("**/static/tasks.js", wait)
        await page.goto(f"http://127.0.0.1:{port}/aufgaben", wait_until="commit")
        card = page.locator("[data-task=brief]")
        await card.get_by_label("Dein Text").fill("Liebe Tante")
        await expect(card.get_by_role("button", name="Abgeben")).to_be_disabled()
        typed.set()
        await expect(card.get_by_role("button", name="Abgeben")).to_be_enabled()
        await expect(card.get_by_label("Dein Text")).to_have_value("Liebe Tante")


@pytest.mark.parametrize("shape", ["{}", '{{"text": "{}"}}'], ids=["text", "in JSON"])
async def test_words_as_they_come_and_the_yellow_banner(
    real: httpx.Response, windows: Windows, shape: str
) -> None:
    """S8; F2: from the stream; where a schema binds the model to JSON, nobody has to read that."""
    said = shape.format("Deine Einleitung ist gut. Der Schluss")
    stage = Stage(real, [], PENDING, events=[("job", STALE), *_chunks(1, said[:-4])])
    async with stage.running() as port:
        page = await windows.open(phone=True, dark=True)
        card = await _open(page, port)
        await expect(card.locator(".feedback")).to_contain_text("Deine Einleitung ist gut. Der")
        await expect(card).not_to_contain_text("{", use_inner_text=True)
        await expect(card.locator("penstock-job [part=banner]")).to_contain_text("länger als sonst")
        await fits_sideways(page)
        await axe(page)
        await windows.looks(page, "feedback-words-phone-dark")


async def test_words_of_a_try_that_failed_go_away(real: httpx.Response, windows: Windows) -> None:
    """F3: with it, and at the latest when the next one speaks."""
    began = {**WORKING, "attempt": 2}
    for later in ([("job", AGAIN)], [("job", began), *_chunks(2, "Neu ")]):
        events = [("job", WORKING), *_chunks(1, "Alt "), *later]
        stage = Stage(real, [], PENDING, events=events)
        async with stage.running() as port:
            page = await windows.open()
            card = await _open(page, port)
            if later[-1][0] == "chunk":
                await expect(card.locator(".feedback")).to_have_text("Neu")
            else:
                await expect(card).to_contain_text("wieder an der Reihe")
                await expect(card.locator(".feedback")).to_be_hidden()
            await page.close()


def _chunks(attempt: int, text: str) -> list[tuple[str, Job]]:
    words = text.replace(" ", " \0").split("\0")
    return [
        ("chunk", {"attempt": attempt, "seq": seq, "data": word})
        for seq, word in enumerate(words, start=1)
        if word
    ]


class Stage:
    """A server with the real page and written answers; None is an answer that never comes.

    looks    what Penstock says of the job, question by question; `end` is our own row afterwards
    before   what our own server says first
    events   the job's stream; without any, there is none
    """

    def __init__(
        self,
        page: httpx.Response,
        looks: Sequence[Job | None],
        end: dict[str, Any],
        *,
        before: Sequence[dict[str, Any] | None] = (),
        events: Sequence[tuple[str, Job]] = (),
    ) -> None:
        self._page = page
        self._looks = looks
        self._end = end
        self._before = list(before)
        self._events = events
        self._over = asyncio.Event()
        self.questions: list[str] = []

    def app(self) -> FastAPI:
        app = FastAPI()
        app.mount("/static", StaticFiles(directory=FOLDER / "static"))
        app.mount("/penstock/static", StaticFiles(directory=PENSTOCK))
        app.add_api_route("/aufgaben", self.show, response_class=HTMLResponse)
        app.add_api_route("/api/abgaben", self.mine)
        app.add_api_route(OPENED["src"], self.look)
        if self._events:
            app.add_api_route(f"{OPENED['src']}/events", self.stream)
        return app

    async def show(self) -> HTMLResponse:
        # What the app forbids its page stays forbidden.
        policy = self._page.headers["content-security-policy"]
        return HTMLResponse(self._page.text, headers={"content-security-policy": policy})

    async def mine(self) -> JSONResponse:
        over = len(self.questions) >= len(self._looks)
        found = self._before.pop(0) if self._before else self._end if over else PENDING
        if found is None:
            return JSONResponse({"ok": False, "error": "Bad gateway"}, 502)
        return JSONResponse({"ok": True, "submissions": [found]})

    async def look(self, request: Request) -> Response:
        self.questions.append(request.headers["authorization"])
        found = self._looks[min(len(self.questions), len(self._looks)) - 1]
        if found is None:
            return JSONResponse({"detail": "Bad gateway"}, 502)
        return JSONResponse({**found, "version": len(self.questions)})

    async def stream(self) -> StreamingResponse:
        return StreamingResponse(self._told(), media_type="text/event-stream")

    async def _told(self) -> AsyncIterator[str]:
        """All of it, and then it lasts."""
        for number, (kind, data) in enumerate(self._events, start=1):
            told = {**data, "version": number} if kind == "job" else data
            yield f"event: {kind}\ndata: {json.dumps(told)}\n\n"
        await self._over.wait()

    def running(self) -> AbstractAsyncContextManager[int]:
        return served(self.app(), self._over.set)
