"""Hourly counts: every outcome counts once, however often and by whomever it is added up."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import refused
from support.shapes import Connect, Scale

# After the migration, as far as any machine's clock goes; ten minutes past an hour.
TEN_PAST = datetime(2090, 3, 1, 9, 10, tzinfo=UTC)
HOUR = datetime(2090, 3, 1, 9, tzinfo=UTC)

Key = tuple[datetime, str, str | None]


@pytest.fixture
async def system(conn: asyncpg.Connection, clock: Clock) -> asyncpg.Connection:
    """Make a queue and a worker at ten past nine, with nothing counted before."""
    await clock.freeze(TEN_PAST)
    await factory.queue(conn, delay_seconds=0, recovery=3)
    await conn.execute("select penstock.make_partitions()")
    await conn.execute(
        "update penstock.rollup set counted_until = $1, settled_until = $2", TEN_PAST, HOUR
    )
    return conn


async def roll_up(conn: asyncpg.Connection) -> None:
    while await conn.fetchval("select penstock.roll_up()"):
        pass


async def run(
    conn: asyncpg.Connection, clock: Clock, outcome: str, seconds: float, cls: str | None = None
) -> None:
    """Run an attempt with this outcome and duration."""
    worker = await factory.worker(conn, lease="3 days")
    if not await conn.fetchval("select count(*) from penstock.job where status = 'queued'"):
        await factory.submit(conn)
    started = await factory.claim(conn, worker)
    await clock.advance(timedelta(seconds=seconds))
    error = None if cls is None else {"class": cls, "message": "m"}
    [done] = await factory.finish(conn, worker, started, outcome, error=error, delay="0 s")
    assert done["verdict"] == "done"


async def counts(conn: asyncpg.Connection) -> dict[Key, int]:
    rows = await conn.fetch("select hour, outcome, class, count from penstock.hourly")
    return {(row["hour"], row["outcome"], row["class"]): row["count"] for row in rows}


async def metrics(conn: asyncpg.Connection, hours: int = 24) -> dict[str, Any]:
    answer: dict[str, Any] = await conn.fetchval("select penstock.read_metrics($1)", hours)
    return answer


async def test_each_hour_counts_outcomes_by_queue_kind_outcome_and_class_s10(
    system: asyncpg.Connection, clock: Clock
) -> None:
    """S10: count, total time, histogram; of jobs, and of attempts that did not finish them."""
    await run(system, clock, "succeeded", 0.1)
    await run(system, clock, "succeeded", 2)
    await run(system, clock, "retry", 40, "timeout")
    await run(system, clock, "failed", 5, "timeout")
    await clock.advance("10s")
    await roll_up(system)
    assert await counts(system) == {
        (HOUR, "succeeded", None): 2,
        (HOUR, "retried", "timeout"): 1,
        (HOUR, "failed", "timeout"): 1,
    }
    row = await system.fetchrow("select * from penstock.hourly where outcome = 'succeeded'")
    assert row
    assert (row["queue"], row["kind"], row["total_duration_ms"]) == ("q", "q", 2_100)
    # At most 0.1 s, 0.3, 1, 3, 10, …: cumulative, and the last is all.
    assert row["histogram"] == [1, 1, 1, *[2] * 9]


async def test_nothing_counts_twice_however_often_roll_up_runs(
    system: asyncpg.Connection, clock: Clock
) -> None:
    await run(system, clock, "succeeded", 1)
    for _ in range(5):
        await clock.advance("10s")
        await roll_up(system)
    await run(system, clock, "succeeded", 1)
    await clock.advance("10s")
    await roll_up(system)
    assert await counts(system) == {(HOUR, "succeeded", None): 2}


async def test_two_concurrent_upkeeps_count_everything_once(
    system: asyncpg.Connection, clock: Clock, connect: Connect
) -> None:
    for _ in range(20):
        await run(system, clock, "succeeded", 0.01)
    await clock.advance("20s")
    one, other = await connect(), await connect()
    begun = one.transaction()
    await begun.start()
    await one.fetchval("select penstock.roll_up()")
    # A concurrent upkeep does not count them again, and does not wait.
    assert await other.fetchval("select penstock.roll_up()") is False
    await begun.commit()
    for _ in range(10):
        await clock.advance("10s")
        await asyncio.gather(*(roll_up(each) for each in (one, other, system)))
    assert await counts(system) == {(HOUR, "succeeded", None): 20}


async def test_counts_and_counted_until_change_in_one_transaction(
    system: asyncpg.Connection, clock: Clock, connect: Connect
) -> None:
    await run(system, clock, "succeeded", 1)
    await clock.advance("20s")
    dying = await connect()
    begun = dying.transaction()
    await begun.start()
    await dying.fetchval("select penstock.roll_up()")
    await begun.rollback()
    assert await counts(system) == {}
    await roll_up(system)
    assert await counts(system) == {(HOUR, "succeeded", None): 1}


async def test_a_late_commit_is_counted_when_the_hour_is_settled(
    system: asyncpg.Connection, clock: Clock, connect: Connect
) -> None:
    slow = await connect()
    await run(system, clock, "succeeded", 1)
    begun = slow.transaction()
    await begun.start()
    await run(slow, clock, "succeeded", 2)
    await clock.advance("30s")
    await roll_up(system)
    await begun.commit()
    await clock.advance("10s")
    await roll_up(system)
    assert await counts(system) == {(HOUR, "succeeded", None): 1}
    await clock.freeze(HOUR + timedelta(hours=1, minutes=11))
    await roll_up(system)
    assert await counts(system) == {(HOUR, "succeeded", None): 2}
    row = await system.fetchrow("select * from penstock.hourly")
    assert row
    assert (row["total_duration_ms"], row["histogram"][-1]) == (3_000, 2)
    total = await system.fetchrow("select * from penstock.hourly_bucket where hour = '-infinity'")
    assert total
    assert (total["count"], total["total_ms"], total["histogram"]) == (2, 3_000, row["histogram"])
    # Once: then the hour is settled.
    await clock.advance("2h")
    await roll_up(system)
    assert await counts(system) == {(HOUR, "succeeded", None): 2}


async def test_settling_subtracts_no_jobs_that_retention_has_removed(
    system: asyncpg.Connection, clock: Clock
) -> None:
    await run(system, clock, "succeeded", 1)
    await clock.advance("10s")
    await roll_up(system)
    await system.execute("delete from penstock.finished")
    await clock.advance("2h")
    await roll_up(system)
    assert await counts(system) == {(HOUR, "succeeded", None): 1}


async def test_upkeep_catches_up_after_weeks_without_a_worker(
    system: asyncpg.Connection, clock: Clock
) -> None:
    await run(system, clock, "succeeded", 1)
    await clock.advance("12d")
    await run(system, clock, "failed", 1, "bug")
    await clock.advance("4d")
    steps = 0
    while await system.fetchval("select penstock.roll_up()"):
        steps += 1
    assert steps < 100, "an hour without outcomes is skipped"
    assert await counts(system) == {
        (HOUR, "succeeded", None): 1,
        (HOUR + timedelta(days=12), "failed", "bug"): 1,
    }


async def test_hours_are_deleted_after_90_days_and_totals_are_not(
    system: asyncpg.Connection, clock: Clock
) -> None:
    """S10"""
    await run(system, clock, "succeeded", 1)
    await clock.advance("2h")
    await roll_up(system)
    await clock.advance("89d")
    await roll_up(system)
    assert len(await counts(system)) == 1
    await clock.advance("2d")
    await roll_up(system)
    assert await counts(system) == {}
    gauges = await system.fetchval("select penstock.read_gauges()")
    assert [one["count"] for one in gauges["ended"]] == [1]


async def test_metrics_have_timeouts_by_class_and_hour_s11(
    system: asyncpg.Connection, clock: Clock
) -> None:
    """S11: up to now, not up to upkeep's last pass."""
    await run(system, clock, "retry", 3, "timeout")
    await clock.advance("10s")
    await roll_up(system)
    await run(system, clock, "retry", 3, "timeout")
    await run(system, clock, "retry", 7, "timeout")  # the last attempt: the job fails with it
    await run(system, clock, "cancelled", 1, "cancelled")
    await run(system, clock, "released", 1, "worker_lost")
    found = await metrics(system)
    assert found["timeouts"] == [
        {"hour": "2090-03-01T09:00:00.000000Z", "class": "timeout", "count": 3,
         "total_duration_ms": 13_000},
    ]  # fmt: skip
    timeouts = {
        (one["outcome"], one["count"], one["queue"], one["kind"]) for one in found["throughput"]
    }
    assert timeouts == {
        ("retried", 2, "q", "q"),
        ("failed", 1, "q", "q"),
        ("cancelled", 1, "q", "q"),
        ("released", 1, "q", "q"),
    }
    await clock.advance("10s")
    await roll_up(system)
    assert await metrics(system) == found


