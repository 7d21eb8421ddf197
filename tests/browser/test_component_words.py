"""The words of <penstock-job>: English, German, those of the page; and for who hears them."""

from playwright.async_api import Page, expect

from browser.axe import axe
from browser.component import COMPONENT, part, running, show, show_all
from browser.conftest import Looks
from browser.stand_in import StandIn, moment
from browser.states import STATES
from browser.watched import Windows, fits_sideways


async def test_german_where_the_page_is_german(page: Page, stand_in: StandIn) -> None:
    stand_in.put("a", position=3, eta_seconds=120.0)
    stand_in.pages["one"] = f'<div lang="de-AT">{COMPONENT.format("")}</div>'
    await page.goto(f"{stand_in.base}/pages/one")
    await expect(part(page, "position")).to_have_text("Platz 3 in der Warteschlange")
    await expect(part(page, "wait")).to_have_text("beginnt in etwa 2 Minuten")
    await expect(part(page, "cancel")).to_have_text("Abbrechen")
    stand_in.put(
        "a",
        **running(
            staleness={"stale": True, "since": moment(minutes=4), "message": "This takes longer"}
        ),
    )
    await expect(part(page, "banner")).to_contain_text("Das dauert länger als sonst: Seit ")
    await page.locator("penstock-job").evaluate("(one) => one.setAttribute('lang', 'en')")
    await expect(part(page, "banner")).to_have_text("This takes longer")


async def test_both_languages_say_everything(page: Page, stand_in: StandIn) -> None:
    await show(page, stand_in)
    told = await page.evaluate(
        """async () => {
          const { PenstockJob } = await import("/static/penstock.js");
          const { en, de } = PenstockJob.texts;
          const holes = (text) =>
            [...new Set(JSON.stringify(text).match(/{\\w+}/g))].toSorted();
          return {
            en: Object.keys(en).filter((key) => !(key in de)),
            de: Object.keys(de).filter((key) => !(key in en)),
            differ: Object.keys(en).filter(
              (key) => key !== "stale" && `${holes(en[key])}` !== `${holes(de[key])}`),
          };
        }"""
    )
    assert told == {"en": [], "de": [], "differ": []}


async def test_an_unknown_language_is_english(page: Page, stand_in: StandIn) -> None:
    await show(page, stand_in, ' lang="tlh"', position=3)
    await expect(part(page, "position")).to_have_text("#3 in queue")


async def test_texts_may_be_those_of_the_page(page: Page, stand_in: StandIn) -> None:
    shown = await show(page, stand_in, position=3)
    await shown.evaluate(
        """(one) => one.texts = {
          queued: "Hold on", de: { queued: "Moment" }, position: ({ position }) => `${position}.`,
        }"""
    )
    await expect(part(page, "status")).to_have_text("Hold on")
    await expect(part(page, "position")).to_have_text("3.")
    await shown.evaluate("(one) => one.setAttribute('lang', 'de')")
    await expect(part(page, "status")).to_have_text("Moment")
    await page.evaluate(
        """async () => {
          const { PenstockJob } = await import("/static/penstock.js");
          PenstockJob.texts.fr = { queued: "En attente" };
          document.querySelector("penstock-job").texts = null;
          document.querySelector("penstock-job").setAttribute("lang", "fr");
        }"""
    )
    await expect(part(page, "status")).to_have_text("En attente")
    await expect(part(page, "position")).to_have_text("#3 in queue")


async def test_a_screen_reader_hears_words_that_changed_and_nothing_else(
    page: Page, stand_in: StandIn
) -> None:
    await page.clock.install()
    shown = await show(page, stand_in, position=9, eta_seconds=120.0)
    heard = part(page, "announcement")
    await expect(heard).to_have_attribute("role", "status")
    await page.clock.run_for(1000)
    await expect(heard).to_have_text("Queued. #9 in queue, starts in about 2 minutes")
    await shown.evaluate(
        """(one) => {
          window.said = [];
          const node = one.shadowRoot.querySelector("[role=status]");
          new MutationObserver(() => node.textContent && said.push(node.textContent))
            .observe(node, { childList: true, characterData: true, subtree: true });
        }"""
    )
    for position in (8, 7, 6):
        stand_in.put("a", position=position)
    await expect(part(page, "position")).to_have_text("#6 in queue")
    stand_in.put("a", position=4)
    await expect(part(page, "position")).to_have_text("#4 in queue")
    await page.clock.run_for(1000)
    stand_in.put("a", **running(position=None, stage_label="Reading"))
    for token in ("Once", " upon", " a time"):
        stand_in.emit("a", token)
    await expect(part(page, "tokens")).to_have_text("Once upon a time")
    await page.clock.run_for(30_000)
    assert await page.evaluate("said") == ["#4 in queue, starts in about 2 minutes",
        "Running. Reading"]  # fmt: skip
    await expect(heard).to_have_text("")


async def test_all_states_are_sound_for_axe_and_fit_a_phone(
    windows: Windows, stand_in: StandIn, looks: Looks
) -> None:
    for dark, phone in ((False, False), (True, True)):
        page = await windows.open(dark=dark, phone=phone)
        await show_all(page, stand_in, [job for job, _ in STATES.values()])
        await fits_sideways(page)
        await axe(page)
        await looks(page, f"component-{'dark' if dark else 'light'}-{'phone' if phone else 'desk'}")
        await page.close()


async def test_what_is_lost_is_greyed_and_can_still_be_read(
    windows: Windows, stand_in: StandIn, looks: Looks, allowed_errors: list[str]
) -> None:
    allowed_errors.append("503")
    for dark in (False, True):
        page = await windows.open(dark=dark)
        await page.clock.install()
        stale = {"stale": True, "since": moment(minutes=4), "message": "This takes longer."}
        progress = {"done": 1, "total": 4, "partial": "A first part"}
        await show(page, stand_in, **running(staleness=stale, progress=progress))
        await expect(part(page, "banner")).to_be_visible()
        stand_in.fail(503, "GET /v1/jobs/a", "GET /v1/jobs/a/events")
        stand_in.cut()
        await stand_in.until_called("GET /v1/jobs/a", 1 + dark)
        await expect(part(page, "connection")).to_be_hidden()
        await page.clock.run_for(4_500)
        await expect(part(page, "connection")).to_contain_text("This is the last known state.")
        await expect(part(page, "partial")).to_have_text("A first part")
        await axe(page)
        await looks(page, f"component-lost-{'dark' if dark else 'light'}")
        stand_in.mend()
        await page.clock.run_for(30_000)
        await expect(part(page, "connection")).to_be_hidden()
        await page.close()


async def test_it_is_still_for_who_wants_no_motion(windows: Windows, stand_in: StandIn) -> None:
    moving = "(one) => getComputedStyle(one).animationName"
    for motion, name in (("no-preference", "breathe"), ("reduce", "none")):
        page = await windows.open(reduced_motion=motion)
        await show(page, stand_in, **running())
        await expect(part(page, "status")).to_have_text("Running")
        assert await part(page, "mark").evaluate(moving) == name
