"""The jobs page in a browser: live rows, selection, filters, search, retry, cancel."""

from uuid import UUID

from playwright.async_api import Locator, Page, expect

from browser.axe import axe
from browser.live import Live
from browser.scene import Scene
from browser.watched import Windows, assert_not_reloaded, fits_sideways, mark


def row(page: Page, job: UUID) -> Locator:
    return page.locator(f"#job-{job}")


async def test_a_refresh_keeps_focus_selection_and_open_details(
    live: Live, scene: Scene, page: Page
) -> None:
    """Focus, selection, open details and unchanged rows stay; only changes are applied."""
    first, second = await scene.queued(), await scene.queued()
    await live.open(page, "/jobs")
    await mark(page)
    await page.evaluate("(id) => { window.was = document.getElementById(id) }", f"job-{first}")
    await page.locator("summary").click()
    await row(page, second).get_by_role("checkbox").check()
    link = row(page, second).get_by_role("link").first
    await link.focus()
    await scene.start(first)
    await expect(row(page, first)).to_contain_text("Running")
    await assert_not_reloaded(page)
    assert await page.evaluate("window.was.isConnected"), "the row was replaced"
    await expect(link).to_be_focused()
    await expect(row(page, second).get_by_role("checkbox")).to_be_checked()
    await expect(page.get_by_role("button", name="Cancel all unfinished")).to_be_visible()


async def test_new_jobs_appear_at_the_top_unless_some_are_selected(
    live: Live, scene: Scene, page: Page
) -> None:
    old = await scene.queued()
    await live.open(page, "/jobs")
    new = await scene.queued()
    await expect(row(page, new)).to_be_visible()
    await row(page, old).get_by_role("checkbox").check()
    newest = await scene.queued()
    await expect(page.get_by_text("Newer jobs are not shown")).to_be_visible()
    await expect(row(page, newest)).to_have_count(0)
    await expect(row(page, old).get_by_role("checkbox")).to_be_checked()
    await page.get_by_role("link", name="Show them").click()
    await expect(row(page, newest)).to_be_visible()


async def test_a_refresh_keeps_typed_text(live: Live, scene: Scene, page: Page) -> None:
    job = await scene.queued()
    await live.open(page, "/jobs")
    search = page.get_by_role("searchbox")
    await search.fill("half a wor")
    await scene.start(job)
    await expect(row(page, job)).to_contain_text("Running")
    await expect(search).to_have_value("half a wor")
    await expect(search).to_be_focused()


async def test_filters_are_in_the_address(live: Live, scene: Scene, page: Page) -> None:
    await scene.plan()
    waits = await scene.queued(account="anna")
    broken = await scene.failed("other", account="ben", topic="t1")
    await live.open(page, "/jobs")
    await page.get_by_label("Status").select_option("failed")
    await expect(row(page, waits)).to_have_count(0)
    await expect(row(page, broken)).to_be_visible()
    await expect(page).to_have_url(f"{live.base}/jobs?status=failed")
    await page.go_back()
    await expect(row(page, waits)).to_be_visible()
    await page.get_by_label("Account", exact=True).fill("anna")
    await page.keyboard.press("Enter")
    await expect(row(page, broken)).to_have_count(0)
    await expect(row(page, waits)).to_be_visible()
    await page.get_by_role("link", name="Clear").click()
    await expect(row(page, broken)).to_be_visible()


async def test_the_search_finds_jobs_by_id_and_accounts_and_topics_by_name(
    live: Live, scene: Scene, page: Page
) -> None:
    await scene.plan()
    job = await scene.queued(account="anna", topic="essay-7")
    await live.open(page, "/jobs")
    search = page.get_by_role("searchbox")
    await search.fill(f" {job} ")
    await page.get_by_role("button", name="Find").click()
    await expect(page).to_have_url(f"{live.base}/jobs/{job}")
    for name, offer in (("anna", "Jobs of account anna"), ("essay-7", "Jobs of topic essay-7")):
        await page.goto(f"{live.base}/jobs")
        await search.fill(name)
        await page.keyboard.press("Enter")
        await page.get_by_role("link", name=offer).click()
        await expect(row(page, job)).to_be_visible()
    await search.fill("nobody")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("Nothing found for “nobody”")
    await axe(page)


