"""`<penstock-job>` on a page of an app, by the stand-in: how tests show it and look at it."""

from typing import Any

from playwright.async_api import Locator, Page, expect

from browser.stand_in import StandIn, moment

COMPONENT = '<penstock-job src="/v1/jobs/a"{}></penstock-job>'


async def show(page: Page, stand_in: StandIn, more: str = "", **job: Any) -> Locator:
    """A page with the component; what it shows."""
    stand_in.put("a", **job)
    stand_in.pages["one"] = COMPONENT.format(more)
    await page.goto(f"{stand_in.base}/pages/one")
    return page.locator("penstock-job")


def part(page: Page, name: str) -> Locator:
    return page.locator(f"penstock-job [part={name}]")


def running(**fields: Any) -> dict[str, Any]:
    return {"status": "running", "attempt": 1, "started_at": moment(seconds=65), **fields}


def failed(cls: str, **fields: Any) -> dict[str, Any]:
    error = {"class": cls, "reason": None, "message": "Traceback: secret", "retryable": False}
    return {"status": "failed", "error": error, "finished_at": moment(), **fields}


async def show_all(page: Page, stand_in: StandIn, jobs: list[dict[str, Any]]) -> list[Locator]:
    """Many on one page, by one stream."""
    for n, job in enumerate(jobs):
        stand_in.put(f"j{n}", **job)
    one = '<penstock-job src="/v1/jobs/j{}" stream="/v1/topics/a1"></penstock-job><br>'
    stand_in.pages["all"] = "".join(one.format(n) for n in range(len(jobs)))
    await page.goto(f"{stand_in.base}/pages/all")
    found = [page.locator("penstock-job").nth(n) for n in range(len(jobs))]
    for each in found:
        await expect(each.locator("[part=status]")).not_to_have_text("Connecting…")
    return found
