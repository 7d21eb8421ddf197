"""Many jobs on a page, and many pages: few connections, and everybody is told."""

import pytest
from playwright.async_api import Page, expect

from browser.stand_in import StandIn
from support.waiting import eventually

MOST = 4
JOBS = [f"j{n}" for n in range(10)]


@pytest.fixture
def stand_in(stand_in: StandIn) -> StandIn:
    for name in JOBS:
        stand_in.put(name, status="running", attempt=1, stage="one")
    return stand_in


def components(names: list[str], more: str = "") -> str:
    return "".join(
        f'<penstock-job id="{name}" src="/v1/jobs/{name}"{more}></penstock-job>' for name in names
    )


async def open_page(page: Page, stand_in: StandIn, body: str) -> None:
    stand_in.pages["many"] = body
    await page.goto(f"{stand_in.base}/pages/many")


async def all_show(page: Page, stage: str, names: list[str]) -> None:
    for name in names:
        await expect(page.locator(f"#{name} [part=stage]")).to_have_text(stage)


def listened(stand_in: StandIn) -> set[str]:
    return {stream.path.split("/")[3] for stream in stand_in.streams}


async def test_four_listen_and_the_others_poll_one_after_the_other(
    page: Page, stand_in: StandIn
) -> None:
    await open_page(page, stand_in, components(JOBS, ' poll="500"'))
    await all_show(page, "one", JOBS)
    assert len(stand_in.streams) == MOST
    first = listened(stand_in)
    for name in JOBS:
        stand_in.put(name, stage="two")
    await all_show(page, "two", JOBS)
    assert len(stand_in.streams) == MOST
    assert {stand_in.count(f"GET /v1/jobs/{name}") > 0 for name in first} == {False}
    # Never more than two at once.
    assert stand_in.most_at_once <= 2


async def test_a_place_that_is_free_is_taken_at_once(page: Page, stand_in: StandIn) -> None:
    await open_page(page, stand_in, components(JOBS, ' poll="600000"'))
    await all_show(page, "one", JOBS)
    for _ in range(len(JOBS) - MOST):
        before = listened(stand_in)
        assert len(before) == MOST
        ended = min(before)
        stand_in.put(ended, status="succeeded")

        async def replaced(before: set[str] = before, ended: str = ended) -> bool:
            now = listened(stand_in)
            return len(now) == MOST and ended not in now and len(now - before) == 1

        # Long before its next poll.
        await eventually(replaced, "another listens instead")


async def test_two_tabs_share_the_places_and_both_are_told(page: Page, stand_in: StandIn) -> None:
    body = components(JOBS[:6], ' poll="300"')
    await open_page(page, stand_in, body)
    await stand_in.until_streams(MOST)
    second = await page.context.new_page()
    await open_page(second, stand_in, body)
    for tab in (page, second):
        await all_show(tab, "one", JOBS[:6])
    for name in JOBS[:6]:
        stand_in.put(name, stage="two")
    for tab in (page, second):
        await all_show(tab, "two", JOBS[:6])
    assert len(stand_in.streams) == MOST
    # The first leaves: its places are the other's.
    await page.close()
    stand_in.put(JOBS[0], stage="three")
    await expect(second.locator(f"#{JOBS[0]} [part=stage]")).to_have_text("three")
    await stand_in.until_streams(MOST)


async def test_jobs_of_a_topic_share_one_stream(page: Page, stand_in: StandIn) -> None:
    await open_page(page, stand_in, components(JOBS, ' stream="/v1/topics/a1"'))
    await all_show(page, "one", JOBS)
    for name in JOBS:
        stand_in.put(name, stage="two")
    await all_show(page, "two", JOBS)
    assert [stream.path for stream in stand_in.streams] == ["/v1/topics/a1/events"]
    assert stand_in.called("GET /v1/jobs") == []
    # One that comes later finds it open, and reads its own state once.
    stand_in.put("late", status="running", stage="late")
    await page.evaluate(
        """() => {
          const one = document.createElement("penstock-job");
          one.id = "late";
          one.setAttribute("src", "/v1/jobs/late");
          one.setAttribute("stream", "/v1/topics/a1");
          document.querySelector("main").append(one);
        }"""
    )
    await all_show(page, "late", ["late"])
    await eventually(lambda: _has_read(stand_in, "late"), "the late one has read its state")
    for name in [*JOBS, "late"]:
        stand_in.put(name, status="succeeded")
    await stand_in.until_streams(0)
    assert stand_in.opened == 1
    assert stand_in.called("GET /v1/jobs") == ["GET /v1/jobs/late"]


