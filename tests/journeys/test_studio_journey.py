"""A customer in a real browser, with all programs: pictures for credits, whatever dies."""

from pathlib import Path

import asyncpg
import pytest
from playwright.async_api import Locator, Page, expect

from browser.axe import axe
from browser.watched import Windows, fits_sideways
from journeys.site import PATIENCE_SECONDS
from journeys.studio_site import CODE, FREE, MARK, Studio, running

pytestmark = pytest.mark.timeout(180)

PATIENCE_MS = PATIENCE_SECONDS * 1000
AWAY = "The image model does not answer at the moment; it goes on by itself."


async def test_a_customer_clicks_through(
    database: str,
    tmp_path: Path,
    windows: Windows,
    allowed_errors: list[str],
    conn: asyncpg.Connection,
) -> None:
    """G2, G4, G12, G13, G15, G16: on a phone.

    Order, reload, lose the worker, lose the model, lose a picture; cancel, run short, buy.
    """
    allowed_errors.append("402")
    with running(database, tmp_path) as site:
        page = await windows.open(phone=True)
        address = f"http://127.0.0.1:{site.web_port}/"
        await page.goto(f"{address}operator?code={CODE}")
        await page.locator(f"[value={FREE}]").click()
        await expect(page.locator("#balance")).to_have_text("10 credits")

        await _waits(windows, page)
        await _loses_worker_and_model(site, windows, page)
        await _loses_a_picture(site, page)
        left = await _cancels(site, page)
        await _runs_short_and_buys(page, left)

        await page.goto(address)
        await expect(page.locator("article")).to_have_count(2)
        await expect(page.locator("#balance")).to_have_text(f"{left + 10} credits")
        await fits_sideways(page)
        await axe(page)
        await windows.looks(page, "studio-history-phone")
    lost = "select count(*) from penstock.attempts where outcome = 'lost'"
    assert await conn.fetchval(lost) == 1
    # Neither the worker nor the model that went took an attempt.
    assert await conn.fetchval("select max(failures) from penstock.finished") == 0


async def _waits(windows: Windows, page: Page) -> None:
    await _press_generate(page, 3)
    await expect(_job(page)).to_contain_text("You are in the queue")
    await expect(_job(page)).to_contain_text("#1 in queue")
    await expect(_note(page)).to_have_text("Nobody is at work yet.")
    await expect(page.locator("#balance")).to_have_text("7 credits")
    await fits_sideways(page)
    await axe(page)
    await windows.looks(page, "studio-no-worker-phone")


async def _loses_worker_and_model(site: Studio, windows: Windows, page: Page) -> None:
    await site.slow_after(1)
    worker = site.start_worker("first")
    await _has_pictures(page, 1)
    await expect(_job(page)).to_contain_text("1 of 3 so far")
    await page.reload()
    await _has_pictures(page, 1)
    await expect(_job(page)).to_contain_text("1 of 3 so far")
    worker.kill()
    await site.command("/_stop")
    site.start_worker("second")
    await expect(_note(page)).to_have_text(AWAY, timeout=PATIENCE_MS)
    await _has_pictures(page, 1)
    await axe(page)
    await windows.looks(page, "studio-away-phone")


async def _loses_a_picture(site: Studio, page: Page) -> None:
    await page.get_by_role("button", name="Let the model refuse the next").click()
    await expect(page.locator("#operator-said")).to_contain_text("It will be refunded.")
    await site.command("/_start")
    said = page.locator("article .message").first
    ready = "2 of 3 images are ready. 1 credit was refunded."
    await expect(said).to_have_text(ready, timeout=PATIENCE_MS)
    await _has_pictures(page, 2)
    await expect(page.locator("[data-state=refunded] strong")).to_have_text("1 credit refunded")
    await expect(page.locator("#balance")).to_have_text("8 credits")


async def _cancels(site: Studio, page: Page) -> int:
    """What is left afterwards."""
    await site.fault(fault="delay", by=5)
    await _press_generate(page, 4)
    cancel = _job(page).get_by_role("button", name="Cancel")
    await expect(cancel).to_be_visible()
    await expect(page.locator("#balance")).to_have_text("4 credits")
    await cancel.click()
    said = page.locator("article .message").first
    await expect(said).to_contain_text("Cancelled.", timeout=PATIENCE_MS)
    await expect(page.locator("#balance")).not_to_have_text("4 credits")
    left = int((await page.locator("#balance").inner_text()).split()[0])
    assert 4 < left <= 8
    return left


async def _runs_short_and_buys(page: Page, left: int) -> None:
    await page.get_by_text("High", exact=True).click()
    await _press_generate(page, 5)
    wrong = page.locator("#wrong")
    await expect(wrong).to_contain_text(f"This costs 15 credits, and you have {left}.")
    # Clicks on one purchase that follow at once are the same purchase.
    await page.locator("#buy").evaluate("one => [1, 2, 3].forEach(() => one.click())")
    await expect(page.locator("#balance")).to_have_text(f"{left + 10} credits")
    await expect(page.locator("#operator-said")).to_contain_text("Bought.")
    await expect(wrong).to_be_empty()


async def _press_generate(page: Page, images: int) -> None:
    await page.get_by_label("What would you like to see?").fill(f"A {MARK} at dawn")
    await page.get_by_role("slider", name="Images").fill(str(images))
    await page.get_by_role("button", name="Generate").click()


def _job(page: Page) -> Locator:
    """How the newest order goes on."""
    return page.locator("#current penstock-job").first


def _note(page: Page) -> Locator:
    return page.locator("#current .note").first


async def _has_pictures(page: Page, number: int) -> None:
    """They are there, not only announced."""
    drawn = "[...document.querySelectorAll('article img')].filter((i) => i.naturalWidth)"
    await page.wait_for_function(f"() => {drawn}.length === {number}", timeout=PATIENCE_MS)