async def test_selected_jobs_are_retried_after_confirmation(
    live: Live, scene: Scene, page: Page
) -> None:
    """With the keyboard alone."""
    jobs = [await scene.failed() for _ in range(3)]
    await live.open(page, "/jobs")
    retry = page.get_by_role("button", name="Retry selected")
    await expect(retry).to_be_disabled()
    for job in jobs[:2]:
        await row(page, job).get_by_role("checkbox").focus()
        await page.keyboard.press("Space")
    await retry.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Retry 2 jobs?")
    await axe(page)
    await page.get_by_role("link", name="No, leave them").click()
    assert (await scene.read(jobs[0]))["retried_by"] is None, "not confirmed yet"
    for job in jobs[:2]:
        await row(page, job).get_by_role("checkbox").check()
    await retry.click()
    await page.get_by_role("button", name="Yes, retry them").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").filter(has_text="Retried 2 of 2")).to_be_visible()
    assert [bool((await scene.read(job))["retried_by"]) for job in jobs] == [True, True, False]
    await page.reload()
    await expect(page.get_by_text("Retried 2 of 2")).to_have_count(0)


async def test_all_jobs_of_a_filter_are_cancelled_after_confirmation(
    live: Live, scene: Scene, page: Page
) -> None:
    await scene.plan()
    jobs = await scene.many(60, account="anna")
    other = await scene.queued()
    await live.open(page, "/jobs?account=anna")
    await page.locator("summary").click()
    await page.get_by_role("button", name="Cancel all").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 60 jobs?")
    await expect(page.get_by_role("main")).to_contain_text("60 jobs wait: cancelled at once")
    await fits_sideways(page)
    await page.get_by_role("button", name="Yes, cancel them").click()
    await expect(page.get_by_role("status").filter(has_text="Cancelled 60 of 60")).to_be_visible()
    assert (await scene.read(jobs[-1]))["status"] == "cancelled"
    assert (await scene.read(other))["status"] == "queued"


async def test_one_checkbox_selects_the_page(live: Live, scene: Scene, page: Page) -> None:
    await scene.many(3)
    await live.open(page, "/jobs")
    every = page.get_by_label("Select all on this page")
    await every.check()
    await expect(page.locator("#job-rows input:checked")).to_have_count(3)
    await page.locator("#job-rows input").first.uncheck()
    assert await every.evaluate("(box) => box.indeterminate")
    await every.check()
    await every.uncheck()
    await expect(page.locator("#job-rows input:checked")).to_have_count(0)


async def test_many_jobs_are_paged(live: Live, scene: Scene, page: Page) -> None:
    jobs = await scene.many(120)
    await live.open(page, "/jobs")
    await expect(page.locator("#total")).to_have_text("120 jobs")
    await expect(page.locator("#job-rows tr")).to_have_count(50)
    await expect(row(page, jobs[-1])).to_be_visible()
    for _ in range(2):
        await page.get_by_role("link", name="Older").click()
    await expect(page.locator("#job-rows tr")).to_have_count(20)
    await expect(row(page, jobs[0])).to_be_visible()
    await page.get_by_role("link", name="Newest").click()
    await expect(row(page, jobs[-1])).to_be_visible()


async def test_jobs_can_be_retried_without_scripts(
    live: Live, scene: Scene, windows: Windows
) -> None:
    job = await scene.failed()
    page = await windows.open(java_script_enabled=False)
    await live.open(page, "/jobs")
    await row(page, job).get_by_role("checkbox").check()
    await page.get_by_role("button", name="Retry selected").click()
    await page.get_by_role("button", name="Yes, retry it").click()
    await expect(page.get_by_role("status").filter(has_text="Retried 1 of 1")).to_be_visible()
    await page.get_by_label("Status").select_option("failed")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("#job-rows tr")).to_have_count(1)
