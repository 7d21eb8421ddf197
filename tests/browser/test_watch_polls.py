"""watch() where streams do not work: polls, with patience, until one works again."""

import itertools

import pytest
from playwright.async_api import Page

from browser.component import COMPONENT
from browser.stand_in import StandIn
from browser.watching import (
    LOOK,
    STREAM,
    caught_up,
    change,
    fall_back,
    told,
    until_live,
    until_told,
    watch,
)

NOTE_LOOKS = """
() => {
  window.looks = [];
  const send = window.fetch;
  window.fetch = (url, ...rest) => {
    if (new URL(url, location).pathname === "/v1/jobs/a") looks.push(Date.now());
    return send(url, ...rest);
  };
}
"""


async def test_two_errors_in_half_a_minute_are_enough(watching: Page, stand_in: StandIn) -> None:
    """G16"""
    await watch(watching)
    await fall_back(watching, stand_in)
    stand_in.put("a", stage="two")
    await watching.clock.run_for(3_500)
    await until_told(watching, "change", change(stage="two"))
    assert stand_in.count(STREAM) == 2


async def test_two_errors_far_from_each_other_are_not(watching: Page, stand_in: StandIn) -> None:
    await watch(watching)
    for n in (1, 2, 3):
        await until_live(watching, n)
        stand_in.cut()
        await until_live(watching, n + 1)
        await watching.clock.fast_forward(31_000)
    assert LOOK not in stand_in.calls


@pytest.mark.parametrize("who", ["watch", "component"])
async def test_polls_are_three_seconds_apart_unless_told_otherwise(
    watching: Page, stand_in: StandIn, allowed_errors: list[str], who: str
) -> None:
    """G16: nothing is asked before, by the clock of the page."""
    allowed_errors.append("502")
    stand_in.fail(502, STREAM)
    await watching.evaluate(NOTE_LOOKS)
    if who == "watch":
        await watch(watching)
    else:
        put = "(one) => document.querySelector('main').insertAdjacentHTML('beforeend', one)"
        await watching.evaluate(put, COMPONENT.format(""))
    for n in range(1, 5):
        await stand_in.until_called(LOOK, n)
        await caught_up(watching)
        await watching.clock.run_for(3_100)
    looks: list[int] = await watching.evaluate("looks")
    apart = [after - before for before, after in itertools.pairwise(looks)]
    assert 3_000 <= min(apart) < 4_000, apart


async def test_polls_say_what_they_have_and_keep_their_distance(
    watching: Page, stand_in: StandIn
) -> None:
    """E8"""
    await watch(watching, interval=5000)
    await fall_back(watching, stand_in)
    polled = stand_in.count(LOOK)
    assert polled == 1
    for n in range(1, 4):
        await watching.clock.run_for(4_000)
        assert stand_in.count(LOOK) == n
        await watching.clock.run_for(1_200)
        await stand_in.until_called(LOOK, n + 1)
    tags = [
        one.headers.get("if-none-match")
        for one in stand_in.asked
        if f"{one.method} {one.url.path}" == LOOK
    ]
    version = stand_in.jobs["a"]["version"]
    assert tags == [None, *[f'"{version}"'] * 3]


async def test_the_server_may_ask_for_more_patience(watching: Page, stand_in: StandIn) -> None:
    stand_in.put("a", status="queued", position=900)
    stand_in.patience = 20
    await watch(watching)
    await fall_back(watching, stand_in)
    await watching.clock.run_for(18_000)
    assert stand_in.count(LOOK) == 1
    await watching.clock.run_for(3_000)
    await stand_in.until_called(LOOK, 2)


async def test_a_stream_is_tried_again_after_two_minutes(watching: Page, stand_in: StandIn) -> None:
    await watch(watching)
    await fall_back(watching, stand_in)
    await watching.clock.fast_forward(115_000)
    await stand_in.until_called(LOOK, 2)
    assert stand_in.count(STREAM) == 2
    await watching.clock.fast_forward(10_000)
    await until_live(watching, 3)
    polled = stand_in.count(LOOK)
    await watching.clock.run_for(20_000)
    assert stand_in.count(LOOK) == polled


