"""Rows of check_liveness, and workers that would take a job, in one line each."""

from datetime import timedelta

import asyncpg

from support import factory
from support.clock import Clock

RULES = {
    "start": "a queued job starts when it may",
    "probe": "a probe starts when it is due",
    "due": "a job is queued when it is due",
    "driven": "a driven queue with due jobs is called",
    "upkeep": "upkeep runs",
    "deadline": "an attempt past its deadline is settled",
    "silent": "a silent worker is marked as lost",
    "gone": "jobs of a worker that is gone are settled",
    "asked": "a job whose cancellation was requested finishes",
    "expired": "a job that expired before its start finishes",
    "failure_pending": "a last failure that may be the provider's is decided",
    "ramp": "a ramp ends",
    "webhook": "a webhook is sent when it is due",
    "callback": "an on_finish callback runs when it is due",
}
BEAT_SECONDS = 3


async def found(conn: asyncpg.Connection, seconds: float = 10) -> list[tuple[str, str]]:
    """Rule and subject of each row."""
    rows = await conn.fetch(
        "select rule, subject from penstock.check_liveness($1)", timedelta(seconds=seconds)
    )
    return [(row["rule"], row["subject"]) for row in rows]


async def standing(
    conn: asyncpg.Connection,
    name: str = "w",
    *,
    kinds: list[str] | None = None,
    accepting: list[str] | None = None,
) -> int:
    """A standing worker that would take one more job of these queues."""
    worker = await factory.worker(conn, name, lease="100 days", kinds=kinds)
    await conn.execute("update penstock.worker set locks = true where id = $1", worker)
    await beat(conn, worker, accepting)
    return worker


async def beat(conn: asyncpg.Connection, worker: int, accepting: list[str] | None = None) -> None:
    queues = ["q"] if accepting is None else accepting
    await conn.execute("select penstock.beat_worker($1, $2)", worker, queues)


async def accept(conn: asyncpg.Connection, clock: Clock, worker: int, seconds: int) -> None:
    """Let this much time pass, in which the worker beats and upkeep runs."""
    while seconds > 0:
        step = min(BEAT_SECONDS, seconds)
        await passes(conn, clock, step)
        await beat(conn, worker)
        seconds -= step


async def passes(conn: asyncpg.Connection, clock: Clock, seconds: float) -> None:
    """Let this much time pass; upkeep has just measured the queues at its end."""
    await clock.advance(f"{seconds}s")
    await conn.execute("update penstock.measured set at = penstock.clock()")
