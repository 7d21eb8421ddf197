"""Somebody practises in a real browser, with all programs: bands for an essay, whatever dies."""

import re

import asyncpg
import pytest
from playwright.async_api import Page, expect

from browser.axe import axe
from browser.watched import Windows, fits_sideways
from journeys.essays_site import ESSAY, Essays
from journeys.site import PATIENCE_SECONDS

pytestmark = pytest.mark.timeout(180)

PATIENCE_MS = PATIENCE_SECONDS * 1000
BAND = re.compile(r"^\d\.\d$")


async def test_an_essay_from_the_form_to_its_bands(
    essays: Essays, windows: Windows, allowed_errors: list[str], shared_conn: asyncpg.Connection
) -> None:
    """E1, E7, E8, E12, E15: on a phone.

    Stopped and begun again; then the model is away, a reload, and the server and the worker go.
    """
    allowed_errors.append("ERR_|/events|50[0-9]")
    # Long enough between two tries to be seen.
    essays.env["ESSAYS_RETRY_DELAY"] = "2"
    [web] = [one for one in essays.programs if one.port == essays.web_port]
    [model] = [one for one in essays.programs if one.port == essays.model_port]
    page = await windows.open(phone=True)
    await page.goto(f"http://127.0.0.1:{essays.web_port}/")
    await page.get_by_label("Your name").fill("Ana")
    await page.get_by_role("button", name="Sign in").click()
    await _is_stopped_and_begun_again(windows, page)

    model.kill()
    worker = essays.start_worker("first")
    job = page.locator("penstock-job")
    away = "Your work is safe and will be done automatically."
    await expect(job).to_contain_text(away, timeout=PATIENCE_MS)
    await windows.looks(page, "essays-away-phone")
    essays.env["MODEL_SECONDS"] = "3"  # slow enough to be told to hang before it has scored
    essays.start_model().wait_ready()
    await essays.order("hang", path="/score")
    await expect(job).to_contain_text("Scoring the essay", timeout=PATIENCE_MS)
    await fits_sideways(page)
    await axe(page)
    await windows.looks(page, "essays-working-phone")
    await page.reload()
    await expect(job).to_contain_text("Scoring the essay")
    await expect(page.get_by_role("button", name="Analyzing …")).to_be_disabled()

    web.end()
    await expect(job).to_contain_text("The connection was lost", timeout=PATIENCE_MS)
    essays.start_web().wait_ready()
    await expect(job).not_to_contain_text("The connection was lost", timeout=PATIENCE_MS)
    worker.kill()
    await essays.order("ok")
    essays.start_worker("second")
    await expect(page.locator("#band")).to_have_text(BAND, timeout=PATIENCE_MS)
    await expect(job).to_be_hidden()
    await fits_sideways(page)
    await axe(page)
    await page.reload()
    await expect(page.locator("#band")).to_have_text(BAND)
    await windows.looks(page, "essays-done-phone")
    ends = await shared_conn.fetch("select outcome from penstock.attempts order by started_at")
    assert [row["outcome"] for row in ends][-2:] == ["lost", "succeeded"]


async def _is_stopped_and_begun_again(windows: Windows, page: Page) -> None:
    """No worker is there, and the page says so; what is stopped ends at once."""
    await page.get_by_label("Your essay").fill(ESSAY)
    await page.get_by_role("button", name="Analyze").click()
    job = page.locator("penstock-job")
    await expect(job).to_contain_text("Nothing is being processed at the moment.")
    await axe(page)
    await page.emulate_media(color_scheme="dark")
    await axe(page)
    await windows.looks(page, "essays-no-worker-dark")
    await page.emulate_media(color_scheme="light")
    await job.get_by_role("button", name="Cancel").click()
    stopped = "The analysis was stopped. You can press Analyze again."
    await expect(page.locator("#failure")).to_have_text(stopped)
    first = page.url
    await page.get_by_role("button", name="Analyze").click()
    await expect(page).not_to_have_url(first)
    await expect(job).to_contain_text("Queued")