async def test_a_last_failure_that_was_pending_counts_once_among_the_timeouts(
    system: asyncpg.Connection, clock: Clock
) -> None:
    for _ in range(3):
        await run(system, clock, "provisional", 1, "provider_error")
        await clock.advance("2s")
    await clock.advance("2m")
    await factory.recover(system)
    found = await metrics(system)
    assert [one["count"] for one in found["timeouts"]] == [3]
    assert {one["outcome"]: one["count"] for one in found["throughput"]} == {
        "retried": 3,
        "failed": 1,
    }


async def test_a_job_that_never_started_has_no_duration(
    system: asyncpg.Connection, clock: Clock
) -> None:
    job = await factory.submit(system)
    await clock.advance("5m")
    await system.execute("select penstock.cancel_job($1)", job)
    [one] = (await metrics(system))["throughput"]
    assert (one["outcome"], one["count"], one["total_duration_ms"]) == ("cancelled", 1, 0)


async def test_metrics_cover_the_requested_hours(system: asyncpg.Connection, clock: Clock) -> None:
    await run(system, clock, "succeeded", 1)
    await clock.advance("3h")
    await roll_up(system)
    assert (await metrics(system, 2))["throughput"] == []
    assert len((await metrics(system, 3))["throughput"]) == 1
    for hours in (0, -1, 2_161, None):
        with refused(422, "invalid_filter", "hours"):
            await system.fetchval("select penstock.read_metrics($1)", hours)


