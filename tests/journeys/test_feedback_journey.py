"""A pupil and the teacher in a real browser, with all programs: all are served, whatever dies."""

from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from playwright.async_api import Locator, Page, expect

from browser.axe import axe
from browser.watched import DESK, PHONE, Windows, fits_sideways
from journeys.feedback_site import ANSWER, CODE, Feedback, running
from journeys.site import PATIENCE_SECONDS

pytestmark = pytest.mark.timeout(240)

PATIENCE_MS = PATIENCE_SECONDS * 1000
SAFE = "Deine Abgabe ist sicher und wird automatisch ausgewertet."


@pytest.fixture
def feedback(database: str, tmp_path: Path) -> Iterator[Feedback]:
    with running(database, tmp_path) as site:
        yield site


async def test_a_text_is_handed_in_and_read_whatever_dies_meanwhile(
    feedback: Feedback, windows: Windows, allowed_errors: list[str], conn: asyncpg.Connection
) -> None:
    """F1, F2, F5, F6: on a phone, with the class's board beside it.

    Taken back and revised; words come; a reload; the worker goes, the model, the server.
    """
    allowed_errors.append("ERR_|/events|50[0-9]")
    page = await windows.open(phone=True)
    card = await _sign_in(page, feedback)
    await _hands_in_twice(windows, page, card)
    board = await _the_class_comes(feedback, windows)

    await feedback.order(fault="hang_mid", after=6, times=1)
    worker = feedback.start_worker("first")
    job, words = card.locator("penstock-job"), card.locator(".feedback")
    await expect(words).not_to_be_empty(timeout=PATIENCE_MS)
    so_far = await words.inner_text()
    await page.reload()
    await expect(words).to_contain_text(so_far[:10])
    worker.kill()

    await board.get_by_role("button", name="KI anhalten").click()
    await expect(board.locator("#model")).to_have_text("nicht erreichbar")
    feedback.start_worker("second")
    banner = job.locator("[part=banner]")
    await expect(banner).to_contain_text("Die KI ist", timeout=PATIENCE_MS)
    await expect(banner).to_contain_text(SAFE)
    await expect(board.locator("#rows")).to_contain_text("wartet auf die KI", timeout=PATIENCE_MS)
    await axe(page)
    await axe(board)
    await board.emulate_media(color_scheme="light")
    await axe(board)
    await board.emulate_media(color_scheme="dark")
    await windows.looks(page, "feedback-outage-phone")
    await windows.looks(board, "feedback-class-dark", whole=False)

    [web] = [program for program in feedback.programs if program.port == feedback.web_port]
    web.end()
    await expect(card).to_contain_text("Die Seite ist gerade nicht verbunden", timeout=PATIENCE_MS)
    await windows.looks(page, "feedback-offline-phone")
    feedback.start_web().wait_ready()
    await board.get_by_role("button", name="KI wieder starten").click()
    there = "Deine Rückmeldung ist da."
    await expect(card.locator(".message")).to_have_text(there, timeout=PATIENCE_MS)
    await expect(job).to_be_hidden()
    await expect(board.locator("#rows")).to_contain_text("fertig", timeout=PATIENCE_MS)
    said = await words.inner_text()
    assert said
    await axe(page)
    await windows.looks(page, "feedback-done-phone")
    await page.reload()
    await expect(words).to_have_text(said)
    lost = "select count(*) from penstock.attempts where outcome = 'lost'"
    assert await conn.fetchval(lost) == 1
    assert await conn.fetchval("select max(failures) from penstock.finished") == 0


async def _sign_in(page: Page, site: Feedback) -> Locator:
    await page.goto(f"http://127.0.0.1:{site.web_port}/")
    await page.get_by_label("Dein Name").fill("Ada")
    await page.get_by_role("button", name="Los geht").click()
    return page.locator("[data-task=blatt]")


async def _hands_in_twice(windows: Windows, page: Page, card: Locator) -> None:
    """Nobody works yet, and the page says so; what is taken back can be revised."""
    await card.get_by_label("Dein Text").fill(ANSWER)
    await card.get_by_role("button", name="Abgeben").click()
    job = card.locator("penstock-job")
    await expect(job).to_contain_text(f"Die Auswertung läuft gerade noch nicht. {SAFE}")
    await fits_sideways(page)
    await axe(page)
    await windows.looks(page, "feedback-no-worker-phone")
    await job.get_by_role("button", name="Zurückziehen").click()
    await expect(card.locator(".message")).to_contain_text("Du hast die Abgabe zurückgezogen.")
    await card.get_by_role("button", name="Überarbeiten und noch einmal abgeben").click()
    await expect(card.get_by_label("Dein Text")).to_have_value(ANSWER)
    await card.get_by_role("button", name="Abgeben").click()
    await expect(job).to_contain_text("Du bist als Nächstes dran")


async def _the_class_comes(site: Feedback, windows: Windows) -> Page:
    """Fifty more, all told by one stream."""
    board = await windows.open(dark=True)
    async with board.expect_request("**/penstock/v1/topics/klasse/events*"):
        await board.goto(f"http://127.0.0.1:{site.web_port}/klasse?code={CODE}")
    await board.get_by_role("button", name="50 Abgaben auf einmal").click()
    # And Ada's two, of which one is taken back.
    await expect(board.locator("#rows tr")).to_have_count(52)
    await expect(board.locator("#counts")).to_contain_text("51 wartend")
    # No worker is there, and the model is: nobody waits for the model.
    await expect(board.locator("#rows .badge", has_text="wartet")).to_have_text(["wartet"] * 51)
    await board.set_viewport_size(PHONE)
    # Pupils hand in several tasks: without it their rows were the same.
    await expect(board.locator("#rows td.task").first).to_be_visible()
    await fits_sideways(board)
    assert await board.evaluate(
        "(page => page.scrollWidth <= page.clientWidth)(document.querySelector('.scroll'))"
    )
    await board.set_viewport_size(DESK)
    return board
