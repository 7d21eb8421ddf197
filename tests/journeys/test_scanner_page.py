"""The scanner's page in a real browser: the banner comes and goes, and the asking ends.

The page and its scripts are those the app serves; what it is told is written here, and time goes on
when a test says so. With the whole app it is seen in test_scanner_journey.py.
"""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from playwright.async_api import Page, expect

from browser.watched import Windows
from journeys.browser import stop_clock
from journeys.scanner_site import FOLDER, Scanner, author, running
from support.waiting import eventually

pytestmark = pytest.mark.timeout(120)

# One step after the other: a job as Penstock tells it, and the submission as the app does; null is
# a step in which nobody answers. There is no stream; what is shown is noted whenever it changes.
SCRIPTED = """
const steps = STEPS;
let at = 0;
let isRead = false;
window.calls = { job: 0, submission: 0 };
window.shown = [];
window.EventSource = class extends EventTarget {
  static CLOSED = 2;
  readyState = 2;
  constructor() { super(); setTimeout(() => this.dispatchEvent(new Event("error")), 5); }
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
LOOK_MS = 500
LONG_MS = 60_000
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
def site(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scanner]:
    with running(shared_database, tmp_path_factory.mktemp("scanner")) as site:
        yield site


def test_the_page_asks_every_two_seconds_until_the_end() -> None:
    """S8: as it is written; that it is so, the component's own tests show."""
    assert '<penstock-job id="job" poll="2000"' in (FOLDER / "pages" / "status.html").read_text()
    script = (FOLDER / "static" / "status.js").read_text()
    assert 'const ENDED = new Set(["PUBLISHED", "REJECTED"]);' in script
    assert "setInterval" not in script


async def play(windows: Windows, site: Scanner, steps: list[dict[str, Any] | None]) -> Page:
    """A page that is told these steps, at its end; it asks no more, however long one waits."""
    for number, one in enumerate(steps):
        if one is not None:
            one["job"]["version"] = number
    page = await windows.open()
    await stop_clock(page)
    await page.add_init_script(SCRIPTED.replace("STEPS", json.dumps(steps)))
    async with author(site) as ana:
        await page.goto(f"{site.address}/submit/{await ana.submit()}")
    state = page.locator("#now")

    async def ended() -> bool:
        await page.clock.run_for(LOOK_MS)
        return await state.get_attribute("data-state") in ("PUBLISHED", "REJECTED")

    await eventually(ended, "the end is shown", seconds=30)
    before = await page.evaluate("calls")
    await page.clock.run_for(LONG_MS)
    assert await page.evaluate("calls") == before
    return page


async def test_the_banner_comes_and_goes_and_the_asking_ends(
    site: Scanner, windows: Windows
) -> None:
    """S5, S7, S8: late, recovered, gone for a moment, moved on, ended."""
    late = {"stale": True, "since": "2026-01-01T12:00:00Z", "stage": "x", "message": LATE}
    soon = "2100-01-01T12:00:10Z"
    rests = {"count": 2, "max": 3, "last_at": "2026-01-01T12:00:00Z", "next_at": soon}
    page = await play(
        windows,
        site,
        [
            step(answer("RECEIVED"), "queued", attempt=0, position=1),
            step(STALE, "running", staleness=late),
            step(RESTS, "scheduled", recovery=rests, run_at=soon),
            # For longer than nobody would notice.
            *[None] * 3,
            step(MOVED, "running"),
            step(OURS, "failed", error={"class": "stalled", "message": "x", "retryable": True}),
        ],
    )
    states, banners, connections, recoveries = (
        [value for value, _ in groupby(column)]
        for column in zip(*await page.evaluate("shown"), strict=True)
    )
    assert states == ["RECEIVED", "TIER1_SCANNING", "TIER2_SCANNING", "REJECTED"]
    assert banners == ["", LATE, ""]
    assert connections == ["", AWAY, ""]
    assert recoveries[0] == ""
    assert recoveries[1].startswith("Started again 2 of 3 times, last at ")
    assert " Next try at " in recoveries[1]
    assert recoveries[-1] == "Started again 3 of 3 times."
    await expect(page.get_by_role("button", name="Submit it again")).to_be_visible()
    await expect(page.locator("#message")).to_have_text("REJECTED.")
    await expect(page.locator("#facts")).to_contain_text("Reason: stuck_exhausted · submitted ")


async def test_a_scan_that_is_put_off_has_not_failed_and_is_not_planned(
    site: Scanner, windows: Windows
) -> None:
    """After the worker died it runs alone, and waits for that: it said "failed" and "Planned"."""
    outcomes = (("lost", "worker_lost"), ("snoozed", None))
    attempts = [
        {
            "attempt": number,
            "outcome": outcome,
            "classification": cls,
            "startedAt": "2026-01-01T12:00:00Z",
            "endedAt": "2026-01-01T12:00:02Z",
        }
        for number, (outcome, cls) in enumerate(outcomes, start=1)
    ]
    waits = step(answer("RECEIVED"), "scheduled", attempt=2, run_at="2100-01-01T12:00:10Z")
    page = await play(
        windows,
        site,
        [
            waits,
            *[None] * 3,
            step({**OURS, "attempts": attempts}, "failed", error={"class": "bug"}),
        ],
    )
    starts = page.locator("#starts .list li")
    await expect(starts.nth(0)).to_contain_text("its worker died (worker_lost)")
    await expect(starts.nth(1)).to_contain_text("put off until no other scan runs beside it")
    script = (FOLDER / "static" / "status.js").read_text()
    assert 'scheduled: "Starts again at {time}"' in script


async def test_what_was_found_is_shown_as_text(site: Scanner, windows: Windows) -> None:
    page = await play(windows, site, [step(THEIRS, "succeeded")])
    await expect(page.locator("#findings")).to_contain_text("Line 2: <b>bad</b> (r)")
    await expect(page.get_by_role("button", name="Submit it again")).to_be_hidden()
