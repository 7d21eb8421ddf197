"""A teacher in a real browser, with all programs: marks come live, whatever dies meanwhile."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from playwright.async_api import Locator, Page, expect

from browser.axe import axe
from browser.watched import PHONE, Windows, fits_sideways
from journeys.marking_site import CLASS, CODE, SECONDS, Marking, assert_each_marked_once, running
from journeys.site import PATIENCE_SECONDS
from support.waiting import eventually

pytestmark = pytest.mark.timeout(180)

PATIENCE_MS = PATIENCE_SECONDS * 1000
# From three on, and not the whole class; or the whole class as well.
SOME = re.compile(r"^([3-9]|[12]\d)$")
SOME_OR_ALL = re.compile(r"^([3-9]|[12]\d|30)$")
NOT_LIVE = "Not live; asks every 3 seconds"


@pytest.fixture(scope="module")
def site(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Marking]:
    with running(shared_database, tmp_path_factory.mktemp("marking")) as site:
        yield site


@pytest.fixture
def marking(site: Marking) -> Iterator[Marking]:
    """Each test has an assignment of its own, with thirty answers."""
    site.settle()
    yield site
    site.settle()


async def test_a_teacher_marks_a_class(marking: Marking, windows: Windows) -> None:
    """M1, M2, M8, M9, M10, M15: on a phone, with the queue's page beside it.

    A double click, one that fails, the worker killed, a reload, the function away and back, Retry.
    """
    site = marking
    board = await _signed_in(windows, site)
    await board.goto(f"{_address(site)}/ai-queue")
    await expect(board.locator("#there")).to_have_text("it answers")
    await board.get_by_role("button", name="Let the next one fail").click()
    await expect(board.locator("#told")).to_have_text("The next one will fail.")
    await axe(board)
    await site.order(fail=2)  # and the one after it

    page = await _signed_in(windows, site, phone=True)
    await expect(page.locator(".assignments a")).to_have_count(2)
    await page.locator(".assignments a").first.click()
    await expect(page.locator("#lamp")).to_have_text("Live")
    await page.get_by_role("button", name="Mark all with AI").dblclick()
    await expect(page.locator("#pending")).to_have_text(str(CLASS))
    await expect(page.locator("#held-up")).to_have_text("Nobody is at work yet.")
    await fits_sideways(page)
    await axe(page)
    await windows.looks(page, "marking-no-worker-phone")

    await _some_are_marked_and_the_worker_dies(site, page)
    await _the_function_goes_and_comes_back(site, windows, page, board)
    await _those_that_failed_are_retried(page, board)
    await _one_is_corrected_by_hand(windows, page)
    await board.set_viewport_size(PHONE)
    await fits_sideways(board)
    await axe(board)
    await windows.looks(board, "marking-queue-phone")
    await fits_sideways(page)
    await windows.looks(page, "marking-done-phone")
    async with _database(site) as conn:
        rows = await conn.fetch(
            "select from marking.submission where assignment_id = 'a1' and times_marked = 1"
        )
        assert len(rows) == CLASS
        ended = await conn.fetch("select failures from penstock.finished where topic = 'a1'")
        # What died took no attempt from anybody.
        assert sorted(row["failures"] for row in ended) == [0] * CLASS + [1, 1]
    assert site.most_at_once() == 1


async def _some_are_marked_and_the_worker_dies(site: Marking, page: Page) -> None:
    await site.order(seconds=0.7)  # most are not marked when the worker is killed
    worker = site.start_worker("first")
    said = "The model could not make sense of this answer."
    for pupil in ("Ada", "Amir"):
        row = _row(page, pupil)
        await expect(row).to_have_attribute("data-status", "failed", timeout=PATIENCE_MS)
        await expect(row.locator("[slot=error]")).to_have_text(said)
    marked = page.locator("#marked")
    await expect(marked).to_have_text(SOME)
    worker.kill()
    await site.order(seconds=SECONDS)
    await page.reload()
    await expect(page.locator("#rows tr")).to_have_count(CLASS)
    await expect(marked).to_have_text(SOME)


async def _the_function_goes_and_comes_back(
    site: Marking, windows: Windows, page: Page, board: Page
) -> None:
    there = board.locator("#there")
    await board.get_by_role("button", name="Stop it").click()
    await expect(there).to_have_text("it does not answer")
    site.start_worker("second")
    away = "The marking function does not answer at the moment; it goes on by itself."
    held_up = page.locator("#held-up")
    await expect(held_up).to_have_text(away, timeout=PATIENCE_MS)
    await expect(board.locator("#held-up")).to_have_text(away, timeout=PATIENCE_MS)
    await axe(page)
    await windows.looks(page, "marking-away-phone")
    await board.get_by_role("button", name="Start it").click()
    await expect(there).to_have_text("it answers")
    await expect(page.locator("#marked")).to_have_text(str(CLASS - 2), timeout=PATIENCE_MS)
    await expect(held_up).to_be_hidden()


async def _those_that_failed_are_retried(page: Page, board: Page) -> None:
    """One from its row in the class, one from its row in the queue."""
    await expect(page.locator("#failed")).to_have_text("2")
    await expect(page.locator("#all")).to_have_text("Mark 2 with AI")
    await _row(page, "Ada").get_by_role("button", name="Retry: Ada").click()
    await expect(page.locator("#marked")).to_have_text(str(CLASS - 1), timeout=PATIENCE_MS)
    await expect(page.locator("#all")).to_have_text("Mark 1 with AI")
    await board.get_by_role("button", name="Retry: Amir").dblclick()
    await expect(page.locator("#marked")).to_have_text(str(CLASS), timeout=PATIENCE_MS)
    await expect(page.locator("#failed")).to_have_text("0")
    await expect(page.locator("#all")).to_be_hidden()
    await expect(_row(page, "Ada").locator("td.mark")).to_have_text("3 / 4")
    await expect(board.locator("#rows tr")).to_have_count(CLASS + 2)
    await expect(board.get_by_role("button", name="Retry")).to_have_count(0)
    await expect(board.locator("#failed")).to_have_text("2")
    await expect(board.locator("#rows .badge", has_text="Marked")).to_have_count(CLASS)
    await expect(board.locator("#rows .badge", has_text="Failed")).to_have_count(2)
    await expect(board.locator("#average")).to_have_text(re.compile(r"^\d+\.\d s$"))


async def _one_is_corrected_by_hand(windows: Windows, page: Page) -> None:
    row = _row(page, "Ada")
    await row.get_by_role("button", name="Correct: Ada").click()
    dialog = page.get_by_role("dialog", name="Ada's mark")
    await expect(dialog.get_by_label("Points")).to_have_value("3")
    await dialog.get_by_label("Points").fill("5")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).to_have_text(
        "Points may be a whole number from 0 to 4."
    )
    await axe(page)
    await windows.looks(page, "marking-correct-phone", whole=False)
    await dialog.get_by_label("Points").fill("4")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_be_hidden()
    await expect(row.locator("td.mark")).to_have_text("4 / 4")
    await expect(row).to_contain_text("Corrected by hand")


async def test_without_the_stream_the_page_asks(
    marking: Marking, windows: Windows, allowed_errors: list[str]
) -> None:
    """M8: a proxy that lets no stream through; when it does, the page is live again."""
    allowed_errors.append("ERR_|/events")
    site = marking
    page = await _signed_in(windows, site)
    await page.route("**/v1/topics/**", lambda route: route.abort())
    await page.goto(f"{_address(site)}/results/assignments/a2")
    lamp, marked = page.locator("#lamp"), page.locator("#marked")
    await expect(lamp).to_have_text(NOT_LIVE)
    await page.get_by_role("button", name="Mark all with AI").click()
    site.start_worker("another")
    await expect(marked).to_have_text(SOME_OR_ALL, timeout=PATIENCE_MS)
    await page.unroute_all()
    # From one network into another: what was refused there is tried here.
    for away in (True, False):
        await page.context.set_offline(away)
    await expect(lamp).to_have_text("Live")
    await expect(marked).to_have_text(str(CLASS), timeout=PATIENCE_MS)

    # The web app goes, and comes back.
    [web] = [one for one in site.programs if one.port == site.web_port and one.is_running]
    web.kill()
    await expect(lamp).to_have_text(NOT_LIVE)
    site.start_web().wait_ready()
    await expect(lamp).to_have_text("Live", timeout=PATIENCE_MS)
    await expect(page.locator("#wrong")).to_be_empty()
    async with _database(site) as conn:
        await assert_each_marked_once(conn, site, "a2")


def _address(site: Marking) -> str:
    return f"http://127.0.0.1:{site.web_port}"


async def _signed_in(windows: Windows, site: Marking, *, phone: bool = False) -> Page:
    page = await windows.open(phone=phone)
    await page.goto(f"{_address(site)}/sign-in?code={CODE}")
    return page


def _row(page: Page, pupil: str) -> Locator:
    return page.locator("#rows tr").filter(has=page.locator("th", has_text=pupil))


@asynccontextmanager
async def _database(site: Marking) -> AsyncIterator[asyncpg.Connection]:
    """The database, when the app's own table has all marks."""
    conn = await asyncpg.connect(site.env["PENSTOCK_DSN"])

    async def written() -> bool:
        return not await conn.fetchval("select exists (select from penstock.job)")

    try:
        await eventually(written, "all has ended", seconds=PATIENCE_SECONDS)
        yield conn
    finally:
        await conn.close()
