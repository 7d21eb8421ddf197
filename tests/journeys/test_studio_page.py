"""The studio's page in a real browser: what it shows, what it sends, and that it stops asking.

The page and its scripts are those the app serves. What it is told is written in studio_stage.py,
and its timers go on while a test waits for something. The last test has the app itself; a whole
journey is in test_studio_journey.py.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from fastapi.responses import JSONResponse
from playwright.async_api import Page, expect
from starlette.responses import Response

from browser.watched import Windows
from journeys.browser import ACTION_SECONDS, stop_clock
from journeys.studio_site import FREE, GROWTH, MARK, STARTER, Studio, customer, running
from journeys.studio_stage import (
    ACCOUNT,
    BATCH,
    CANCELLED,
    COMPONENT,
    DRAWS,
    FAILED,
    GONE,
    JOB,
    PART,
    SOME,
    STATIC,
    WAITS,
    Stage,
)
from support.waiting import eventually

pytestmark = pytest.mark.timeout(120)

TICK_MS = 100
# Ten of its polls; after 45 s a stream that says nothing is given up, and this one sleeps.
LONG_MS = 30_000
UNSURE = "We do not know whether it arrived."
COME_BACK = "document.dispatchEvent(new Event('visibilitychange'))"

# What is said of the first order: by <penstock-job> while it is one, and then by its card.
SAID = """
(() => {
  const card = document.querySelector("article");
  const element = card?.querySelector("penstock-job");
  if (!element || element.hidden) return card?.querySelector(".message").textContent ?? "";
  const parts = ["words", "position", "wait", "banner", "note", "refusal"];
  return parts.map((name) => element.shadowRoot.querySelector(`[part=${name}]`))
    .filter((part) => !part.hidden).map((part) => part.textContent).join(" / ");
})()
""".strip()

Open = Callable[[dict[str, Any] | None], AbstractAsyncContextManager[tuple[Stage, Page]]]


@pytest.fixture(scope="module")
def shop_window(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    with running(shared_database, tmp_path_factory.mktemp("studio"), model=False) as site:
        yield site


@pytest.fixture
def opened(shop_window: Studio, windows: Windows) -> Open:
    """A page that is loaded, with this order in its history, and its stage."""

    @asynccontextmanager
    async def open_one(now: dict[str, Any] | None) -> AsyncIterator[tuple[Stage, Page]]:
        async with customer(shop_window, FREE) as ana:
            stage = Stage(await ana.client.get("/"), now)
        async with stage.running() as port:
            page = await windows.open(phone=True)
            await stop_clock(page)
            await page.goto(f"http://127.0.0.1:{port}/")
            await expect(page.locator("#balance")).to_have_text("6 credits")
            yield stage, page
            # Before the stage ends, which would be news to it.
            await page.close()

    return open_one


async def until(page: Page, expression: str, what: str) -> None:
    """Let its time go on until this is true."""

    async def true() -> bool:
        await page.clock.run_for(TICK_MS)
        return bool(await page.evaluate(expression))

    try:
        await eventually(true, what, seconds=30)
    except AssertionError as late:
        text = await page.inner_text("body")
        raise AssertionError(f"{late}; the page:\n{text}") from None


async def until_said(page: Page, sentence: str) -> None:
    await until(page, f"{SAID} === {json.dumps(sentence)}", sentence)


async def until_text(page: Page, selector: str, start: str) -> None:
    found = f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"
    await until(page, f"({found}).startsWith({json.dumps(start)})", start)


async def asks_no_more(page: Page, stage: Stage) -> None:
    before = stage.questions
    await page.clock.run_for(LONG_MS)
    assert stage.questions == before


async def press_generate(page: Page, images: int) -> None:
    await page.get_by_label("What would you like to see?").fill(f"A {MARK} at dawn")
    await page.get_by_role("slider", name="Images").fill(str(images))
    await page.get_by_role("button", name="Generate").click()


def test_the_page_asks_every_three_seconds_until_all_has_ended() -> None:
    """G16: where no stream comes through, by `watch()` and <penstock-job>, whose tests show it."""
    script = (STATIC / "studio.js").read_text()
    assert 'import { watch } from "/penstock/static/penstock.js";' in script
    assert 'const ENDED = new Set(["completed", "failed", "cancelled"]);' in script
    assert "interval" not in script
    assert "setInterval" not in script
    assert (
        "interval: Number(this.getAttribute"
        in (COMPONENT / "penstock/element/element.js").read_text()
    )


@pytest.mark.parametrize(
    ("answers", "sentences", "words"),
    [
        (
            [WAITS, DRAWS, SOME, PART],
            [
                "You are in the queue / #3 in queue / starts in a few seconds",
                "Generating your images…",
                "Generating your images… 1 of 4 so far.",
                "3 of 4 images are ready. 1 credit was refunded.",
            ],
            ["A <b>lake</b>", "1 credit refunded", "3 credits charged"],
        ),
        ([WAITS, FAILED], [None, FAILED["message"]], ["4 credits refunded"]),
        ([DRAWS, CANCELLED], [DRAWS["message"], CANCELLED["message"]], []),
        ([DRAWS, None, PART], [DRAWS["message"], DRAWS["message"], PART["message"]], []),
    ],
    ids=["partial success", "failed", "cancelled", "server gone for a moment"],
)
async def test_the_page_shows_how_it_goes_and_stops_asking_at_the_end(
    opened: Open,
    allowed_errors: list[str],
    answers: list[dict[str, Any] | None],
    sentences: list[str | None],
    words: list[str],
) -> None:
    """G12, G16: opened while an order waits or runs, as after a reload."""
    allowed_errors.append("502")
    async with opened(answers[0]) as (stage, page):
        for answer, sentence in zip(answers, sentences, strict=True):
            await stage.tell(answer)
            if sentence is not None:
                await until_said(page, sentence)
            away = "Boolean(document.getElementById('offline').textContent)"
            await until(page, f"{away} === {json.dumps(answer is None)}", "whether it is reached")
        await asks_no_more(page, stage)
        assert BATCH not in stage.listening
        for expected in [*words, "Your plan: ", "10 orders an hour; 3 used", "6 credits"]:
            await expect(page.locator("body")).to_contain_text(expected)
    assert stage.accounts == {FREE}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (402, {"error": "This costs 4 credits, and you have 2.", "field": "images", "balance": 2}),
        (429, {"error": "The next one will pass at 12:34 UTC.", "field": None}),
        (500, {"error": "Something went wrong on our side.", "field": None}),
    ],
)
async def test_a_refusal_is_said_in_plain_words(
    opened: Open, allowed_errors: list[str], status: int, said: dict[str, Any]
) -> None:
    """G2, G7: one click, one request; the price was shown before."""
    allowed_errors.append(str(status))
    async with opened(None) as (stage, page):
        stage.told = JSONResponse({"ok": False, **said}, status)
        await expect(page.locator("#price")).to_have_text("1 credit each, 4 credits in all.")
        await expect(page.locator("#empty")).to_contain_text("Nothing yet.")
        await page.get_by_label("What would you like to see?").fill("a lake")
        await page.get_by_role("button", name="Generate for 4 credits").dblclick()
        await expect(page.get_by_role("alert").filter(has_text=said["error"])).to_be_visible()
        await expect(page.get_by_role("button", name="Generate for 4 credits")).to_be_enabled()
        short = page.get_by_text("That is not enough.")
        await expect(short).to_have_count(1 if status == 402 else 0)
    [(sent, key)] = stage.orders
    right = {"job_type": "freestyle", "prompt": "a lake", "images": 4, "quality": "standard"}
    assert sent == right
    assert key


async def test_an_order_whose_answer_is_lost_is_sent_again(
    opened: Open, allowed_errors: list[str]
) -> None:
    """G2: as the same order, whatever is written meanwhile; and a slow double click is one."""
    allowed_errors.append("502")
    async with opened(None) as (stage, page):
        generate = page.locator("#generate")
        stage.told = Response("a gateway's page", 502)
        await press_generate(page, 2)
        await expect(page.locator("#wrong")).to_contain_text(UNSURE)
        await page.get_by_label("What would you like to see?").fill("other")
        await until_text(page, "#wrong", f"{UNSURE} Press Generate")
        await expect(generate).not_to_have_attribute("aria-disabled", "true")
        assert len(stage.orders) == 4
        await stage.tell(DRAWS)
        stage.told = JSONResponse({"ok": True, "job_id": JOB, "new_balance": 2}, 201)
        await press_generate(page, 2)
        await expect(generate).to_have_text("Ordered")
        # It rests, so this is no second order.
        await generate.evaluate("one => one.click()")
        await expect(page.locator("article")).to_be_focused()
        await until(page, "!document.querySelector('#generate[aria-disabled]')", "it is awake")
        await expect(page.locator("#wrong")).to_be_empty()
    assert len(stage.orders) == 5
    assert len({key for _, key in stage.orders}) == 1
    assert len({json.dumps(sent) for sent, _ in stage.orders}) == 1


async def test_what_is_cancelled_says_so_at_once(opened: Open, allowed_errors: list[str]) -> None:
    """G4: or, in the card, why not; its end is found among the past ones, focus and all."""
    allowed_errors.append("503")
    async with opened(DRAWS) as (stage, page):
        job = page.locator("penstock-job")
        stage.cancelled = JSONResponse({"detail": "Not now."}, 503)
        await job.get_by_role("button", name="Cancel").click()
        again = "The studio could not be reached. Press Cancel again."
        await expect(job).to_contain_text(again)
        stage.cancelled = JSONResponse(stage.batch(cancel_requested=True))
        await job.get_by_role("button", name="Cancel").click()
        await until_said(page, "Stopping…")
        stage.images = [503] * 3
        await stage.tell(PART)
        await until(page, "document.querySelector('#past article') !== null", "it is past")
        await expect(page.locator("#now")).to_be_hidden()
        await expect(page.locator("article")).to_be_focused()
        # Pictures that did not come are asked for again.
        await expect(page.locator("[data-state=missing]")).to_have_count(3)
        drawn = "[...document.querySelectorAll('article img')].filter((i) => i.naturalWidth)"
        await page.evaluate(COME_BACK)
        await until(page, f"{drawn}.length === 3", "the pictures are there")


async def test_an_order_that_is_gone_ends_its_card(opened: Open, allowed_errors: list[str]) -> None:
    """And for all: colours of one's own, a header that hides nothing, times not too early."""
    allowed_errors.append("404")
    async with opened(DRAWS) as (stage, page):
        await until_said(page, DRAWS["message"])
        await stage.tell(GONE)
        await until_text(page, "#past .message", "This order is not there any more.")
        await expect(page.locator("penstock-job")).to_be_hidden()
        await asks_no_more(page, stage)

        await page.emulate_media(forced_colors="active")
        for name in ("job_type", "quality"):
            colours = await page.evaluate(
                f"[...document.querySelectorAll('[name={name}]')].map((one) =>"
                " [one.checked, getComputedStyle(one.nextElementSibling).backgroundColor])"
            )
            [chosen] = [colour for checked, colour in colours if checked]
            assert chosen not in [colour for checked, colour in colours if not checked]

        await page.evaluate("scrollTo(0, document.body.scrollHeight)")
        prompt = page.get_by_label("What would you like to see?")
        await prompt.evaluate("one => one.scrollIntoView({ block: 'nearest' })")
        field, header = await prompt.bounding_box(), await page.locator("header").bounding_box()
        assert field
        assert header
        assert field["y"] >= header["y"] + header["height"]

        words = "import('/static/words.js').then((words) => words.localTimeAfter({}))"
        for second, minute in ((0, "00"), (1, "01"), (59, "01")):
            moment = json.dumps(f"2026-01-01T12:00:{second:02}.000Z")
            assert (await page.evaluate(words.format(moment)))[-2:] == minute