async def test_a_class_that_an_app_made_up_is_counted_as_other(
    system: asyncpg.Connection, clock: Clock
) -> None:
    await run(system, clock, "failed", 1, 'My "class"\n')
    await run(system, clock, "failed", 1, "own_class")
    assert [one["class"] for one in (await metrics(system))["timeouts"]] == ["other", "own_class"]


FINISHED = """
insert into penstock.finished (id, class, status, account_id, queue_id, kind_id, priority, attempt,
  failures, deferrals, crashes, max_attempts, version, created_at, run_at, started_at, finished_at,
  finished_by_attempt, payload)
select penstock.new_id(t.at), q.succeeded_class, 'succeeded', 0, q.id, k.id, 0, 1, 0, 0, 0, 3, 3,
  t.at, t.at, t.at, t.at, true, '{}'
from (select penstock.clock() - make_interval(secs => n / 30.0) as at
      from generate_series($1::integer, 1, -1) n) t,
  penstock.queue q join penstock.kind k on k.queue_id = q.id
"""


async def test_a_window_reads_its_own_pages_of_a_long_history(
    system: asyncpg.Connection, clock: Clock, scale: Scale
) -> None:
    """By the BRIN indexes: the pages read do not grow with the number of older jobs."""
    rows = scale(100_000, 1_000_000)
    await system.execute(FINISHED, rows)
    await system.execute("vacuum (analyze) penstock.finished")
    until = await clock.now() - timedelta(seconds=60)
    plan = await system.fetchval(
        "explain (analyze, buffers, format json)"
        " select * from penstock._outcomes_between($1::timestamptz, $2::timestamptz)",
        until - timedelta(seconds=10),
        until,
    )
    assert "finished_time_idx" in str(plan) or "finished_at_idx" in str(plan), plan
    top = plan[0]["Plan"]
    assert top["Actual Rows"] == 300
    assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 700
    await clock.advance("10s")
    await roll_up(system)
