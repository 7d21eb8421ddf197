"""The pupil's page in a real browser: what it shows, how calm it is, and that it stops asking.

The page and its script are those the app serves; the answers to its questions are written here.
Timers run out at once, so three seconds take none, and a page that went on asking would show.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from cluster import Cluster
from journeys.browser import CHROMIUM, printed_page, served
from journeys.feedback_site import FOLDER, Feedback, pupil, running

STATIC = FOLDER / "static"

OUTAGE = "Die KI ist gerade nicht erreichbar. Deine Abgabe ist sicher."
STALE = "Das dauert heute länger als sonst."

# Every timer is noted and runs out at once, and so is every sentence that is shown. When the page
# shows an end, it has a moment to ask again, which it must not; then it is let finish loading, and
# the browser prints it.
INSTRUMENT = """
<script>
const later = window.setTimeout.bind(window);
const asked = [];
const shown = [];
let ended = false;
window.setTimeout = (work, ms, ...rest) => { asked.push(ms); return later(work, 0, ...rest); };
new MutationObserver(() => {
  const card = document.querySelector('[data-task="blatt"]');
  const said = card?.querySelector(".message")?.textContent ?? "";
  if (said && shown.at(-1) !== said) shown.push(said);
  if (ended || !["completed", "failed"].includes(card?.dataset.state)) return;
  ended = true;
  const told = () => fetch("/ended", { method: "POST", body: JSON.stringify({ asked, shown }) });
  later(told, 200);
}).observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
</script>
"""
HOLD = '<img src="/hold" alt="">'

BASE = {
    "id": 7,
    "task": "blatt",
    "answer": "Das <b>Blatt</b> ist grün.",
    "message": "Deine Abgabe ist da und wartet, bis sie dran ist.",
    "queue_position": None,
    "wait_seconds": None,
    "waiting_for": None,
    "held_up": False,
    "stale": None,
    "so_far": None,
    "feedback": None,
    "next_try_at": None,
}


def waits(place: int | None, seconds: float | None) -> dict[str, Any]:
    known = {"queue_position": place, "wait_seconds": seconds}
    return {**BASE, "feedback_status": "pending", **known}


AWAY = {**waits(None, None), "held_up": True, "message": OUTAGE}
WORKING = {**BASE, "feedback_status": "processing", "message": "Wird gerade ausgewertet …"}
SPEAKING = {**WORKING, "so_far": "Deine Einleitung", "stale": STALE}
DONE = {
    **BASE,
    "feedback_status": "completed",
    "message": "Deine Rückmeldung ist da.",
    "feedback": "Sag <i>mehr</i>.",
}
AGAIN = {
    "feedback_status": "retry",
    "message": "Das hat noch nicht geklappt.",
    # Without a zone, so that it is the same hour wherever the browser is.
    "next_try_at": "2026-01-01T10:35:00",
}
FAILED = {**BASE, "feedback_status": "failed", "message": "Das hat leider nicht geklappt."}


@pytest.fixture(scope="module")
def shop_window(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feedback]:
    with (
        cluster.database() as name,
        running(cluster.dsn(name), tmp_path_factory.mktemp("feedback"), model=False) as site,
    ):
        yield site


def test_the_page_asks_every_three_seconds_until_completed_or_failed() -> None:
    """F2: as it is written, for where there is no browser to see it."""
    script = (STATIC / "tasks.js").read_text()
    assert "const POLL_MS = 3000;" in script
    assert 'const ENDED = new Set(["completed", "failed"]);' in script
    assert "setInterval" not in script


@pytest.mark.timeout(120)
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
@pytest.mark.parametrize(
    ("answers", "sentences", "words"),
    [
        (
            [waits(7, 170), waits(1, 9), WORKING, DONE],
            [
                "Platz 7 in der Warteschlange, noch etwa 3 Minuten",
                "Du bist als Nächstes dran, noch etwa 10 Sekunden",
                "Wird gerade ausgewertet …",
                "Deine Rückmeldung ist da.",
            ],
            ["Sag &lt;i&gt;mehr&lt;/i&gt;.", "Das &lt;b&gt;Blatt&lt;/b&gt; ist grün."],
        ),
        (
            # Somebody whose turn had failed comes back in front: 4 becomes 5, and is not shown. A
            # wait that grows by a tenth is not shown either, one that grows by a half is.
            [waits(4, 600), waits(5, 660), waits(4, 900), waits(3, 300), DONE],
            [
                "Platz 4 in der Warteschlange, noch etwa 10 Minuten",
                "Platz 4 in der Warteschlange, noch etwa 15 Minuten",
                "Platz 3 in der Warteschlange, noch etwa 5 Minuten",
                "Deine Rückmeldung ist da.",
            ],
            [],
        ),
        (
            # No place and no wait while it is away; and no worse place afterwards.
            [waits(2, 60), AWAY, waits(3, 60), DONE],
            [
                "Platz 2 in der Warteschlange, noch etwa 1 Minute",
                OUTAGE,
                "Platz 2 in der Warteschlange, noch etwa 1 Minute",
                "Deine Rückmeldung ist da.",
            ],
            [],
        ),
        (
            [SPEAKING, FAILED],
            ["Wird gerade ausgewertet …", "Das hat leider nicht geklappt."],
            ["Überarbeiten und noch einmal abgeben"],
        ),
        (
            [{**BASE, **AGAIN}, DONE],
            [f"{AGAIN['message']} Ab 10:35 Uhr bist du wieder an der Reihe.", DONE["message"]],
            [],
        ),
        ([None, waits(2, None), DONE], ["Platz 2 in der Warteschlange", DONE["message"]], []),
    ],
    ids=["done", "calm", "outage", "failed", "retry", "server gone for a moment"],
)
async def test_the_page_shows_place_and_wait_and_stops_asking_at_the_end(
    shop_window: Feedback,
    tmp_path: Path,
    answers: list[dict[str, Any] | None],
    sentences: list[str],
    words: list[str],
) -> None:
    """F2, F12: opened while a submission waits, as after a reload."""
    async with pupil(shop_window) as ada:
        real = await ada.client.get("/aufgaben")
    page = real.text.replace("<head>", f"<head>{INSTRUMENT}").replace("</body>", f"{HOLD}</body>")
    # What the app forbids its page stays forbidden, but for the script that is put in here.
    policy = real.headers["content-security-policy"]
    policy = policy.replace("script-src 'self'", "script-src 'self' 'unsafe-inline'")
    stage = Stage(page, policy, answers)
    async with stage.running() as port:
        printed = await printed_page(f"http://127.0.0.1:{port}/aufgaben", tmp_path)
    assert stage.shown == sentences
    assert stage.asked == [3000] * (len(answers) - 1)
    assert stage.questions == len(answers)
    for expected in words:
        assert expected in printed


@pytest.mark.timeout(120)
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
async def test_words_as_they_come_and_the_yellow_banner(
    shop_window: Feedback, tmp_path: Path
) -> None:
    """S8; F2: seen in the midst of it; the answer after the second never comes."""
    async with pupil(shop_window) as ada:
        real = await ada.client.get("/aufgaben")
    page = real.text.replace("<head>", f"<head>{INSTRUMENT}").replace("</body>", f"{HOLD}</body>")
    page = page.replace('"completed", "failed"', '"processing"')
    policy = real.headers["content-security-policy"]
    policy = policy.replace("script-src 'self'", "script-src 'self' 'unsafe-inline'")
    stage = Stage(page, policy, [SPEAKING])
    async with stage.running() as port:
        printed = await printed_page(f"http://127.0.0.1:{port}/aufgaben", tmp_path)
    assert f'<p class="stale">{STALE}</p>' in printed
    assert "Deine Einleitung</blockquote>" in printed


class Stage:
    """A server with the real page and written answers; None is an answer that never comes."""

    def __init__(self, page: str, policy: str, answers: list[dict[str, Any] | None]) -> None:
        self.page = page
        self.policy = policy
        self.answers = answers
        self.questions = 0
        self.asked: list[int] = []
        self.shown: list[str] = []
        self._ended = asyncio.Event()

    def app(self) -> FastAPI:
        app = FastAPI()
        app.mount("/static", StaticFiles(directory=STATIC))
        app.add_api_route("/aufgaben", self.show, response_class=HTMLResponse)
        app.add_api_route("/api/abgaben", self.answer)
        app.add_api_route("/hold", self.hold)
        app.add_api_route("/ended", self.end, methods=["POST"])
        return app

    async def show(self) -> HTMLResponse:
        return HTMLResponse(self.page, headers={"content-security-policy": self.policy})

    async def answer(self) -> JSONResponse:
        self.questions += 1
        submission = self.answers[min(self.questions, len(self.answers)) - 1]
        if submission is None:
            return JSONResponse({"ok": False, "error": "Bad gateway"}, 502)
        return JSONResponse({"ok": True, "submissions": [submission]})

    async def hold(self) -> JSONResponse:
        await self._ended.wait()
        return JSONResponse({})

    async def end(self, request: Request) -> JSONResponse:
        told = json.loads(await request.body())
        self.asked, self.shown = told["asked"], told["shown"]
        self._ended.set()
        return JSONResponse({})

    def running(self) -> AbstractAsyncContextManager[int]:
        return served(self.app(), self._ended.set)
