"""Every page of the dashboard in a browser, whatever is in the system: no error, nothing that a
screen reader or weak eyes stumble over, nothing too wide for a phone."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from playwright.async_api import Page, ViewportSize, expect

from browser import systems
from browser.axe import axe
from browser.live import Live
from browser.scene import Scene
from browser.systems import System
from browser.watched import Windows, fits_sideways
from support.dashboard.walk import Things


@dataclass(frozen=True)
class Look:
    make: Callable[[Scene], Awaitable[System | None]]
    phone: bool = False
    dark: bool = False
    narrow: bool = False

    def __str__(self) -> str:
        screen, light = "phone" if self.phone else "desk", "dark" if self.dark else "light"
        screen = "narrow-desk" if self.narrow else screen
        return f"{self.make.__name__}-{screen}-{light}"


# Each look with more and less in the system: all of them with all would take minutes.
LOOKS = [
    Look(systems.empty),
    Look(systems.five_jobs, phone=True, dark=True),
    Look(systems.large),
    Look(systems.large, phone=True),
    Look(systems.large, narrow=True, dark=True),
    Look(systems.outage, dark=True),
]


async def paths(live: Live, scene: Scene, system: System | None) -> list[str]:
    """All pages; of an empty system those that show no single thing."""
    if system is None:
        return ["/", "/jobs", "/stuck", "/queues", "/accounts", "/plans", "/workers"]
    things = Things(
        job_id=system.job,
        batch_id=(await scene.read(system.job))["batch"],
        queue=system.queue,
        account=system.account,
        plan="free",
    )
    return [path for path in things.pages(live.api) if "?" not in path]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("look", LOOKS, ids=str)
async def test_every_page_is_for_everybody(
    live: Live, scene: Scene, windows: Windows, look: Look
) -> None:
    system = await look.make(scene)
    page = await windows.open(phone=look.phone, dark=look.dark)
    if look.narrow:
        await page.set_viewport_size(ViewportSize(width=1024, height=768))
    await live.login(page)
    faults = []
    for path in await paths(live, scene, system):
        await page.goto(f"{live.base}{path}")
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        label = re.sub("[^a-z]+", "-", path.replace(str(system and system.job), "job")).strip("-")
        await windows.looks(page, f"{look}-{label or 'overview'}")
        for check in (fits_sideways, fits_in_its_card, axe, says_no_json):
            try:
                await check(page)
            except AssertionError as fault:
                faults.append(f"{path}: {fault}")
    assert not faults, "\n".join(faults)


async def fits_in_its_card(page: Page) -> None:
    """At 1024 px a queue's figures by the hour went on below the card beside theirs."""
    wide = await page.locator("main .card").evaluate_all(
        """(cards) => cards
          .filter((card) => card.scrollWidth > card.clientWidth + 1)
          .filter((card) => getComputedStyle(card).overflowX === "visible")
          .map((card) => card.innerText.slice(0, 80))"""
    )
    assert not wide, f"{page.url}: wider than their cards: {wide}"


async def says_no_json(page: Page) -> None:
    """Where a sentence belongs there is one: data is behind a "show"."""
    seen = await page.get_by_role("main").inner_text()
    for raw in ('{"', "None", "undefined", "NaN", "[object", "null"):
        assert raw not in seen, f"{page.url} shows {raw!r}: {seen}"
