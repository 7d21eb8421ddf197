"""The scanner's pages in a real browser: the banner comes and goes, and the asking ends."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster
from journeys.browser import CHROMIUM
from journeys.scanner_site import FOLDER, MARK, PATIENCE_SECONDS, Scanner, author, running
from journeys.tab import Tab, tab

pytestmark = pytest.mark.timeout(180)
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")

# Whatever a browser would write into its console, kept where the test can read it.
LISTEN = """
window.wrongs = [];
for (const name of ["error", "unhandledrejection", "securitypolicyviolation"]) {
  addEventListener(name, (event) => wrongs.push(`${name}: ${event.message ?? event.reason ??
    event.blockedURI ?? event.target?.src}`), true);
}
console.error = console.warn = (...words) => wrongs.push(words.join(" "));
"""
# The answers are written here, one step after the other: a job as Penstock tells it, and the
# submission as the app does; null is a step in which nobody answers. There is no stream, timers run
# out soon, and what is shown is noted whenever it changes.
SCRIPTED = """
const steps = STEPS;
let at = 0;
let isRead = false;
window.calls = { job: 0, submission: 0 };
window.shown = [];
window.later = window.setTimeout.bind(window);
window.setTimeout = (work, ms, ...rest) => later(work, 20, ...rest);
window.EventSource = class extends EventTarget {
  static CLOSED = 2;
  readyState = 2;
  constructor() { super(); later(() => this.dispatchEvent(new Event("error")), 5); }
  close() {}
};
window.fetch = async (url) => {
  const isJob = String(url).includes("/v1/jobs/");
  calls[isJob ? "job" : "submission"] += 1;
  // A step is over when the page has read all of it.
  if (isJob && (isRead || steps[at] === null)) {
    at = Math.min(at + 1, steps.length - 1);
    isRead = false;
  }
  if (steps[at] === null) throw new TypeError("no answer");
  if (!isJob) isRead = true;
  return new Response(JSON.stringify(steps[at][isJob ? "job" : "submission"]));
};
const visible = (element) => (element && !element.closest("[hidden]") ? element.textContent : "");
const note = () => {
  const state = document.getElementById("now")?.dataset.state;
  const element = document.querySelector("penstock-job");
  const parts = ["banner", "connection"].map((name) =>
    element?.hidden ? "" : visible(element?.shadowRoot?.querySelector(`[part=${name}]`)));
  const now = [state, ...parts, visible(document.getElementById("recovery"))];
  if (state && JSON.stringify(shown.at(-1)) !== JSON.stringify(now)) shown.push(now);
};
const WATCHED = { subtree: true, childList: true, attributes: true, characterData: true };
const noting = new MutationObserver(() => {
  const root = document.querySelector("penstock-job")?.shadowRoot;
  if (root) noting.observe(root, WATCHED);
  note();
});
noting.observe(document, WATCHED);
"""
SETTLED = """
(async () => {
  const before = JSON.stringify(calls);
  await new Promise((done) => later(done, 300));
  return { wentOn: JSON.stringify(calls) !== before, shown, wrongs };
})()
"""
ENDED = '["PUBLISHED", "REJECTED"].includes(document.getElementById("now")?.dataset.state)'
LATE = "This takes longer than usual: there has been no news for 4 minutes."
AWAY = (
    "The scanner cannot be reached at the moment. Your submission is safe; this page keeps asking."
)


def answer(state: str, **more: Any) -> dict[str, Any]:
    stage = state if state.endswith("SCANNING") else "TIER1_SCANNING"
    recovery = {"count": 0, "max": 3, "lastRetryAt": None, "nextRetryAfter": None}
    return {
        "id": "x",
        "name": "tidy-logs",
        "state": state,
        "reason": None,
        "fault": None,
        "message": f"{state}.",
        "stage": stage,
        "stageSince": None,
        "position": None,
        "progress": None,
        "staleness": {"stale": False, "staleSince": None, "staleStage": None, "message": None},
        "findings": [],
        "attempts": [],
        "again": None,
        "createdAt": "2026-01-01T12:00:00Z",
        "endedAt": None,
        "job": None if state == "REJECTED" else {"src": "/penstock/v1/jobs/j", "token": "pt_1"},
        **more,
        "recovery": {**recovery, **more.get("recovery", {})},
    }


def step(submission: dict[str, Any], status: str, **more: Any) -> dict[str, Any]:
    """The same moment as Penstock tells it."""
    recovery = submission["recovery"]
    job = {
        "id": "j",
        "status": status,
        "attempt": 1 + recovery["count"],
        "stage": submission["stage"],
        "stage_label": None,
        "started_at": "2026-01-01T12:00:00Z",
        "progress": None,
        "position": None,
        "eta_seconds": None,
        "waiting_for": None,
        "staleness": None,
        "recovery": {"count": recovery["count"], "max": 3, "last_at": None, "next_at": None},
        "credits": None,
        "cancel_requested": False,
        "error": None,
        "result": None,
        "attempts": [],
        "version": 0,
        **more,
    }
    return {"submission": submission, "job": job}


STALE = answer(
    "TIER1_SCANNING",
    staleness={"stale": True, "staleSince": "x", "staleStage": "x", "message": LATE},
)
RESTS = answer(
    "TIER1_SCANNING",
    recovery={
        "count": 2,
        "lastRetryAt": "2026-01-01T12:00:00Z",
        "nextRetryAfter": "2026-01-01T12:00:10Z",
    },
    attempts=[
        {
            "attempt": number,
            "outcome": "stuck",
            "classification": "stalled",
            "startedAt": "2026-01-01T12:00:00Z",
            "endedAt": "2026-01-01T12:00:06Z",
        }
        for number in (1, 2)
    ],
)
MOVED = answer("TIER2_SCANNING", recovery={"count": 2})
OURS = answer(
    "REJECTED", reason="stuck_exhausted", fault="platform", recovery={"count": 3}, stage="RECEIVED"
)
THEIRS = answer(
    "REJECTED",
    reason="findings",
    fault="author",
    findings=[{"tier": 1, "rule": "r", "line": 2, "what": "<b>bad</b>"}],
)


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scanner]:
    """The web app; a worker when a test starts one.

    What is late is told within five seconds: so long at least lies between the two limits.
    """
    with (
        cluster.database() as name,
        running(
            cluster.dsn(name), tmp_path_factory.mktemp("scanner"), scale=0.08, tier_seconds=0.5
        ) as site,
    ):
        yield site


@asynccontextmanager
async def _tab(folder: Path, script: str = "") -> AsyncIterator[Tab]:
    async with tab(folder) as page:
        await page.command("Page.addScriptToEvaluateOnNewDocument", source=LISTEN + script)
        await page.command("Page.enable")
        yield page


def test_the_page_asks_every_two_seconds_until_the_end() -> None:
    """S8: as it is written; that it is so, the component's own tests show."""
    assert '<penstock-job id="job" poll="2000"' in (FOLDER / "pages" / "status.html").read_text()
    script = (FOLDER / "static" / "status.js").read_text()
    assert 'const ENDED = new Set(["PUBLISHED", "REJECTED"]);' in script
    assert "setInterval" not in script


