"""The feedback example in a real browser with all its programs: a pupil, the class, an outage."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from browser.axe import axe
from browser.watched import Windows, fits_sideways
from journeys.feedback_site import ANSWER, CODE, PATIENCE_SECONDS, Feedback, running

pytestmark = pytest.mark.timeout(180)

PATIENCE_MS = PATIENCE_SECONDS * 1000
SAFE = "Deine Abgabe ist sicher und wird automatisch ausgewertet."


@pytest.fixture
def feedback(database: str, tmp_path: Path) -> Iterator[Feedback]:
    with running(database, tmp_path) as site:
        yield site


async def test_a_text_is_handed_in_taken_back_revised_and_read(
    feedback: Feedback, windows: Windows
) -> None:
    """F1, F2, F6: on a phone; nobody works at first, and the page says so."""
    page = await windows.open(phone=True)
    card = await _sign_in(page, feedback)
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

    feedback.start_worker()
    await expect(card.locator(".message")).to_have_text(
        "Deine Rückmeldung ist da.", timeout=PATIENCE_MS
    )
    await expect(job).to_be_hidden()
    said = await card.locator(".feedback").inner_text()
    assert said
    await axe(page)
    await windows.looks(page, "feedback-done-phone")
    await page.reload()
    await expect(card.locator(".feedback")).to_have_text(said)


async def test_a_class_waits_for_a_model_that_is_away_and_is_served_afterwards(
    feedback: Feedback, windows: Windows, allowed_errors: list[str]
) -> None:
    """F1, F2, F5: the pupil is told, the teacher sees all of them by one stream."""
    allowed_errors.append("ERR_|/events|50[0-9]")
    page = await windows.open(dark=True)
    card = await _sign_in(page, feedback)
    await card.get_by_label("Dein Text").fill(ANSWER)
    await card.get_by_role("button", name="Abgeben").click()
    board = await windows.open()
    async with board.expect_request("**/penstock/v1/topics/klasse/events*"):
        await board.goto(f"http://127.0.0.1:{feedback.web_port}/klasse?code={CODE}")
    await board.get_by_role("button", name="50 Abgaben auf einmal").click()
    await expect(board.locator("#rows tr")).to_have_count(51)
    await expect(board.locator("#counts")).to_contain_text("51 wartend")
    await board.get_by_role("button", name="KI anhalten").click()
    await expect(board.locator("#model")).to_have_text("nicht erreichbar")

    feedback.start_worker()
    banner = card.locator("penstock-job [part=banner]")
    await expect(banner).to_contain_text("Die KI ist", timeout=PATIENCE_MS)
    await expect(banner).to_contain_text(SAFE)
    await expect(board.locator("#rows")).to_contain_text("wartet auf die KI", timeout=PATIENCE_MS)
    await axe(page)
    await axe(board)
    await windows.looks(page, "feedback-outage-dark")
    await windows.looks(board, "feedback-class", whole=False)

    [web] = [program for program in feedback.programs if program.port == feedback.web_port]
    web.end()
    await expect(card).to_contain_text("Die Seite ist gerade nicht verbunden", timeout=PATIENCE_MS)
    await windows.looks(page, "feedback-offline-dark")
    feedback.start_web().wait_ready()
    await board.get_by_role("button", name="KI wieder starten").click()
    await expect(card.locator(".message")).to_have_text(
        "Deine Rückmeldung ist da.", timeout=PATIENCE_MS
    )
    await expect(board.locator("#rows")).to_contain_text("fertig", timeout=PATIENCE_MS)
    await windows.looks(page, "feedback-done-dark")


async def _sign_in(page: Page, site: Feedback) -> Locator:
    await page.goto(f"http://127.0.0.1:{site.web_port}/")
    await page.get_by_label("Dein Name").fill("Ada")
    await page.get_by_role("button", name="Los geht").click()
    return page.locator("[data-task=blatt]")
