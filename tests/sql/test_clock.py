"""The test clock: time stands, moves and runs in the same way for every session."""

from datetime import UTC, datetime, timedelta

import asyncpg

from support.clock import Clock
from support.shapes import Connect


async def test_time_moves_for_every_session(clock: Clock, connect: Connect) -> None:
    one, other = await connect(), await connect()
    before = await one.fetchval("select penstock.clock()")
    await clock.advance("5m")
    for conn in (one, other):
        moved = await conn.fetchval("select penstock.clock()") - before
        assert timedelta(minutes=5) <= moved < timedelta(minutes=6)


async def test_frozen_time_stands_until_it_is_advanced(
    clock: Clock, conn: asyncpg.Connection
) -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    await clock.freeze(noon)
    assert [await conn.fetchval("select penstock.clock()") for _ in range(2)] == [noon, noon]
    await clock.advance(90)
    assert await clock.now() == noon + timedelta(seconds=90)
    await clock.thaw()
    assert noon < await clock.now() - timedelta(seconds=90) < noon + timedelta(seconds=30)


async def test_advance_moves_heartbeats_only_when_asked(
    clock: Clock, conn: asyncpg.Connection
) -> None:
    await clock.freeze()
    await conn.execute("select penstock.register_worker('w', '15s')")
    silence = "select penstock.clock() - beat_at from penstock.worker"
    await clock.advance("1m", beats=True)
    assert await conn.fetchval(silence) == timedelta(0)
    await clock.advance("1m")
    assert await conn.fetchval(silence) == timedelta(minutes=1)
