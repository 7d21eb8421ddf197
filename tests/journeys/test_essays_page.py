"""The practice page in a real browser: what it asks, and that it stops asking.

The page and its script are those the app serves; the answers to its questions are written here.
Timers run out at once, so two seconds take none, and a page that went on asking would show.
"""

import asyncio
import json
import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from journeys.browser import CHROMIUM, printed_page, served
from journeys.essays_site import Person
from journeys.processes import EXAMPLES

STATIC = EXAMPLES / "essays" / "static"


# Every timer is noted and runs out at once. When the page shows an end, it has a moment to ask
# again, which it must not; then the page is let finish loading, and the browser prints it.
INSTRUMENT = """
<script>
const later = window.setTimeout.bind(window);
const asked = [];
window.setTimeout = (work, ms, ...rest) => { asked.push(ms); return later(work, 0, ...rest); };
new MutationObserver((_, observer) => {
  if (!/data-status="(done|failed)"/.test(document.body?.innerHTML ?? "")) return;
  observer.disconnect();
  later(() => fetch("/ended", { method: "POST", body: JSON.stringify(asked) }), 200);
}).observe(document, { subtree: true, childList: true, attributes: true });
</script>
"""
HOLD = '<img src="/hold" alt="">'

BASE = {
    "id": 7,
    "analysis_result": None,
    "error_message": None,
    "submitted_at": "2026-01-01T12:00:00+00:00",
    "processed_at": None,
    "word_count": 250,
    "next_try_at": None,
}
BANDS = {"task_response": 6.0, "lexical_resource": 7.5}
WAITING = {**BASE, "status": "pending", "message": "Waiting for its turn."}
WORKING = {**BASE, "status": "processing", "message": "The model is scoring your essay."}
DONE = {
    **BASE,
    "status": "done",
    "message": "Your essay has been analyzed.",
    "processed_at": "2026-01-01T12:01:30+00:00",
    "analysis_result": {"band": 6.5, "criteria": BANDS, "feedback": "Say <b>more</b>."},
}
FAILED = {
    **BASE,
    "status": "failed",
    "message": "Your essay could not be analyzed.",
    "processed_at": "2026-01-01T12:01:30+00:00",
    "error_message": "The model refused this essay (422).",
}


def test_the_page_asks_every_two_seconds_until_done_or_failed() -> None:
    """E8: as it is written, for where there is no browser to see it."""
    script = (STATIC / "practice.js").read_text()
    assert "const POLL_MS = 2000;" in script
    assert 'const ENDED = new Set(["done", "failed"]);' in script
    assert "if (!ended) timer = setTimeout(ask, POLL_MS, submission.id);" in script
    assert "setInterval" not in script


@pytest.mark.timeout(120)
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
@pytest.mark.parametrize(
    ("answers", "asked", "words"),
    [
        ([WAITING, WORKING, DONE], [2000, 2000], ["6.5", "Task response", "Say &lt;b&gt;more"]),
        ([WAITING, FAILED], [2000], ["The model refused this essay (422)."]),
        ([DONE], [], ["6.5"]),
        ([None, WORKING, DONE], [2000, 2000], ["6.5"]),
    ],
    ids=["done", "failed", "reloaded", "server gone for a moment"],
)
async def test_the_page_shows_how_it_goes_and_stops_asking_at_the_end(
    ana: Person,
    tmp_path: Path,
    answers: list[dict[str, Any] | None],
    asked: list[int],
    words: list[str],
) -> None:
    """E8: opened with a submission in its address, as after a reload."""
    real = await ana.client.get("/practice")
    page = real.text.replace("<head>", f"<head>{INSTRUMENT}").replace("</body>", f"{HOLD}</body>")
    # What the app forbids its page stays forbidden, but for the script that is put in here.
    policy = real.headers["content-security-policy"]
    policy = policy.replace("script-src 'self'", "script-src 'self' 'unsafe-inline'")
    stage = Stage(page, policy, answers)
    async with stage.running() as port:
        shown = await printed_page(f"http://127.0.0.1:{port}/practice?submission=7", tmp_path)
    assert stage.questions == ["7"] * len(answers)
    assert stage.timers == asked
    for expected in words:
        assert expected in shown
    button = re.search(r'<button id="analyze"[^>]*>([^<]*)', shown)
    assert button
    assert button[1] == "Analyze"
    assert "disabled" not in button[0]


class Stage:
    """A server with the real page and written answers; None is an answer that never comes."""

    def __init__(self, page: str, policy: str, answers: list[dict[str, Any] | None]) -> None:
        self.page = page
        self.policy = policy
        self.answers = answers
        self.questions: list[str] = []
        self.timers: list[int] | None = None
        self._ended = asyncio.Event()

    def app(self) -> FastAPI:
        app = FastAPI()
        app.mount("/static", StaticFiles(directory=STATIC))
        app.add_api_route("/practice", self.show, response_class=HTMLResponse)
        app.add_api_route("/api/essay-status", self.answer)
        app.add_api_route("/hold", self.hold)
        app.add_api_route("/ended", self.end, methods=["POST"])
        return app

    async def show(self) -> HTMLResponse:
        return HTMLResponse(self.page, headers={"content-security-policy": self.policy})

    async def answer(self, request: Request) -> JSONResponse:
        self.questions.append(request.query_params["id"])
        submission = self.answers[min(len(self.questions), len(self.answers)) - 1]
        if submission is None:
            return JSONResponse({"ok": False, "error": "Bad gateway"}, 502)
        return JSONResponse({"ok": True, "submission": submission})

    async def hold(self) -> JSONResponse:
        await self._ended.wait()
        return JSONResponse({})

    async def end(self, request: Request) -> JSONResponse:
        self.timers = json.loads(await request.body())
        self._ended.set()
        return JSONResponse({})

    def running(self) -> AbstractAsyncContextManager[int]:
        return served(self.app(), self._ended.set)
