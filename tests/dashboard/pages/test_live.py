"""`/live`: an open page hears that something has changed, soon and not too often."""

from browser.scene import Scene
from penstock.http.live.pulse import PAUSE_SECONDS, SILENCE_SECONDS, PulseRoom
from support.dashboard.visitor import Visitor
from support.http.listening import listening
from support.http.site import Site
from support.waiting import eventually

BEGUN = 1_000.0


def test_many_hints_are_one_beat() -> None:
    room = PulseRoom()
    room.hint(BEGUN)
    first = room.beat
    for _ in range(100):
        room.hint(BEGUN + PAUSE_SECONDS / 2)
    assert room.beat == first
    room.settle(BEGUN + PAUSE_SECONDS)
    assert room.beat == first + 1


def test_silence_is_broken_for_what_time_alone_changes() -> None:
    room = PulseRoom()
    room.hint(BEGUN)
    first = room.beat
    room.settle(BEGUN + SILENCE_SECONDS - 0.1)
    assert room.beat == first
    room.settle(BEGUN + SILENCE_SECONDS)
    assert room.beat == first + 1


async def test_a_page_hears_of_a_job_that_came_by_sql(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line")
    async with listening(operator.http, "/live") as heard:
        assert (await heard.next()).name == "change"
        await scene.queued("line")
        assert (await heard.next(SILENCE_SECONDS - 1)).name == "change"


async def test_who_is_not_signed_in_hears_nothing_and_is_not_led_to_a_form(
    visitor: Visitor,
) -> None:
    answer = await visitor.get("/live")
    assert (answer.status_code, answer.text) == (204, "")


async def test_a_revoked_key_closes_the_page_s_stream(site: Site, visitor: Visitor) -> None:
    key = await site.make_key("admin")
    assert (await visitor.sign_in(key)).status_code == 303
    async with listening(visitor.http, "/live") as heard:
        await heard.next()
        await site.engine.keys.revoke(key.split("_")[2])
        await heard.over()

    async def is_refused() -> bool:
        return (await visitor.get("/live")).status_code == 204

    # What was asked of a key just before counts for a second.
    await eventually(is_refused, "the key does not open the stream again")
