"""Staleness of an attempt without progress: it is shown long before recovery begins."""

import re
from typing import Any

import asyncpg

from support import factory
from support.clock import Clock
from support.factory import Row

LONG_LEASE = "100 days"
SIGN = "a sign of some length"


async def running(conn: asyncpg.Connection, **options: Any) -> tuple[int, Row]:
    await factory.queue(conn, **{"timeout_seconds": 3_600} | options)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await factory.submit(conn)
    [row] = await factory.claim(conn, worker)
    return worker, row


async def staleness(conn: asyncpg.Connection, row: Row) -> Any:
    return (await factory.read(conn, row["id"]))["staleness"]


async def report(
    conn: asyncpg.Connection, worker: int, row: Row, stage: str, label: str | None = None
) -> None:
    await conn.execute(
        "select penstock.report_progress($1, $2, $3, $4, $5, null)",
        worker,
        [row["id"]],
        [row["attempt"]],
        [stage],
        [label],
    )


async def test_an_attempt_without_progress_is_stale_after_three_minutes(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """S6, S7: stale, since, stage, and a sentence for people."""
    worker, row = await running(conn)
    begun = await clock.freeze()
    await report(conn, worker, row, "TIER1", "Tier 1 scanning")
    await clock.advance("179s")
    assert await staleness(conn, row) is None
    await clock.advance("1s")
    stale = await staleness(conn, row)
    assert stale["stale"] is True
    assert stale["since"].startswith(begun.strftime("%Y-%m-%dT%H:%M:%S"))
    assert stale["stage"] == "TIER1"
    assert "3 minutes" in stale["message"]
    assert "It was last at: Tier 1 scanning. Nothing is lost" in stale["message"]
    assert not re.search(
        r"TIER1|worker|queue|lease|retry|stuck|stale|attempt|timeout|job", stale["message"]
    ), "words for operators"


async def test_an_attempt_that_never_reported_is_stale_too(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    _, row = await running(conn)
    await clock.advance("4m")
    stale = await staleness(conn, row)
    assert stale["since"] == (await factory.read(conn, row["id"]))["started_at"]
    assert stale["stage"] is None
    assert "last at" not in stale["message"]


async def test_an_attempt_that_makes_progress_is_no_longer_stale(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """S5"""
    worker, row = await running(conn)
    await clock.advance("4m")
    assert await staleness(conn, row)
    await report(conn, worker, row, "TIER2")
    assert await staleness(conn, row) is None


async def test_staleness_and_recovery_have_separate_thresholds(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """S6: each has its own threshold, and a warning changes nothing."""
    _, row = await running(conn, stale_after_seconds=30, stuck_after_seconds=60)
    await clock.advance("31s")
    assert await staleness(conn, row)
    assert await factory.recover(conn) == []
    assert await staleness(conn, row)
    await clock.advance("31s")
    assert [one["outcome"] for one in await factory.recover(conn)] == ["stuck"]
    assert await staleness(conn, row) is None, "it waits for its next attempt"


async def test_an_awaiting_job_can_be_stale(conn: asyncpg.Connection, clock: Clock) -> None:
    worker, row = await running(conn)
    await factory.hand_over(conn, worker, row, SIGN)
    await clock.advance("2m")
    assert await staleness(conn, row) is None
    await clock.advance("2m")
    assert "has not answered for 4 minutes" in (await staleness(conn, row))["message"]


async def test_a_waiting_job_is_never_stale(conn: asyncpg.Connection, clock: Clock) -> None:
    """However long it waits."""
    await factory.queue(conn)
    job = await factory.submit(conn)
    await clock.advance("2d")
    assert (await factory.read(conn, job))["staleness"] is None


async def test_lengths_of_time_are_in_words(conn: asyncpg.Connection) -> None:
    for length, words in {"45 s": "45 seconds", "119 min": "119 minutes", "3 h": "3 hours"}.items():
        text = await conn.fetchval("select penstock._time_words($1::text::interval)", length)
        assert text == words
