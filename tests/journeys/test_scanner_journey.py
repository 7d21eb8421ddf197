"""An author in a real browser, with all programs: the scan hangs, its worker dies, it is published.

There is no model here. What is away in the middle is the scan itself, which hangs.
"""

import re
from pathlib import Path

import asyncpg
import pytest
from playwright.async_api import Page, expect

from browser.axe import axe
from browser.watched import DESK, PHONE, Windows, fits_sideways
from journeys.scanner_site import CODE, MARK, Scanner, running
from journeys.site import PATIENCE_SECONDS
from support.clock import Clock
from support.waiting import eventually

pytestmark = pytest.mark.timeout(180)

PATIENCE_MS = PATIENCE_SECONDS * 1000


async def test_a_package_is_published_whatever_happens_to_its_scan(
    database: str, clock: Clock, tmp_path: Path, windows: Windows, allowed_errors: list[str]
) -> None:
    """S1, S2, S4, S5, S7, S8: on a phone, with the settings as they are meant.

    The three minutes until the banner, the five until the next start and the ten seconds before
    another one pass when the clock is moved; nothing else is hastened.
    """
    allowed_errors.append("422")
    with running(database, tmp_path) as site:
        page = await windows.open(phone=True)
        await _submits(page, site)
        job = page.locator("penstock-job")
        await expect(job).to_contain_text("Nobody is at work at the moment.")

        # Its second start would go well; it takes so long that the worker is killed before.
        worker = site.start_worker("first", SCANNER_TIER_SECONDS=str(PATIENCE_SECONDS))
        stage = page.locator("#stages .here")
        await expect(stage).to_have_text("Tier 1 scanning", timeout=PATIENCE_MS)
        banner = job.locator("[part=banner]")
        await expect(banner).to_be_hidden()
        await clock.advance("3m", beats=True)
        await expect(banner).to_contain_text("It was last at: Tier 1 scanning.")
        await expect(banner).to_have_css("background-color", "rgb(255, 224, 102)")
        await axe(page)
        await windows.looks(page, "scanner-late-phone")
        await page.reload()
        await expect(banner).to_contain_text("It was last at: Tier 1 scanning.")

        await clock.advance("2m", beats=True)
        again = page.locator("#recovery")
        await expect(again).to_contain_text("Started again 1 of 3 times", timeout=PATIENCE_MS)
        await _has_begun_again(database)
        worker.kill()
        site.start_worker("second")
        await expect(job).to_contain_text("Starts again at", timeout=PATIENCE_MS)
        await expect(banner).to_be_hidden()
        await expect(page.locator("#starts")).to_contain_text("no news for too long")
        await expect(again).to_contain_text("Started again 2 of 3 times")
        await expect(page.locator("#starts")).to_contain_text("its worker died")
        await windows.looks(page, "scanner-again-phone")
        await clock.advance("10s", beats=True)
        await expect(page.locator("#now")).to_have_attribute(
            "data-state", "PUBLISHED", timeout=PATIENCE_MS
        )
        await expect(again).to_have_text("Started again 2 of 3 times.")
        await expect(page.locator("#message")).to_contain_text("your package is published")
        await expect(job).to_be_hidden()
        await fits_sideways(page)
        await axe(page)
        await page.emulate_media(color_scheme="dark")
        await page.set_viewport_size(DESK)
        await fits_sideways(page)
        await axe(page)
        await windows.looks(page, "scanner-published-dark")
        await _is_listed(page, windows, site)


async def _is_listed(page: Page, windows: Windows, site: Scanner) -> None:
    """For its author with a link, for the operator with all that was broken off."""
    await page.get_by_role("link", name="Packages").click()
    await expect(page.locator("#mine").get_by_role("link")).to_have_text("tidy-logs")
    await expect(page.locator("#mine .state")).to_have_text("Published")
    await axe(page)
    await page.goto(f"{site.address}/operator#{CODE}")
    assert page.url.endswith(f"#{CODE}") is False
    await expect(page.locator("#packages").get_by_role("link")).to_have_text("tidy-logs")
    await expect(page.locator("#timeouts")).to_contain_text("its worker died")
    for size in (PHONE, DESK):
        await page.set_viewport_size(size)
        await fits_sideways(page)
        await axe(page)
    await windows.looks(page, "scanner-operator-dark")
    await page.goto("about:blank")  # that page goes on asking
    # 9:02 PM beside 21:02:02 were two clocks.
    other = await windows.open(locale="en-US")
    await other.goto(f"{site.address}/packages")
    await expect(other.locator("time")).to_have_text(
        re.compile(r"^[0-2]\d:[0-5]\d$|^\d+ \w+ \d{4}, ")
    )


async def _submits(page: Page, site: Scanner) -> None:
    """First without a name, then by a double click."""
    await page.goto(f"{site.address}/")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator("#name-wrong")).not_to_be_empty()
    await expect(page.get_by_label("Name")).to_be_focused()
    await page.get_by_label("Name").fill("tidy-logs")
    await page.get_by_label("Text of the package").fill(f"A {MARK}")
    await page.get_by_text("Hangs once in tier 1").click()
    await page.get_by_role("button", name="Submit").dblclick()
    await page.wait_for_url(f"{site.address}/submit/*")


async def _has_begun_again(dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    second = "select exists (select from penstock.job where status = 'running' and attempt = 2)"

    async def runs() -> bool:
        return bool(await conn.fetchval(second))

    try:
        await eventually(runs, "the second start is at work", seconds=PATIENCE_SECONDS)
    finally:
        await conn.close()