@NEEDS_CHROMIUM
async def test_the_banner_comes_and_goes_and_the_asking_ends(site: Scanner, tmp_path: Path) -> None:
    """S5, S7, S8: late, recovered, gone for a moment, moved on, ended."""
    late = {"stale": True, "since": "2026-01-01T12:00:00Z", "stage": "x", "message": LATE}
    soon = "2100-01-01T12:00:10Z"
    rests = {"count": 2, "max": 3, "last_at": "2026-01-01T12:00:00Z", "next_at": soon}
    steps = [
        step(answer("RECEIVED"), "queued", attempt=0, position=1),
        step(STALE, "running", staleness=late),
        step(RESTS, "scheduled", recovery=rests, run_at=soon),
        None,
        step(MOVED, "running"),
        step(OURS, "failed", error={"class": "stalled", "message": "x", "retryable": True}),
    ]
    for number, one in enumerate(steps):
        if one is not None:
            one["job"]["version"] = number
    async with (
        author(site) as ana,
        _tab(tmp_path, SCRIPTED.replace("STEPS", json.dumps(steps))) as page,
    ):
        await page.open(f"{site.address}/submit/{await ana.submit()}")
        await page.sees(ENDED, "the end is shown")
        told = await page.run(SETTLED)
        again, message, reason = await page.run(
            "[!document.getElementById('again').hidden,"
            " document.getElementById('message').textContent,"
            " document.getElementById('facts').textContent]"
        )
    states, banners, connections, recoveries = (
        [value for value, _ in groupby(column)] for column in zip(*told["shown"], strict=True)
    )
    assert states == ["RECEIVED", "TIER1_SCANNING", "TIER2_SCANNING", "REJECTED"]
    assert banners == ["", LATE, ""]
    assert connections == ["", AWAY, ""]
    assert recoveries[0] == ""
    assert recoveries[1].startswith("Started again 2 of 3 times, last at ")
    assert " Next try at " in recoveries[1]
    assert recoveries[-1] == "Started again 3 of 3 times."
    assert not told["wentOn"]
    assert told["wrongs"] == []
    assert again
    assert message == "REJECTED."
    assert reason.startswith("Reason: stuck_exhausted · submitted ")


