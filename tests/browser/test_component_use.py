"""<penstock-job> as an element of a page: its button, events, attributes, and styles."""

from playwright.async_api import Page, expect

from browser.component import COMPONENT, failed, part, running, show
from browser.stand_in import StandIn


async def test_the_button_cancels(page: Page, stand_in: StandIn) -> None:
    """G13, G16"""
    await show(page, stand_in, **running())
    await part(page, "cancel").click()
    await expect(part(page, "status")).to_have_text("Cancelling…")
    await expect(part(page, "cancel")).to_have_attribute("aria-disabled", "true")
    await part(page, "cancel").click(force=True)
    assert stand_in.count("POST /v1/jobs/a/cancel") == 1
    # Who pressed it does not lose the place when it goes.
    await part(page, "cancel").focus()
    stand_in.put("a", status="cancelled", cancel_requested=False)
    await expect(part(page, "cancel")).to_be_hidden()
    focused = "document.activeElement.shadowRoot?.activeElement.getAttribute('part')"
    assert await page.evaluate(focused) == "status"


async def test_a_refused_cancel_says_so_and_hides_the_button(
    page: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("403")
    await show(page, stand_in, **running())
    stand_in.fail(403, "POST /v1/jobs/a/cancel")
    await part(page, "cancel").click()
    await expect(part(page, "refusal")).to_have_text("You may not cancel this.")
    await expect(part(page, "cancel")).to_be_hidden()
    await expect(part(page, "status")).to_have_text("Running")


async def test_a_cancel_that_did_not_arrive_may_be_repeated(
    page: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("503")
    await show(page, stand_in, **running())
    stand_in.fail(503, "POST /v1/jobs/a/cancel")
    await part(page, "cancel").click()
    await expect(part(page, "refusal")).to_contain_text("Please try again")
    stand_in.mend()
    await part(page, "cancel").click()
    await expect(part(page, "status")).to_have_text("Cancelling…")
    await expect(part(page, "refusal")).to_be_hidden()


async def test_a_page_may_do_without_the_button(page: Page, stand_in: StandIn) -> None:
    await show(page, stand_in, " nocancel", **running())
    await expect(part(page, "status")).to_have_text("Running")
    await expect(part(page, "cancel")).to_be_hidden()
    await page.locator("penstock-job").evaluate("(one) => one.removeAttribute('nocancel')")
    await expect(part(page, "cancel")).to_be_visible()


async def test_events_tell_the_page(page: Page, stand_in: StandIn) -> None:
    shown = await show(page, stand_in, **running())
    await expect(part(page, "status")).to_have_text("Running")
    await shown.evaluate(
        """(one) => {
          window.told = [];
          for (const name of ["change", "chunk", "done"]) {
            one.addEventListener(name, ({ type, detail }) =>
              told.push([type, detail.status ?? detail.data]));
          }
        }"""
    )
    stand_in.emit("a", "x")
    stand_in.put("a", stage="S")
    stand_in.put("a", status="succeeded", result=1)
    await expect(part(page, "status")).to_have_text("Done")
    assert await page.evaluate("told") == [
        ["chunk", "x"],
        ["change", "running"],
        ["change", "succeeded"],
        ["done", "succeeded"],
    ]
    assert await shown.evaluate("(one) => one.job.result") == 1
    await stand_in.until_streams(0)


async def test_another_address_is_another_job(page: Page, stand_in: StandIn) -> None:
    stand_in.put("b", status="succeeded", result="the other")
    shown = await show(page, stand_in, **running())
    stand_in.emit("a", "tokens of a")
    await expect(part(page, "tokens")).to_be_visible()
    await shown.evaluate("(one) => one.setAttribute('src', '/v1/jobs/b')")
    await expect(part(page, "result")).to_have_text("the other")
    await expect(part(page, "tokens")).to_be_hidden()
    await stand_in.until_streams(0)


async def test_one_that_is_moved_goes_on_and_one_that_is_removed_ends(
    page: Page, stand_in: StandIn
) -> None:
    shown = await show(page, stand_in, **running())
    await expect(part(page, "status")).to_have_text("Running")
    await shown.evaluate("(one) => document.querySelector('main').prepend(one)")
    stand_in.put("a", stage_label="After the move")
    await expect(part(page, "stage")).to_have_text("After the move")
    assert stand_in.count("GET /v1/jobs/a/events") == 1
    await shown.evaluate("(one) => { window.kept = one; one.remove(); }")
    await stand_in.until_streams(0)
    await page.evaluate("document.querySelector('main').append(kept)")
    await stand_in.until_streams(1)
    await expect(part(page, "stage")).to_have_text("After the move")


async def test_a_job_that_is_not_there_says_so(
    page: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("404")
    await show(page, stand_in)
    await expect(part(page, "status")).to_have_text("Queued")
    shown = page.locator("penstock-job")
    await shown.evaluate("(one) => one.setAttribute('src', '/v1/jobs/none')")
    await expect(part(page, "status")).to_have_text("This job no longer exists.")
    await expect(part(page, "cancel")).to_be_hidden()


async def test_a_page_may_style_its_parts(page: Page, stand_in: StandIn) -> None:
    stand_in.policy = None
    stand_in.put("a", **failed("bug"))
    stand_in.pages["one"] = (
        "<style>penstock-job::part(status) { text-transform: uppercase }"
        "penstock-job { --penstock-bad: rgb(1, 2, 3) }</style>" + COMPONENT.format("")
    )
    await page.goto(f"{stand_in.base}/pages/one")
    status = part(page, "status")
    await expect(status).to_have_css("text-transform", "uppercase")
    await expect(status).to_have_css("color", "rgb(1, 2, 3)")
