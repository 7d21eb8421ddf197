"""The page of one job, used as a person does: watching it, stopping it, trying it again."""

import pytest
from playwright.async_api import Page, expect

from browser.axe import axe
from browser.live import Live
from browser.scene import Scene
from browser.watched import assert_not_reloaded, mark


async def test_a_running_job_tells_how_it_goes_until_its_end(
    live: Live, scene: Scene, page: Page
) -> None:
    start = await scene.started(payload={"text": "Once upon a time"})
    await scene.emit(start, "The essay ")
    await live.open(page, f"/jobs/{start['id']}")
    await mark(page)
    said = page.locator("#tokens")
    await expect(said).to_have_text("The essay ")
    await scene.emit(start, "describes ", "a walk.", first=2)
    await expect(said).to_have_text("The essay describes a walk.")
    await page.get_by_text("Show the payload").click()
    await expect(page.locator("#payload")).to_contain_text("Once upon a time")
    progress = {"done": 2, "total": 4, "partial": {"spelling": "12 of 15"}}
    await scene.report(start, stage="grading", label="Grading", progress=progress)
    await expect(page.locator("#progress")).to_contain_text("2 of 4")
    await expect(page.locator("#partial")).to_contain_text("12 of 15")
    await expect(page.locator("#timeline")).to_contain_text("Grading")
    await expect(page.locator("#payload")).to_contain_text("Once upon a time")
    await expect(said).to_have_text("The essay describes a walk.")
    await scene.end(start, result={"grade": "B"})
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Succeeded")
    await assert_not_reloaded(page)
    await page.get_by_text("Show the result").click()
    await expect(page.locator("#result")).to_contain_text('"grade": "B"')
    await axe(page)


async def test_what_runs_is_stopped_after_a_question_and_what_waits_at_once(
    live: Live, scene: Scene, page: Page
) -> None:
    runs, waits = await scene.running(), await scene.queued()
    await live.open(page, f"/jobs/{runs}")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Stop this job?")
    await axe(page)
    await page.get_by_role("link", name="No, let it run").click()
    assert not (await scene.read(runs))["cancel_requested"]
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Yes, stop it").click()
    await expect(page.get_by_role("status").filter(has_text="asked to stop")).to_be_visible()
    assert (await scene.read(runs))["cancel_requested"]
    await page.goto(f"{live.base}/jobs/{waits}")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("status").filter(has_text="was cancelled")).to_be_visible()
    assert (await scene.read(waits))["status"] == "cancelled"


async def test_a_failed_job_says_why_and_is_retried_as_a_new_one(
    live: Live, scene: Scene, page: Page
) -> None:
    """M15"""
    job = await scene.failed(cls="bad_output", message="the answer is no JSON")
    await live.open(page, f"/jobs/{job}")
    main = page.get_by_role("main")
    await expect(main).to_contain_text("the answer of the model is not usable")
    await expect(main).to_contain_text("the answer is no JSON")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("status").filter(has_text="Submitted again")).to_be_visible()
    retried = (await scene.read(job))["retried_by"]
    await expect(page).to_have_url(f"{live.base}/jobs/{retried}")
    await page.locator("#facts").get_by_role("link", name=str(job)[-8:]).click()
    await expect(page).to_have_url(f"{live.base}/jobs/{job}")


async def test_two_tabs_show_the_same(live: Live, scene: Scene, page: Page) -> None:
    """What is done in one is seen in the other, which nobody touches."""
    job = await scene.queued()
    await live.open(page, "/jobs")
    other = await page.context.new_page()
    await other.goto(f"{live.base}/jobs/{job}")
    await other.get_by_role("button", name="Cancel").click()
    await expect(page.locator(f"#job-{job}")).to_contain_text("Cancelled")


@pytest.mark.parametrize("path", ["/jobs/01a1e2da-0000-7000-8000-000000000000", "/jobs?queue=gone"])
async def test_what_is_gone_is_said_and_not_an_error(
    live: Live, page: Page, allowed_errors: list[str], path: str
) -> None:
    allowed_errors.append("404")
    await live.open(page, path)
    await expect(page.get_by_role("main")).to_contain_text("no ")
    await axe(page)
