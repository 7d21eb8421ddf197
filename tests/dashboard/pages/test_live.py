"""`/live`: an open page is notified of changes, soon and not too often."""

from browser.scene import Scene
from penstock.http.live.feeds import CHANGE_SECONDS, SILENCE_SECONDS, AnyChangeFeed
from support.dashboard.visitor import Visitor
from support.http.listening import listening
from support.http.site import Site
from support.waiting import eventually

BEGUN = 1_000.0


def test_many_changes_are_one_update() -> None:
    feed = AnyChangeFeed()
    feed.changed(BEGUN)
    first = feed.updates
    for _ in range(100):
        feed.changed(BEGUN + CHANGE_SECONDS / 2)
    assert feed.updates == first
    feed.publish(BEGUN + CHANGE_SECONDS)
    assert feed.updates == first + 1


def test_without_changes_there_is_an_update_after_a_while() -> None:
    """ETA and staleness change with time alone."""
    feed = AnyChangeFeed()
    feed.changed(BEGUN)
    first = feed.updates
    feed.publish(BEGUN + SILENCE_SECONDS - 0.1)
    assert feed.updates == first
    feed.publish(BEGUN + SILENCE_SECONDS)
    assert feed.updates == first + 1


async def test_a_page_is_notified_of_a_job_submitted_by_sql(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line")
    async with listening(operator.http, "/live") as heard:
        assert (await heard.next()).name == "change"
        await scene.queued("line")
        assert (await heard.next(SILENCE_SECONDS - 1)).name == "change"


async def test_without_a_session_the_answer_is_empty_and_no_redirect(
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
