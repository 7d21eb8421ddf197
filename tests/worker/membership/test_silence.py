"""Upkeep expires no leases after a stall: other workers may have been cut off with it."""

import asyncio
import time
from datetime import UTC, datetime

import pytest

from penstock.engine.maintenance import Upkeep
from penstock.worker.membership import clocks

SILENT_SECONDS = 0.1


class Server(Upkeep):
    """A server that is slow to answer."""

    def __init__(self) -> None:
        self.takes_seconds = 0.0

    async def server_time(self) -> datetime:
        await asyncio.sleep(self.takes_seconds)
        return datetime.now(UTC)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(clocks, "SILENT_SECONDS", SILENT_SECONDS)
    monkeypatch.setattr(clocks, "GRACE_SECONDS", 3 * SILENT_SECONDS)
    monkeypatch.setattr(clocks, "PATIENCE_SECONDS", 10 * SILENT_SECONDS)
    return Server()


async def test_no_lease_expires_after_a_stall(server: Server) -> None:
    """F6"""
    clock = clocks.ServerClock()
    assert await clock.may_judge(server)
    server.takes_seconds = 1.5 * SILENT_SECONDS
    assert not await clock.may_judge(server)
    server.takes_seconds = 0
    answered = time.monotonic()
    assert not await clock.may_judge(server)
    while not await clock.may_judge(server):  # noqa: ASYNC110  # it has no event
        await asyncio.sleep(SILENT_SECONDS / 5)
    assert time.monotonic() - answered > 2 * SILENT_SECONDS


async def test_leases_expire_although_every_answer_takes_long(
    server: Server,
) -> None:
    """E12"""
    clock = clocks.ServerClock()
    server.takes_seconds = 1.5 * SILENT_SECONDS
    judged = [await clock.may_judge(server) for _ in range(12)]
    assert judged[0]
    assert not any(judged[1:5])
    assert any(judged[5:])
