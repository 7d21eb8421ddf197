"""The storm: 50 connections claim at once while others submit, cancel, snooze and are cut.

In every snapshot no limit is exceeded, counters equal counts and no invariant is broken; each job
has one owner at a time; at the end no job is lost, and each has finished once.
"""

import time
from typing import Any

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.shapes import Connect, Scale
from support.storms.storm import Storm

pytestmark = pytest.mark.one_version

ACCOUNTS = 300
# Far more than it needs, also on a slow machine that runs other tests.
DEADLINE_SECONDS = 1_200


@pytest.fixture
def storm(database: str, connect: Connect, clock: Clock, seed: int) -> Any:
    """Run a storm on a queue with these options, and check the result."""

    async def rage(jobs: int, **options: Any) -> None:
        conn = await connect()
        # Times far longer than the storm: recovery settles an attempt for one reason only.
        await factory.queue(conn, timeout_seconds=3_600, delay_seconds=0, **options)
        storm = Storm(database, connect, clock, seed, jobs)
        began = time.monotonic()
        await storm.rage(ACCOUNTS, DEADLINE_SECONDS)
        print(f"{time.monotonic() - began:.1f} s, {dict(sorted(storm.referee.seen.items()))}")
        await storm.referee.balance(conn)
        assert storm.referee.seen["snapshot"] >= 5
        held = "select running from penstock.gate union all select running from penstock.account"
        assert await conn.fetchval(f"select sum(running) from ({held}) h") == 0

    return rage


@pytest.mark.timeout(DEADLINE_SECONDS + 60)
@pytest.mark.parametrize("concurrency", [7, 1])
async def test_no_limit_is_exceeded_and_no_job_is_lost_in_a_storm(
    conn: asyncpg.Connection, storm: Any, scale: Scale, concurrency: int
) -> None:
    """M3, M4, G6, E9, S12, S13: 300 accounts that may run one job each; 5,000 jobs in full."""
    await factory.plan(conn, concurrency=1)
    await storm(scale({7: 350, 1: 120}[concurrency], 5_000), concurrency=concurrency)


@pytest.mark.timeout(DEADLINE_SECONDS + 60)
async def test_a_fair_queue_stays_right_in_a_storm(
    conn: asyncpg.Connection, storm: Any, scale: Scale
) -> None:
    """M4, G6, E9"""
    await factory.plan(conn, concurrency=1, weight=3)
    await storm(scale(350, 5_000), concurrency=7, order="fair")


@pytest.mark.timeout(DEADLINE_SECONDS + 60)
async def test_a_queue_without_limits_stays_right_in_a_storm(storm: Any, scale: Scale) -> None:
    """M4, E9"""
    await storm(scale(700, 5_000))
