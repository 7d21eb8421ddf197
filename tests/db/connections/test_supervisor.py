"""The background loops of a process: a failed one is restarted, and all of them are stopped."""

import asyncio
import logging

import pytest

from penstock.db.connections import supervisor
from penstock.db.connections.supervisor import Supervisor
from penstock.errors import Unavailable
from support.waiting import eventually

LOG = logging.getLogger("penstock.test")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "OUTAGE_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "FAILED_SECONDS", 0.0)


async def test_a_failed_loop_is_named_in_the_log_and_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An outage is one line, however long it lasts; any other failure is an error."""
    caplog.set_level(logging.INFO, LOG.name)
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        if calls <= 3:
            raise Unavailable("no database")
        if calls == 4:
            raise ValueError("secret")
        await asyncio.Event().wait()

    loops = Supervisor(LOG)
    loops.start("the writer", work)

    async def waits() -> bool:
        return calls == 5

    await eventually(waits, "the loop is restarted each time")
    await loops.stop()
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "the writer waits for the database: Unavailable"
    assert second.startswith("the writer failed and is restarted: ValueError at ")
    assert "secret" not in second


async def test_an_outage_after_a_recovery_is_logged_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that never returns has no other sign that an outage is over."""
    monkeypatch.setattr(supervisor, "RECOVERED_SECONDS", -1.0)
    caplog.set_level(logging.INFO, LOG.name)
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise Unavailable("no database")
        await asyncio.Event().wait()

    async def waits() -> bool:
        return calls == 3

    loops = Supervisor(LOG)
    loops.start("the writer", work)
    await eventually(waits, "the loop is restarted each time")
    await loops.stop()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["the writer waits for the database: Unavailable"] * 2


async def test_a_step_is_repeated_after_each_pause_until_all_loops_stop() -> None:
    calls = 0
    stopped = asyncio.Event()

    async def step() -> None:
        nonlocal calls
        calls += 1

    async def loop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    loops = Supervisor(LOG)
    loops.start("the step", step, every=0.001)
    loops.start("the loop", loop)
    assert calls == 0

    async def repeated() -> bool:
        return calls > 2

    await eventually(repeated, "the step is repeated")
    await loops.stop()
    so_far = calls
    await asyncio.sleep(0)
    assert stopped.is_set()
    assert calls == so_far