async def test_an_older_answer_that_comes_later_is_not_shown(opened: Open) -> None:
    async with opened(PART) as (stage, page):
        stage.late = late = asyncio.Event()
        stage.now = DRAWS
        seen = stage.questions
        await page.evaluate(COME_BACK)

        async def asked() -> bool:
            return stage.questions > seen

        await eventually(asked, "the first question is there", seconds=ACTION_SECONDS)
        stage.now, stage.has = PART, {**ACCOUNT, "balance": 7}
        await page.evaluate(COME_BACK)
        balance = page.locator("#balance")
        await expect(balance).to_have_text("7 credits")
        await page.evaluate(
            """() => {
              window.shown = [];
              const look = { subtree: true, childList: true, characterData: true };
              const note = (selector) => new MutationObserver(() =>
                shown.push(document.querySelector(selector).textContent)
              ).observe(document.querySelector(selector), look);
              note("#balance");
              note(".message");
            }"""
        )
        async with page.expect_event("requestfinished"):
            late.set()
        stage.has = {**ACCOUNT, "balance": 8}
        await page.evaluate(COME_BACK)
        await expect(balance).to_have_text("8 credits")
        assert await page.evaluate("shown") == ["8 credits"]


async def test_what_happens_in_another_tab_is_seen(
    shop_window: Studio, windows: Windows, allowed_errors: list[str]
) -> None:
    """An order, and then another customer: for that one nothing is ordered here."""
    allowed_errors.append("409")
    page = await windows.open()
    await page.goto(f"http://127.0.0.1:{shop_window.web_port}/")
    await page.locator(f"[value={GROWTH}]").click()
    balance = page.locator("#balance")
    await expect(balance).to_have_text("100 credits")
    async with customer(shop_window, GROWTH) as elsewhere:
        await elsewhere.order(images=1)
        await page.evaluate(COME_BACK)
        await expect(page.locator("#current article")).to_have_count(1)
        await expect(balance).to_have_text("99 credits")
        # The cookie is that of all tabs.
        answer = await page.request.post(
            f"http://127.0.0.1:{shop_window.web_port}/sign-in", form={"customer": STARTER}
        )
        assert answer.ok, await answer.text()
        another = "You are signed in as another customer in this browser now."
        await page.evaluate(COME_BACK)
        await expect(page.locator("#offline")).to_contain_text(another)
        await press_generate(page, 1)
        await expect(page.locator("#wrong")).to_have_text(another)
        await page.get_by_role("link", name="Go on as this one").click()
        await expect(balance).to_have_text("50 credits")
        assert (await elsewhere.has())["balance"] == 99


@pytest.mark.parametrize(
    ("now", "wanted"),
    [(WAITS, ["form", "now", "plan"]), (CANCELLED, ["form", "plan", "history"])],
    ids=["live", "past"],
)
async def test_on_a_phone_the_past_comes_last(
    opened: Open, now: dict[str, Any], wanted: list[str]
) -> None:
    """Order, what is drawn now, plan, history: one below the other."""
    async with opened(now) as (_, page):
        await until_text(page, "#limits li", "1 job")
        boxes = []
        for name in wanted:
            box = await page.locator(".plan" if name == "plan" else f"#{name}").bounding_box()
            assert box, name
            boxes.append(box)
        for above, below in itertools.pairwise(boxes):
            assert below["y"] >= above["y"] + above["height"]