@NEEDS_CHROMIUM
async def test_what_was_found_is_shown_as_text(site: Scanner, tmp_path: Path) -> None:
    async with (
        author(site) as ana,
        _tab(tmp_path, SCRIPTED.replace("STEPS", json.dumps([step(THEIRS, "succeeded")]))) as page,
    ):
        await page.open(f"{site.address}/submit/{await ana.submit()}")
        await page.sees(ENDED, "the end is shown")
        told = await page.run(SETTLED)
        text = await page.run("document.getElementById('findings').innerText")
        again = await page.run("document.getElementById('again').hidden")
    assert "Line 2: <b>bad</b> (r)" in text
    assert again
    assert (told["wentOn"], told["wrongs"]) == (False, [])


@NEEDS_CHROMIUM
async def test_a_journey_in_the_browser(site: Scanner, tmp_path: Path) -> None:
    """S4, S5, S7, S8: typed and clicked; it hangs, the banner comes, it goes on, it is published.

    On a phone as well: nothing is wider than the window.
    """
    site.start_worker()
    async with _tab(tmp_path) as page:
        await page.look_like(390, 844)
        await page.open(f"{site.address}/")
        await page.run("document.getElementById('submit').click()")
        await page.sees(
            "document.getElementById('name-wrong').textContent !== ''", "the name is asked for"
        )
        assert await page.run("document.activeElement.id") == "name"
        await page.run(
            "document.getElementById('name').value = 'tidy-logs';"
            f"document.getElementById('text').value = 'A {MARK}';"
            "document.querySelector('[value=hang_tier1_once]').click();"
            "document.getElementById('submit').click(); document.getElementById('submit').click()"
        )
        await page.sees("location.pathname.startsWith('/submit/')", "the page that follows it")
        await page.sees("document.querySelector('.here') !== null", "its stage is shown")
        part = "document.querySelector('penstock-job').shadowRoot.querySelector('[part=banner]')"
        late = "It was last at: Tier 1 scanning."
        shown = f"{part}.checkVisibility() && {part}.textContent.includes({late!r})"
        await page.sees(shown, "the banner is there", seconds=PATIENCE_SECONDS)
        colour = await page.run(f"getComputedStyle({part}).backgroundColor")
        assert colour == "rgb(255, 224, 102)"
        await page.sees(f"!({shown})", "the banner is gone", seconds=PATIENCE_SECONDS)
        await page.sees(ENDED, "it has ended", seconds=PATIENCE_SECONDS)
        assert await page.run("document.getElementById('now').dataset.state") == "PUBLISHED"
        recovery = await page.run("document.getElementById('recovery').textContent")
        assert recovery == "Started again 1 of 3 times."
        for width, dark in ((390, False), (1280, True)):
            await page.look_like(width, 844, dark=dark)
            assert await page.run("document.documentElement.scrollWidth <= innerWidth")
        assert await page.run("wrongs") == []
