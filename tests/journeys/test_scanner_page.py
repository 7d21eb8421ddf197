"""The scanner's pages in a real browser: the banner comes and goes, and the asking ends."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
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
# The answers are written here, timers run out soon, and what is shown is noted whenever it changes.
SCRIPTED = """
const answers = ANSWERS;
window.asked = [];
window.shown = [];
window.later = window.setTimeout.bind(window);
window.setTimeout = (work, ms, ...rest) => { asked.push(ms); return later(work, 20, ...rest); };
window.fetch = async () => {
  const said = answers.shift();
  if (said === null) throw new TypeError("no answer");
  return new Response(JSON.stringify(said));
};
const visible = (id) => {
  const element = document.getElementById(id);
  return element && !element.hidden ? element.textContent : "";
};
new MutationObserver(() => {
  const state = document.getElementById("now")?.dataset.state;
  const now = [state, ...["banner", "message", "recovery", "offline"].map(visible)];
  if (state && JSON.stringify(shown.at(-1)) !== JSON.stringify(now)) shown.push(now);
}).observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
"""
SETTLED = "new Promise((done) => later(() => done({ asked, shown, wrongs }), 300))"
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
        **more,
        "recovery": {**recovery, **more.get("recovery", {})},
    }


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
    """The web app; a worker when a test starts one."""
    with (
        cluster.database() as name,
        running(
            cluster.dsn(name), tmp_path_factory.mktemp("scanner"), scale=0.03, tier_seconds=0.5
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
    """S8: as it is written, for where there is no browser to see it."""
    script = (FOLDER / "static" / "status.js").read_text()
    assert "const POLL_MS = 2000;" in script
    assert 'const ENDED = new Set(["PUBLISHED", "REJECTED"]);' in script
    assert "setInterval" not in script


@NEEDS_CHROMIUM
async def test_the_banner_comes_and_goes_and_the_asking_ends(site: Scanner, tmp_path: Path) -> None:
    """S5, S7, S8: late, recovered, gone for a moment, moved on, ended."""
    answers = [answer("RECEIVED"), STALE, RESTS, None, MOVED, OURS]
    async with (
        author(site) as ana,
        _tab(tmp_path, SCRIPTED.replace("ANSWERS", json.dumps(answers))) as page,
    ):
        await page.open(f"{site.address}/submit/{await ana.submit()}")
        await page.sees(ENDED, "the end is shown")
        told = await page.run(SETTLED)
        again, reason = await page.run(
            "[!document.getElementById('again').hidden,"
            " document.getElementById('facts').textContent]"
        )
    first = [[state, banner, message] for state, banner, message, _, _ in told["shown"]]
    assert first == [
        ["RECEIVED", "", "RECEIVED."],
        ["TIER1_SCANNING", LATE, "TIER1_SCANNING."],
        ["TIER1_SCANNING", "", "TIER1_SCANNING."],
        ["TIER1_SCANNING", "", "TIER1_SCANNING."],
        ["TIER2_SCANNING", "", "TIER2_SCANNING."],
        ["REJECTED", "", "REJECTED."],
    ]
    recovery = [one[3] for one in told["shown"]]
    assert recovery[:2] == ["", ""]
    assert recovery[2].startswith("Started again 2 of 3 times, last at ")
    assert " Next try at " in recovery[2]
    assert recovery[-1] == "Started again 3 of 3 times."
    assert [one[4] for one in told["shown"]] == ["", "", "", AWAY, "", ""]
    # One question after each answer but the last.
    assert told["asked"] == [2000] * (len(answers) - 1)
    assert told["wrongs"] == []
    assert again
    assert reason.startswith("Reason: stuck_exhausted · submitted ")


@NEEDS_CHROMIUM
async def test_what_was_found_is_shown_as_text(site: Scanner, tmp_path: Path) -> None:
    async with (
        author(site) as ana,
        _tab(tmp_path, SCRIPTED.replace("ANSWERS", json.dumps([THEIRS]))) as page,
    ):
        await page.open(f"{site.address}/submit/{await ana.submit()}")
        await page.sees(ENDED, "the end is shown")
        told = await page.run(SETTLED)
        text = await page.run("document.getElementById('findings').innerText")
        again = await page.run("document.getElementById('again').hidden")
    assert "Line 2: <b>bad</b> (r)" in text
    assert again
    assert (told["asked"], told["wrongs"]) == ([], [])


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
        shown = "!document.getElementById('banner').hidden"
        await page.sees(shown, "the banner is there", seconds=PATIENCE_SECONDS)
        banner = await page.run("document.getElementById('banner').textContent")
        assert "It was last at: Tier 1 scanning." in banner
        colour = await page.run(
            "getComputedStyle(document.getElementById('banner')).backgroundColor"
        )
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
