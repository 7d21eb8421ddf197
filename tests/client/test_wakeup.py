"""Hints to workers: at once when it was quiet, few in a storm, and never anybody's trouble."""

import asyncio
from collections.abc import Sequence

import pytest

from penstock.client import wakeup
from penstock.client.wakeup import Waker
from support.waiting import eventually


class Line:
    """What was sent, and a way to hold the sending up."""

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
def line() -> Line:
    return Line()


async def test_the_first_is_sent_at_once(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeup, "PAUSE_SECONDS", 3600)
    waker = Waker(line.send)
    waker.tell("a")
    waker.tell("b")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert line.sent == ["a", "b"]
    for task in waker._tasks.values():
        task.cancel()


async def test_a_storm_sends_one_per_pause_and_queue(line: Line) -> None:
    waker = Waker(line.send)
    for _ in range(1_000):
        waker.tell("a")
    await asyncio.sleep(0)
    waker.tell("a")  # came after the first was sent: one more, after the pause
    await waker.close()
    assert line.sent == ["a", "a"]
    assert waker._tasks == {}


async def test_one_that_comes_while_another_is_on_its_way_is_sent_too(line: Line) -> None:
    """It may have been committed after the server read the first."""
    waker = Waker(line.send)
    line.open.clear()
    waker.tell("a")
    await asyncio.sleep(0)
    waker.tell("a")
    line.open.set()
    await waker.close()
    assert line.sent == ["a", "a"]


async def test_a_quiet_queue_is_told_at_once_again(line: Line) -> None:
    waker = Waker(line.send)
    for n in (1, 2, 3):
        waker.tell("a")

        async def sent(n: int = n) -> bool:
            return len(line.sent) == n and not waker._tasks

        await eventually(sent, "the hint")


async def test_what_cannot_be_sent_is_nobodys_trouble(line: Line) -> None:
    line.fails = True
    waker = Waker(line.send)
    waker.tell("a")
    await waker.close()
    line.fails = False
    waker.tell("a")
    await waker.close()
    assert line.sent == ["a"]


async def test_what_was_cancelled_on_its_way_is_sent_at_the_end(line: Line) -> None:
    """`asyncio.run` cancels all tasks before it closes anything."""
    line.open.clear()
    waker = Waker(line.send)
    waker.tell("a")
    waker.tell("b")
    await asyncio.sleep(0)
    for task in waker._tasks.values():
        task.cancel()
    line.open.set()
    await waker.close()
    assert sorted(line.sent) == ["a", "b"]
