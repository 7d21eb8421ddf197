"""A beat that is late because of a handler is logged; one that waited for the server is not."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from penstock.worker.event_loop.loop_watch import LoopWatch
from penstock.worker.membership import heartbeat

EVERY_SECONDS = 0.2
BUSY_SECONDS = 0.5


class Session:
    """A session whose server is slow."""

    def __init__(self, takes_seconds: float) -> None:
        self._takes_seconds = takes_seconds

    async def fetch(self, *_: Any) -> list[Any]:
        await asyncio.sleep(self._takes_seconds)
        return []


async def pause(monkeypatch: pytest.MonkeyPatch, session: Any) -> None:
    monkeypatch.setattr(heartbeat, "_PING_SECONDS", EVERY_SECONDS / 4)
    heart = heartbeat.Heartbeat(
        "",
        lease=timedelta(seconds=0.3),
        every=timedelta(seconds=EVERY_SECONDS),
        locks=True,
        on_lost=lambda _: None,
        watch=LoopWatch(asyncio.get_running_loop()),
    )
    await heart._pause(session)


async def test_no_handler_is_blamed_for_a_slow_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await pause(monkeypatch, Session(BUSY_SECONDS))
    assert caplog.messages == []


async def test_a_handler_that_keeps_the_interpreter_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.get_running_loop().call_later(EVERY_SECONDS / 8, time.sleep, BUSY_SECONDS)
    await pause(monkeypatch, Session(0))
    assert "a handler kept the interpreter lock" in caplog.text
