"""A server that stands keeps the house in order: when the clock was set, too."""

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


async def test_what_awaits_a_callback_is_postponed_where_there_is_no_worker(
    site: Site, conn: asyncpg.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-F10: an API alone is all the upkeep that jobs outside may have."""
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
