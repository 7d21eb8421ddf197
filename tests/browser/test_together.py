"""A page that watches a topic beside its components; and a batch, which is shown as one job."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Page, expect

from browser.stand_in import StandIn, job, standing_in
from browser.watched import Windows, in_one_loop
from support.waiting import eventually

TOPIC = "/v1/topics/a1"
ROW = f'<penstock-job src="/v1/jobs/{{}}" stream="{TOPIC}" token="pt_1"></penstock-job>'
WATCH = f"""
async () => {{
  const {{ watch }} = await import("/static/penstock.js");
  window.heard = [];
  window.renewals = 0;
  const renew = async () => `pt_${{(window.renewals += 1) + 1}}`;
  for (const one of document.querySelectorAll("penstock-job")) one.renew = renew;
  watch("{TOPIC}", {{
    token: "pt_1",
    stream: "{TOPIC}",
    renew,
    onchange: (job) => heard.push(`${{job.id}} ${{job.status}}`),
    onstate: (state) => heard.push(state),
  }});
}}
"""
BATCH = '<penstock-job src="/v1/batches/b"></penstock-job>'


@in_one_loop
async def stand_in(windows: Windows) -> AsyncIterator[StandIn]:
    async with standing_in() as found:
        yield found
        await windows.close()


async def until_heard(page: Page, words: str) -> None:
    async def is_so() -> bool:
        return words in await page.evaluate("heard")

    await eventually(is_so, words)


async def test_a_page_and_its_components_share_one_stream(page: Page, stand_in: StandIn) -> None:
    for name in ("a", "b"):
        stand_in.put(name, topic="a1")
    stand_in.pages["class"] = ROW.format("a") + ROW.format("b")
    await page.goto(f"{stand_in.base}/pages/class")
    await page.evaluate(WATCH)
    await until_heard(page, "live")
    stand_in.put("b", status="running", attempt=1)
    await until_heard(page, "b running")
    await expect(page.locator("penstock-job [part=words]")).to_have_text(["Queued", "Running"])
    # One that is on no component is the page's alone.
    stand_in.put("c", topic="a1")
    await until_heard(page, "c queued")
    assert [stream.path for stream in stand_in.streams] == [f"{TOPIC}/events"]
    # Who comes to an open stream reads the list once; nobody reads job by job.
    assert stand_in.called("GET /v1/jobs/") == []


async def test_one_new_token_is_asked_for_and_given_to_all(
    page: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("401")
    stand_in.tokens = {"pt_1"}
    names = [f"j{number}" for number in range(8)]
    for name in names:
        stand_in.put(name, topic="a1")
    stand_in.pages["class"] = "".join(ROW.format(name) for name in names)
    await page.goto(f"{stand_in.base}/pages/class")
    await page.evaluate(WATCH)
    await until_heard(page, "live")
    stand_in.tokens = {"pt_2"}
    stand_in.cut()

    async def is_back() -> bool:
        return [stream.query["token"] for stream in stand_in.streams] == ["pt_2"]

    await eventually(is_back, "one stream with the new token", seconds=20)
    stand_in.put("j7", status="running", attempt=1)
    await expect(page.locator("penstock-job [part=words]").last).to_have_text("Running")
    assert await page.evaluate("renewals") == 1


def batch(*jobs: dict[str, Any], status: str, **fields: Any) -> dict[str, Any]:
    """As the API tells it."""
    counts = [one["status"] for one in jobs]
    return {
        "total": len(jobs),
        **{name: counts.count(name) for name in ("succeeded", "failed", "running", "queued")},
        "status": status,
        "progress": {"done": 0, "total": len(jobs), "partial": [None] * len(jobs)},
        "credits": None,
        "position": None,
        "eta_seconds": None,
        "items": list(jobs),
        **fields,
    }


ENDED = job("one", status="succeeded")
WAITS = job("two")
STOPS = job("two", status="running", attempt=1, cancel_requested=True)
FAILED = job("one", status="failed", error={"class": "timeout", "message": "x", "retryable": False})
STATES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # What is told, then: status, its place or why it failed, what the button says.
    "one has ended, the other waits": (
        batch(ENDED, WAITS, status="running", position=5),
        "Queued",
        "#5 in queue",
        "Cancel",
    ),
    "it stops": (batch(ENDED, STOPS, status="running"), "Cancelling…", "", "Cancelling…"),
    "all have failed": (
        batch(FAILED, status="failed"),
        "Failed",
        "It exceeded its time limit and was stopped.",
        "",
    ),
}


@pytest.mark.parametrize("state", STATES)
async def test_a_batch_is_shown_as_one_job(page: Page, stand_in: StandIn, state: str) -> None:
    told, status, why, button = STATES[state]
    stand_in.put("b", **told)
    stand_in.pages["one"] = BATCH
    await page.goto(f"{stand_in.base}/pages/one")
    shown = page.locator("penstock-job")
    await expect(shown.locator("[part=words]")).to_have_text(status)
    said = shown.locator("[part=position], [part=reason]").filter(visible=True)
    await expect(said).to_have_text([why] if why else [])
    await expect(shown.locator("[part=cancel]")).to_have_text(button)


async def test_a_batch_of_one_counts_what_its_job_counts(page: Page, stand_in: StandIn) -> None:
    draws = job("one", status="running", attempt=1, progress={"done": 2, "total": 4})
    stand_in.put("b", **batch(draws, status="running"))
    stand_in.pages["one"] = BATCH
    await page.goto(f"{stand_in.base}/pages/one")
    await expect(page.locator("penstock-job [part=count]")).to_have_text("2 of 4")
