"""Pages of queues, accounts, plans, workers and stuck jobs, as operators use them in an outage."""

from playwright.async_api import Page, expect

from browser import systems
from browser.axe import axe
from browser.live import Live
from browser.scene import Scene
from browser.watched import Windows


async def test_a_queue_is_paused_and_resumed(live: Live, scene: Scene, page: Page) -> None:
    """With the keyboard alone; another tab shows it without a reload."""
    job = await scene.queued()
    await live.open(page, "/queues")
    other = await page.context.new_page()
    await other.goto(f"{live.base}/queues/line")
    await other.get_by_label("Reason").first.fill("the model is exchanged")
    await other.keyboard.press("Enter")
    said = other.get_by_role("status").filter(has_text="Queue line is paused: 1 queued")
    await expect(said).to_be_visible()
    await expect(other.get_by_role("main")).to_contain_text("the model is exchanged")
    await axe(other)
    assert (await scene.read(job))["waiting_for"] == "paused"
    await expect(page.locator("#queue-line")).to_contain_text("Paused")
    await other.get_by_role("button", name="Resume").focus()
    await other.keyboard.press("Enter")
    await expect(other.get_by_role("status").filter(has_text="is resumed")).to_be_visible()
    await expect(page.locator("#queue-line")).not_to_contain_text("Paused")


async def test_limits_are_edited_refused_and_reset(
    live: Live, scene: Scene, page: Page, allowed_errors: list[str]
) -> None:
    allowed_errors.append("422")  # of the page itself, which shows the problem
    await scene.queue("line", concurrency=2)
    await live.open(page, "/queues/line")
    line = page.locator("#option-concurrency")
    await line.get_by_role("textbox").fill("seven")
    await page.get_by_role("button", name="Save changes").click()
    await expect(page.get_by_role("alert")).to_contain_text("Nothing was changed")
    field = line.get_by_role("textbox")
    await expect(field).to_be_focused()
    await expect(field).to_have_value("seven")
    await expect(field).to_have_attribute("aria-invalid", "true")
    await axe(page)
    await field.fill("7")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").filter(has_text="This applies at once")).to_be_visible()
    await expect(line).to_contain_text("edited")
    assert await _concurrency(scene) == 7
    await page.get_by_role("button", name="Reset to declared options").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("to its declared options")
    await axe(page)
    await page.get_by_role("link", name="No, go back").click()
    assert await _concurrency(scene) == 7, "not confirmed yet"
    await page.get_by_role("button", name="Reset to declared options").click()
    await page.get_by_role("button", name="Reset to declared options").click()
    await expect(page.get_by_role("status").filter(has_text="as declared again")).to_be_visible()
    assert await _concurrency(scene) == 2


async def test_an_unfinished_input_survives_a_refresh(live: Live, scene: Scene, page: Page) -> None:
    await scene.queue("line", concurrency=2)
    await live.open(page, "/queues/line")
    field = page.locator("#option-concurrency").get_by_role("textbox")
    order = page.locator("#option-order").get_by_role("combobox")
    await order.select_option("fair")
    await field.fill("12")
    await scene.queued()
    await expect(page.locator(".figure").first).to_contain_text("1")
    await expect(field).to_have_value("12")
    await expect(field).to_be_focused()
    await expect(order).to_have_value("fair")


async def test_the_circuit_of_an_unavailable_provider_is_closed_and_opened_by_hand(
    live: Live, scene: Scene, page: Page
) -> None:
    await scene.outage("llama")
    await live.open(page, "/")
    await expect(page.get_by_role("main")).to_contain_text("llama")
    await page.get_by_role("link", name="llama").first.click()
    circuit = page.get_by_role("region", name="Circuit")
    await expect(circuit).to_contain_text("the provider cannot be reached")
    await circuit.get_by_role("button", name="Close now").click()
    await expect(page.get_by_role("status").filter(has_text="is closed")).to_be_visible()
    await expect(circuit).to_contain_text("Closed")
    await circuit.get_by_label("Reason").fill("they told us")
    await circuit.get_by_role("button", name="Open by hand").click()
    await expect(circuit).to_contain_text("opened by hand")
    await axe(page)


async def test_an_open_overview_shows_a_new_outage(live: Live, scene: Scene, page: Page) -> None:
    await systems.five_jobs(scene)
    await live.open(page, "/")
    await page.evaluate("window.sameLoad = true")
    main = page.get_by_role("main")
    await expect(main).not_to_contain_text("llama")
    await scene.outage("llama", cls="auth")
    await expect(main).to_contain_text("llama")
    await expect(main).to_contain_text("refuses the key")
    assert await page.evaluate("window.sameLoad"), "the page was reloaded"
    await axe(page)


