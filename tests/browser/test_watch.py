"""watch() by a stream: the present, each change, the end; and a hidden tab is quiet."""

from playwright.async_api import Page

from browser.stand_in import StandIn
from browser.watching import LOOK, STREAM, be, change, fall_back, told, until_told, watch


async def test_the_present_comes_first_then_each_change_then_the_end(
    watching: Page, stand_in: StandIn
) -> None:
    """E8"""
    await watch(watching)
    await until_told(watching, "change", change())
    stand_in.emit("a", "Hel")
    stand_in.emit("a", "lo")
    stand_in.put("a", stage="two")
    stand_in.put("a", status="succeeded")
    await until_told(watching, "done", "succeeded")
    assert await told(watching, "change") == [
        change(), change(stage="two"), change("succeeded", "two")]  # fmt: skip
    assert await told(watching, "chunk") == ["Hel", "lo"]
    assert await told(watching, "state") == ["connecting", "live", "over"]
    assert await watching.evaluate("watched.job.status") == "succeeded"
    # And then nothing: the stream that the server ended is not asked for again.
    await watching.clock.run_for(600_000)
    await stand_in.until_streams(0)
    assert stand_in.called("GET /v1") == [STREAM]


async def test_stop_may_be_called_twice_and_stops_at_once(
    watching: Page, stand_in: StandIn
) -> None:
    await watch(watching)
    await until_told(watching, "change", change())
    await watching.evaluate("watched.stop(); watched.stop()")
    await stand_in.until_streams(0)
    stand_in.put("a", stage="two")
    await watching.clock.run_for(600_000)
    assert await told(watching, "change") == [change()]
    assert await told(watching, "state") == ["connecting", "live", "over"]
    assert stand_in.called("GET /v1") == [STREAM]


async def test_one_that_is_stopped_before_it_began_asks_for_nothing(
    watching: Page, stand_in: StandIn
) -> None:
    await watching.evaluate(
        """async () => {
          const { watch } = await import("/static/penstock.js");
          watch("/v1/jobs/a").stop();
        }"""
    )
    await watching.clock.run_for(10_000)
    await watch(watching)
    await until_told(watching, "change", change())
    assert stand_in.called("GET /v1") == [STREAM]


async def test_a_cut_stream_comes_back_and_repeats_nothing(
    watching: Page, stand_in: StandIn
) -> None:
    await watch(watching)
    await until_told(watching, "change", change())
    stand_in.emit("a", "1")
    await until_told(watching, "chunk", "1")
    stand_in.retry_ms = 300
    stand_in.cut()
    await until_told(watching, "state", "reconnecting")
    stand_in.emit("a", "2")
    stand_in.put("a", stage="two")
    await until_told(watching, "state", "live")
    await until_told(watching, "chunk", "2")
    await until_told(watching, "change", change(stage="two"))
    assert await told(watching, "chunk") == ["1", "2"]
    assert LOOK not in stand_in.calls


async def test_what_comes_late_or_twice_is_not_told(watching: Page, stand_in: StandIn) -> None:
    """An answer that was overtaken, and a chunk that a proxy has kept."""
    await watch(watching)
    await until_told(watching, "change", change())
    old = dict(stand_in.jobs["a"])
    stand_in.put("a", stage="two")
    stand_in.emit("a", "1")
    stand_in.tell("/v1/jobs/a/events", "job", old)
    stand_in.tell("/v1/jobs/a/events", "chunk", {"attempt": 1, "seq": 1, "data": "1"})
    stand_in.emit("a", "2")
    await until_told(watching, "chunk", "2")
    assert await told(watching, "change") == [change(), change(stage="two")]
    assert await told(watching, "chunk") == ["1", "2"]


async def test_a_fault_of_the_page_does_not_stop_it(
    watching: Page, stand_in: StandIn, allowed_errors: list[str]
) -> None:
    allowed_errors.append("the page's own fault")
    await watch(watching, clumsy=True)
    await until_told(watching, "change", change())
    stand_in.put("a", status="failed")
    await until_told(watching, "done", "failed")


async def test_a_hidden_tab_is_quiet_and_wakes_with_the_present(
    watching: Page, stand_in: StandIn
) -> None:
    await watch(watching)
    await until_told(watching, "change", change())
    await be(watching, "hidden")
    await stand_in.until_streams(0)
    asked = len(stand_in.calls)
    stand_in.put("a", stage="two")
    stand_in.put("a", stage="three")
    await watching.clock.run_for(600_000)
    assert len(stand_in.calls) == asked
    await be(watching, "visible")
    await until_told(watching, "change", change(stage="three"))
    assert await told(watching, "state") == ["connecting", "live", "hidden", "connecting", "live"]


async def test_a_tab_that_is_opened_hidden_waits_to_be_seen(
    watching: Page, stand_in: StandIn
) -> None:
    await be(watching, "hidden")
    await watch(watching)
    await until_told(watching, "state", "hidden")
    await watching.clock.run_for(60_000)
    assert stand_in.called("GET /v1") == []
    await be(watching, "visible")
    await until_told(watching, "change", change())


async def test_polls_pause_in_a_hidden_tab_too(watching: Page, stand_in: StandIn) -> None:
    await watch(watching)
    await fall_back(watching, stand_in)
    await be(watching, "hidden")
    asked = len(stand_in.calls)
    await watching.clock.run_for(600_000)
    assert len(stand_in.calls) == asked