async def test_chunks_that_were_missed_while_polling_are_made_up_for(
    watching: Page, stand_in: StandIn
) -> None:
    await watch(watching)
    await until_told(watching, "change", change())
    stand_in.emit("a", "1")
    await until_told(watching, "chunk", "1")
    await fall_back(watching, stand_in)
    stand_in.emit("a", "2")
    await watching.clock.fast_forward(125_000)
    await until_told(watching, "chunk", "2")
    assert await told(watching, "chunk") == ["1", "2"]


@pytest.mark.parametrize("status", [429, 502])
async def test_a_refused_stream_means_polls(
    watching: Page, stand_in: StandIn, allowed_errors: list[str], status: int
) -> None:
    """D6: as where a token has as many streams open as it may."""
    allowed_errors.append(str(status))
    stand_in.fail(status, STREAM)
    await watch(watching)
    await until_told(watching, "change", change())
    await until_told(watching, "state", "polling")
    stand_in.put("a", status="succeeded")
    await watching.clock.run_for(3_500)
    await until_told(watching, "done", "succeeded")
    assert stand_in.count(STREAM) == 1


async def test_a_stream_that_keeps_news_back_is_found_out(
    watching: Page, stand_in: StandIn
) -> None:
    await watch(watching)
    await until_told(watching, "change", change())
    stand_in.is_mute = True
    stand_in.put("a", stage="two")
    await watching.clock.run_for(44_000)
    assert await told(watching, "change") == [change()]
    await watching.clock.run_for(2_000)
    await until_told(watching, "change", change(stage="two"))
    await watching.clock.run_for(4_000)
    await until_told(watching, "state", "polling")
    await stand_in.until_streams(0)


async def test_a_stream_with_nothing_to_tell_is_kept(watching: Page, stand_in: StandIn) -> None:
    await watch(watching)
    await until_told(watching, "change", change())
    for n in range(1, 4):
        await watching.clock.run_for(46_000)
        await stand_in.until_called(LOOK, n)
        await watching.clock.run_for(4_000)
    assert await told(watching, "state") == ["connecting", "live"]
    assert stand_in.count(STREAM) == 1


async def test_a_stream_that_never_begins_is_given_up(watching: Page, stand_in: StandIn) -> None:
    """A proxy that gathers before it passes on: the headers come, and then nothing."""
    stand_in.is_mute = True
    await watch(watching)
    await stand_in.until_streams(1)
    await watching.clock.run_for(11_000)
    await until_told(watching, "change", change())
    await until_told(watching, "state", "polling")


async def test_while_the_server_is_away_it_asks_less_and_less_and_comes_back_at_once(
    watching: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("503")
    await watch(watching)
    await until_told(watching, "change", change())
    stand_in.fail(503, STREAM, LOOK)
    stand_in.cut()
    await until_told(watching, "state", "reconnecting")
    await stand_in.until_called(LOOK)
    await caught_up(watching)
    for n, seconds in enumerate((3, 6, 12, 24, 30, 30), 1):
        await watching.clock.run_for(seconds * 1000 - 1000)
        assert stand_in.count(LOOK) == n
        await watching.clock.run_for(1_200)
        await stand_in.until_called(LOOK, n + 1)
        await caught_up(watching)
    stand_in.mend()
    stand_in.put("a", stage="two")
    await watching.clock.run_for(31_000)
    await until_told(watching, "state", "live")
    await until_told(watching, "change", change(stage="two"))


async def test_a_lost_network_is_said_and_its_return_noticed(
    watching: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("ERR_INTERNET_DISCONNECTED|ERR_NETWORK")
    await watch(watching)
    await until_told(watching, "change", change())
    await watching.context.set_offline(True)
    stand_in.cut()
    await until_told(watching, "state", "offline")
    stand_in.put("a", stage="two")
    await watching.context.set_offline(False)
    await until_told(watching, "state", "live")
    await until_told(watching, "change", change(stage="two"))
