"""The pictures of the documents, `make screenshots`: pages of a system at work, 1280 px, light.

No test of `make test`: pytest collects it only where it is named.
"""

from typing import Any

from playwright.async_api import Page, ViewportSize, expect

from browser import systems
from browser.live import Live
from browser.scene import Scene
from browser.stand_in import moment, standing_in
from browser.watched import Windows

MOST_HEIGHT = 1_000
RUNNING: dict[str, Any] = {"status": "running", "attempt": 1, "started_at": moment(seconds=65)}
# What somebody who waits meets most, as pages show it to them.
STATES: tuple[dict[str, Any], ...] = (
    {"position": 3, "eta_seconds": 120.0, "waiting_for": "queue_limit"},
    RUNNING
    | {
        "stage_label": "Reading paragraph 2",
        "progress": {"done": 1, "total": 4, "partial": {"Spelling": "12 of 15"}},
    },
    RUNNING
    | {
        "staleness": {
            "stale": True,
            "since": moment(minutes=4),
            "stage": "reading",
            "message": "No news for 4 minutes. Nothing is lost, and it goes on by itself.",
        }
    },
    {"position": 3, "waiting_for": "circuit_open"},
    {"status": "succeeded", "finished_at": moment(), "result": "A clear essay with a good ending."},
    {
        "status": "failed",
        "finished_at": moment(),
        "error": {"class": "timeout", "reason": None, "message": "", "retryable": True},
        "credits": {"reserved": 4, "charged": 0, "refunded": 4},
    },
)


async def picture(windows: Windows, page: Page, name: str, *, width: int = 1280) -> None:
    """Of all there is, down to where nobody would read on."""
    await page.set_viewport_size(ViewportSize(width=width, height=600))
    end = await page.get_by_role("main").evaluate("(main) => main.getBoundingClientRect().bottom")
    height = min(round(end) + 8, MOST_HEIGHT)
    await page.set_viewport_size(ViewportSize(width=width, height=height))
    await windows.looks(page, name, whole=False)


async def test_pages_of_a_system_at_work(live: Live, scene: Scene, windows: Windows) -> None:
    system = await systems.at_work(scene)
    page = await windows.open(reduced_motion="reduce")
    await live.login(page)
    wanted = {
        "overview": "/",
        "jobs": "/jobs",
        "job": f"/jobs/{system.job}",
        "queues": "/queues",
        "queue": f"/queues/{system.queue}",
        "account": f"/accounts/{system.account}",
        "stuck": "/stuck",
        "workers": "/workers",
    }
    for name, path in wanted.items():
        await page.goto(f"{live.base}{path}")
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await picture(windows, page, name)


async def test_pages_while_a_provider_is_away(live: Live, scene: Scene, windows: Windows) -> None:
    await systems.outage(scene)
    page = await windows.open(reduced_motion="reduce")
    await live.login(page)
    await picture(windows, page, "outage")


async def test_the_component_in_its_states(windows: Windows) -> None:
    async with standing_in() as api:
        for n, state in enumerate(STATES):
            api.put(f"j{n}", **state)
        api.pages["all"] = "".join(
            f'<p><penstock-job src="/v1/jobs/j{n}" poll="250"></penstock-job></p>'
            for n in range(len(STATES))
        )
        page = await windows.open(reduced_motion="reduce")
        await page.goto(f"{api.base}/pages/all")
        for n in range(len(STATES)):
            status = page.locator("penstock-job").nth(n).locator("[part=status]")
            await expect(status).not_to_have_text("Connecting…")
        await picture(windows, page, "component", width=720)
        await windows.close()
