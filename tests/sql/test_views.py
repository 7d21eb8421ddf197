"""Views for people with nothing but a SQL prompt."""

import asyncpg

from support import factory
from support.clock import Clock


async def test_health_and_statistics_are_plain_views(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """E11: alive and dead workers; pending, processing, failed, and the average time."""
    await clock.freeze()
    await factory.queue(conn)
    worker = await factory.worker(conn, "host-1", lease="1 hour")
    await factory.worker(conn, "host-2")
    await factory.submit_rows(conn, [{"kind": "q"}] * 5)
    done = await factory.claim(conn, worker, limit=3)
    await clock.advance("20s")
    await factory.finish(conn, worker, done[:2])
    error = {"class": "bug", "message": "why", "retryable": False}
    await factory.finish(conn, worker, done[2:], "failed", error=error)
    await factory.claim(conn, worker)
    await clock.advance("10s")
    while await conn.fetchval("select penstock.roll_up()"):
        pass

    health = await conn.fetch("select worker_id, running, alive from penstock.worker_health")
    assert {tuple(row) for row in health} == {("host-1", 1, True), ("host-2", 0, False)}
    await factory.queue(conn, "unused")
    stats = await conn.fetch(
        "select queue, queued, running, failed_today, avg_seconds from penstock.queue_stats"
        " order by queue"
    )
    assert [tuple(row) for row in stats] == [("q", 1, 1, 1, 20), ("unused", 0, 0, 0, None)]
    await clock.advance("26h")
    [row] = await conn.fetch(
        "select failed_today, avg_seconds from penstock.queue_stats where queue = 'q'"
    )
    assert tuple(row) == (0, None), "jobs that finished on an earlier day do not count"
    finished = await conn.fetch(
        "select outcome, sum(count), sum(total_duration_ms) / sum(count)"
        " from penstock.hourly group by outcome"
    )
    assert {tuple(row) for row in finished} == {("succeeded", 2, 20_000), ("failed", 1, 20_000)}
