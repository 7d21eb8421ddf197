"""<penstock-job>: every state that a person can meet, said in words."""

from playwright.async_api import Page, expect

from browser.component import failed, part, running, show, show_all
from browser.stand_in import StandIn, moment
from browser.states import CLASSES, OUTAGE, STATES


async def test_each_state_is_said_in_words(page: Page, stand_in: StandIn) -> None:
    """F2, G16, S8"""
    found = await show_all(page, stand_in, [job for job, _ in STATES.values()])
    for (state, (_, said)), shown in zip(STATES.items(), found, strict=True):
        for name, words in said.items():
            at = shown.locator(f"[part={name}]")
            assert await at.text_content() == words, f"{state}: {name}"
            assert await at.is_visible() == bool(words), f"{state}: {name}"
        everything = await shown.locator("[part=box]").inner_text()
        assert "Traceback" not in everything, state
        assert "{" not in everything, state


async def test_each_error_has_words_in_both_languages(page: Page, stand_in: StandIn) -> None:
    found = await show_all(page, stand_in, [failed(cls) for cls in CLASSES])
    said = {"Something went wrong.", "Etwas ist schiefgegangen.", ""}
    for language in ("en", "de"):
        await page.evaluate("(lang) => document.documentElement.lang = lang", language)
        await page.evaluate(
            "document.querySelectorAll('penstock-job').forEach((one) => one.texts = null)"
        )
        for cls, shown in zip(CLASSES, found, strict=True):
            words = await shown.locator("[part=error]").text_content() or ""
            assert words not in said, f"{cls} in {language}: {words}"
            said.add(words)


async def test_what_waits_for_its_time_says_when(page: Page, stand_in: StandIn) -> None:
    at = moment(minutes=-30)
    await show(page, stand_in, status="scheduled", run_at=at)
    await expect(part(page, "status")).to_have_text(f"Planned for {at[11:16]}")
    stand_in.put("a", attempt=1, waiting_for="backoff", position=3)
    await expect(part(page, "status")).to_have_text(f"Trying again at {at[11:16]}")
    await expect(part(page, "note")).to_contain_text("You do not need to do anything")
    stand_in.put("a", recovery={"count": 1, "max": 3, "last_at": moment(), "next_at": at})
    await expect(part(page, "status")).to_have_text(f"Continues at {at[11:16]}")
    stand_in.put("a", run_at=moment(seconds=1))
    await expect(part(page, "status")).to_have_text("Starts soon")


async def test_an_outage_says_since_when_where_that_is_known(page: Page, stand_in: StandIn) -> None:
    await show(page, stand_in, status="queued", position=1, waiting_for="circuit_open")
    await expect(part(page, "banner")).to_have_text(OUTAGE)
    at = moment(hours=0.25)
    start = {"attempt": 1, "ended_at": at, "outcome": "deferred", "error_class": "unavailable"}
    stand_in.put("a", attempts=[start])
    await expect(part(page, "banner")).to_contain_text(f"unavailable since {at[11:16]}")
    # Back, and away again, before our eyes: that is when.
    stand_in.put("a", attempts=[], waiting_for=None)
    await expect(part(page, "banner")).to_be_hidden()
    stand_in.put("a", waiting_for="circuit_open")
    await expect(part(page, "banner")).to_contain_text("unavailable since")


async def test_the_wait_rises_only_when_it_is_clearly_longer(page: Page, stand_in: StandIn) -> None:
    await show(page, stand_in, position=9, eta_seconds=300.0)
    wait = part(page, "wait")
    await expect(wait).to_have_text("starts in about 5 minutes")
    stand_in.put("a", position=8, eta_seconds=340.0)
    await expect(part(page, "position")).to_have_text("#8 in queue")
    await expect(wait).to_have_text("starts in about 5 minutes")
    stand_in.put("a", eta_seconds=346.0)
    await expect(wait).to_have_text("starts in about 6 minutes")
    stand_in.put("a", eta_seconds=330.0)
    await expect(wait).to_have_text("starts in 5 to 6 minutes")


async def test_tokens_appear_as_they_come_and_give_way_to_the_result(
    page: Page, stand_in: StandIn
) -> None:
    await show(page, stand_in, **running())
    tokens = part(page, "tokens")
    await expect(tokens).to_be_hidden()
    stand_in.emit("a", "Once ")
    stand_in.emit("a", "<b>upon</b>")
    stand_in.emit("a", {"a": "thing"})
    await expect(tokens).to_have_text("Once <b>upon</b>")
    # The next start begins anew.
    stand_in.put("a", attempt=2)
    stand_in.emit("a", "Twice", attempt=2)
    await expect(tokens).to_have_text("Twice")
    stand_in.put("a", status="succeeded", result="Twice upon a time")
    await expect(part(page, "result")).to_have_text("Twice upon a time")
    await expect(tokens).to_be_hidden()


async def test_elapsed_time_runs_while_the_job_does(page: Page, stand_in: StandIn) -> None:
    await page.clock.install()
    await show(page, stand_in, **running())
    await expect(part(page, "elapsed")).to_have_text("for 1 min 5 s")
    await page.clock.run_for(60_000)
    await expect(part(page, "elapsed")).to_contain_text("for 2 min")
    stand_in.put("a", status="succeeded", finished_at=moment())
    await expect(part(page, "elapsed")).to_be_hidden()