async def _has_read(stand_in: StandIn, name: str) -> bool:
    return f"GET /v1/jobs/{name}" in stand_in.called("GET /v1/jobs")


async def test_who_is_not_told_by_the_shared_stream_looks_for_itself(
    page: Page, stand_in: StandIn
) -> None:
    """It ended a while ago; or it belongs to another topic."""
    stand_in.put("j0", topic="another")
    await open_page(page, stand_in, components(JOBS[:2], ' stream="/v1/topics/a1"'))
    await all_show(page, "one", JOBS[:2])
    assert stand_in.called("GET /v1/jobs") == ["GET /v1/jobs/j0"]


async def test_a_shared_stream_that_was_cut_comes_back(page: Page, stand_in: StandIn) -> None:
    await open_page(page, stand_in, components(JOBS, ' stream="/v1/topics/a1"'))
    await all_show(page, "one", JOBS)
    stand_in.cut()
    await stand_in.until_opened(2)
    stand_in.put("j3", stage="two")
    await all_show(page, "two", ["j3"])


async def test_without_the_shared_stream_each_polls_until_it_is_back(
    page: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("502")
    await page.clock.install()
    stand_in.fail(502, "GET /v1/topics/a1/events")
    names = JOBS[:3]
    await open_page(page, stand_in, components(names, ' stream="/v1/topics/a1"'))
    for n in range(1, 4):
        await page.clock.run_for(200)
        await all_show(page, "one", names[:n])
    for name in names:
        stand_in.put(name, stage="two")
    await page.clock.run_for(4_000)
    await all_show(page, "two", names)
    assert stand_in.count("GET /v1/topics/a1/events") == 1
    stand_in.mend()
    await page.clock.fast_forward(121_000)
    await stand_in.until_streams(1)
    stand_in.put("j1", stage="three")
    await all_show(page, "three", ["j1"])
    assert stand_in.called("GET /v1/jobs/j1/") == []


async def test_a_shared_stream_that_keeps_news_back_is_found_out(
    page: Page, stand_in: StandIn
) -> None:
    await page.clock.install()
    names = JOBS[:3]
    await open_page(page, stand_in, components(names, ' stream="/v1/topics/a1"'))
    await all_show(page, "one", names)
    stand_in.is_mute = True
    for name in names:
        stand_in.put(name, stage="two")
    await page.clock.fast_forward(46_000)
    await expect(page.get_by_text("two")).to_have_count(1)
    await page.clock.fast_forward(4_000)
    for n in range(1, 4):
        await page.clock.run_for(200)
        await expect(page.get_by_text("two").nth(n - 1)).to_be_visible()
    await all_show(page, "two", names)
    await stand_in.until_streams(0)


async def test_a_renewed_token_is_shared_like_the_old_one(
    page: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("401")
    stand_in.tokens = {"pt_1"}
    await open_page(page, stand_in, components(JOBS, ' stream="/v1/topics/a1" token="pt_1"'))
    await all_show(page, "one", JOBS)
    await page.evaluate(
        """() => {
          window.asked = 0;
          for (const one of document.querySelectorAll("penstock-job")) {
            one.renew = async () => `pt_${++asked + 1}`;
          }
        }"""
    )
    stand_in.tokens = {"pt_2"}
    stand_in.cut()
    await stand_in.until_opened(2)
    for name in JOBS:
        stand_in.put(name, stage="two")
    await all_show(page, "two", JOBS)
    assert await page.evaluate("asked") == 1
    await stand_in.until_streams(1)
    assert stand_in.opened == 2


async def test_a_hidden_page_leaves_the_shared_stream(page: Page, stand_in: StandIn) -> None:
    await open_page(page, stand_in, components(JOBS, ' stream="/v1/topics/a1"'))
    await all_show(page, "one", JOBS)
    state = "Object.defineProperty(document, 'visibilityState', {value: '%s', configurable: true})"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    await page.evaluate(f"{state % 'hidden'}; {tell}")
    await stand_in.until_streams(0)
    stand_in.put("j5", stage="two")
    await page.evaluate(f"{state % 'visible'}; {tell}")
    await all_show(page, "two", ["j5"])
    await stand_in.until_streams(1)