async def test_credits_are_granted_once_however_often_the_form_is_sent(
    live: Live, scene: Scene, page: Page
) -> None:
    await scene.plan()
    await scene.account("anna", 10)
    await live.open(page, "/accounts")
    await page.get_by_role("link", name="anna").click()
    await page.get_by_text("Grant", exact=True).first.click()
    grant = page.locator("form[action$='account/grant']")
    await grant.get_by_label("Amount").fill("25")
    await grant.get_by_label("Reason").fill("a gift")
    reference = await grant.get_by_label("Reference").input_value()
    await grant.get_by_role("button", name="Grant").click()
    await expect(page.locator(".figure").first).to_contain_text("35")
    await expect(page.get_by_role("region", name="Ledger")).to_contain_text("a gift")
    await page.get_by_text("Grant", exact=True).first.click()
    await grant.get_by_label("Amount").fill("25")
    await grant.get_by_label("Reason").fill("a gift")
    await grant.get_by_label("Reference").fill(reference)
    await grant.get_by_role("button", name="Grant").click()
    await expect(page.locator(".figure").first).to_contain_text("35")
    balance = await scene.conn.fetchval("select balance from penstock.account where name = 'anna'")
    assert balance == 35


async def test_an_account_gets_another_plan(live: Live, scene: Scene, page: Page) -> None:
    await scene.plan("free")
    await scene.plan("school", default=False, concurrency=9)
    await scene.account("anna")
    await live.open(page, "/accounts/anna")
    await page.get_by_label("Change to").select_option("school")
    await page.get_by_role("button", name="Change plan").click()
    await expect(page.get_by_role("status").filter(has_text="now has plan school")).to_be_visible()
    await expect(page.get_by_role("region", name="Plan")).to_contain_text("It has plan school")


async def test_a_stuck_job_is_stopped_after_confirmation(
    live: Live, scene: Scene, page: Page
) -> None:
    await live.open(page, "/stuck")
    await expect(page.get_by_role("main")).to_contain_text("No job is stuck.")
    job = await scene.stale(minutes=9)
    row = page.locator(f"#job-{job}")
    await expect(row).to_contain_text("TIER1")
    await row.get_by_role("button", name="Cancel").click()
    assert not (await scene.read(job))["cancel_requested"], "not confirmed yet"
    await axe(page)
    await page.locator("main form button").click()
    await expect(page.get_by_role("status").first).to_be_visible()
    assert (await scene.read(job))["cancel_requested"]


async def test_an_open_page_shows_new_workers(live: Live, scene: Scene, page: Page) -> None:
    await live.open(page, "/workers")
    await expect(page.get_by_role("main")).to_contain_text("No worker is alive")
    await scene.worker("host-12")
    await scene.queued()  # a new worker alone sends no event; the next change does
    await expect(page.get_by_role("main")).to_contain_text("host-12")


async def test_forty_queues_are_found_by_name(live: Live, scene: Scene, windows: Windows) -> None:
    for n in range(40):
        await scene.queue(f"queue-{n:02}")
    page = await windows.open(phone=True)
    await live.open(page, "/queues")
    await page.get_by_role("searchbox").fill("-17")
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator("#queue-queue-17")).to_be_visible()
    await page.get_by_role("link", name="Show all").click()
    await expect(page.locator("tbody tr")).to_have_count(40)


async def _concurrency(scene: Scene) -> int | None:
    found: int | None = await scene.conn.fetchval(
        "select concurrency from penstock.queue where name = 'line'"
    )
    return found


# Finds words without a hyphen that are broken across lines of a cell.
BROKEN_WORDS = """() => {
  const broken = [];
  for (const cell of document.querySelectorAll("main table td")) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      for (const { 0: word, index } of node.textContent.matchAll(/[A-Za-z0-9_]+/g)) {
        const range = document.createRange();
        range.setStart(node, index);
        range.setEnd(node, index + word.length);
        const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
        if (lines.size > 1) broken.push(word);
      }
    }
  }
  return broken;
}"""


async def test_words_in_tables_are_not_broken_on_a_narrow_screen(
    live: Live, scene: Scene, windows: Windows
) -> None:
    """At 1024 px a queue was shown as "scanne r" and a stage as "generati ng"."""
    for kind in ("scanner-of-packages", "give_feedback"):
        await scene.queue(
            kind, concurrency=40, rate="120/min", stale_after_seconds=60, timeout_seconds=7_200
        )
        async with scene.earlier(minutes=9):
            await scene.running(kind, stage="generating", label="Generating", account="customer-4")
        await scene.queued(kind, account="customer-4", topic="assignment-17")
        await scene.failed(kind, account="Hilda (Demo)", message="KeyError: 'text'")
    await scene.conn.fetch("select penstock.recover_jobs()")
    page = await windows.open(viewport={"width": 1024, "height": 768})
    await live.open(page, "/stuck")
    for path in ("/stuck", "/", "/jobs", "/queues", "/workers", "/accounts"):
        await page.goto(f"{live.base}{path}")
        await expect(page.locator("main table.rows td").first).to_be_visible()
        assert await page.evaluate(BROKEN_WORDS) == [], path
