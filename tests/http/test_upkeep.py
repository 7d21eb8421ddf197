"""A standing server does upkeep, also after the clock was set."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from penstock import server
from penstock.worker.maintenance.upkeep import UpkeepLoop
from support import factory
from support.clock import Clock
from support.http.site import Site

TOKEN = "a token of some length"  # noqa: S105  # of a job that lives for a test


async def test_deadlines_of_dispatched_jobs_are_postponed_without_a_worker(
    site: Site, conn: asyncpg.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-F10: for dispatched jobs an API may be the only process that does upkeep."""
    keepers: list[UpkeepLoop] = []

    class Noted(UpkeepLoop):
        async def run(self) -> None:
            keepers.append(self)
            await asyncio.Event().wait()

    monkeypatch.setattr(server, "UpkeepLoop", Noted)
    await factory.queue(conn, timeout_seconds=60)
    await factory.submit(conn)
    worker = await factory.worker(conn)
    [start] = await factory.claim(conn, worker)
    assert await factory.hand_over(conn, worker, start, TOKEN) == "done"
    api = server.api(site.penstock, standing=True)
    async with api.router.lifespan_context(api):
        await asyncio.sleep(0)
        [keeper] = keepers
        before = await clock.now()
        await clock.advance("1h")
        await keeper.postpone(timedelta(hours=1), before)
    assert await factory.recover(conn) == []
    assert await factory.status(conn, start["id"]) == "awaiting"
