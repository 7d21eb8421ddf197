"""Notifications: at once after a pause, few in a storm; errors of sending are dropped."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from penstock.engine.queries.events import (
    CHANGE_PAUSE_SECONDS,
    WAKE_PAUSE_SECONDS,
    Notifier,
)
from support.waiting import eventually


class Channel:
    """Records what was sent, and can delay or fail sending."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.fails = False

    async def send(self, queues: Sequence[str]) -> None:
        await self.open.wait()
        if self.fails:
            raise ConnectionError
        self.sent += queues


@pytest.fixture
def channel() -> Channel:
    return Channel()


async def test_the_first_is_sent_at_once(channel: Channel) -> None:
    notifier = Notifier(channel.send, pause_seconds=3600)
    notifier.notify("a")
    notifier.notify("b")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert channel.sent == ["a", "b"]
    for task in notifier._tasks.values():
        task.cancel()


async def test_a_storm_sends_one_per_pause_and_key(channel: Channel) -> None:
    notifier = Notifier(channel.send, pause_seconds=WAKE_PAUSE_SECONDS)
    for _ in range(1_000):
        notifier.notify("a")
    await asyncio.sleep(0)
    notifier.notify("a")  # after the first was sent: one more, after the pause
    await notifier.close()
    assert channel.sent == ["a", "a"]
    assert notifier._tasks == {}


async def test_a_notification_during_another_is_sent_too(channel: Channel) -> None:
    """Its commit may have come after the receivers polled for the first."""
    notifier = Notifier(channel.send, pause_seconds=WAKE_PAUSE_SECONDS)
    channel.open.clear()
    notifier.notify("a")
    await asyncio.sleep(0)
    notifier.notify("a")
    channel.open.set()
    await notifier.close()
    assert channel.sent == ["a", "a"]


async def test_after_a_pause_the_next_is_sent_at_once(channel: Channel) -> None:
    notifier = Notifier(channel.send, pause_seconds=WAKE_PAUSE_SECONDS)
    for n in (1, 2, 3):
        notifier.notify("a")

        async def sent(n: int = n) -> bool:
            return len(channel.sent) == n and not notifier._tasks

        await eventually(sent, "the notification")


async def test_errors_of_sending_are_dropped(channel: Channel) -> None:
    channel.fails = True
    notifier = Notifier(channel.send, pause_seconds=WAKE_PAUSE_SECONDS)
    notifier.notify("a")
    await notifier.close()
    channel.fails = False
    notifier.notify("a")
    await notifier.close()
    assert channel.sent == ["a"]


async def test_a_notification_that_was_cancelled_while_sent_is_sent_at_the_end(
    channel: Channel,
) -> None:
    """`asyncio.run` cancels all tasks before it closes anything."""
    channel.open.clear()
    notifier = Notifier(channel.send, pause_seconds=WAKE_PAUSE_SECONDS)
    notifier.notify("a")
    notifier.notify("b")
    await asyncio.sleep(0)
    for task in notifier._tasks.values():
        task.cancel()
    channel.open.set()
    await notifier.close()
    assert sorted(channel.sent) == ["a", "b"]


async def test_one_notification_may_join_a_commit_and_then_the_pause_begins(
    channel: Channel,
) -> None:
    notifier = Notifier(channel.send, pause_seconds=WAKE_PAUSE_SECONDS)
    assert notifier.may_join_commit("a")
    assert not notifier.may_join_commit("a")
    assert notifier.may_join_commit("b")
    await asyncio.sleep(0)
    notifier.notify("a")
    await asyncio.sleep(0)
    assert channel.sent == [], "it is sent after the pause"
    await notifier.close()
    assert channel.sent == ["a"]


async def test_close_with_a_bound_does_not_wait_for_a_lost_connection(channel: Channel) -> None:
    channel.open.clear()
    notifier = Notifier(channel.send, pause_seconds=WAKE_PAUSE_SECONDS)
    notifier.notify("a")
    await asyncio.wait_for(notifier.close(0.01), 5)
    assert channel.sent == []
    channel.open.set()
    await notifier.close()


async def test_notifications_are_spaced_and_the_last_change_is_sent() -> None:
    sent: list[float] = []
    loop = asyncio.get_running_loop()

    async def send(_: Sequence[str]) -> None:
        sent.append(loop.time())

    notifier = Notifier(send, pause_seconds=CHANGE_PAUSE_SECONDS)
    changed_at = 0.0
    ends = loop.time() + 5 * CHANGE_PAUSE_SECONDS
    while loop.time() < ends:
        notifier.notify()
        changed_at = loop.time()
        await asyncio.sleep(0)
    await notifier.close()
    gaps = [later - before for before, later in itertools.pairwise(sent)]
    assert min(gaps) >= CHANGE_PAUSE_SECONDS * 0.9
    assert sent[-1] >= changed_at
    before = len(sent)
    await notifier.close()
    assert len(sent) == before
