"""History: partitions are made ahead, kept for the queue's retention, and dropped."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import refused
from support.shapes import Connect

# A Tuesday in the middle of a week of partitions, which begin on Mondays.
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


async def run(conn: asyncpg.Connection, outcome: str = "succeeded", **job: Any) -> UUID:
    """Submit, start and settle a job."""
    worker = await factory.worker(conn)
    number = await factory.submit(conn, **job)
    [verdict] = await factory.finish(conn, worker, await factory.claim(conn, worker), outcome)
    assert verdict["status"] == outcome
    return number


async def is_kept(conn: asyncpg.Connection, job: UUID) -> bool:
    return bool(await conn.fetchval("select count(*) from penstock.finished where id = $1", job))


async def partition_of(conn: asyncpg.Connection, job: UUID, parent: str = "finished") -> str:
    key = "id" if parent == "finished" else "job_id"
    name: str = await conn.fetchval(
        f"select tableoid::regclass::text from penstock.{parent} where {key} = $1 limit 1", job
    )
    return name


async def test_partitions_are_made_fourteen_days_ahead_and_only_once(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await conn.execute("update penstock.setting set partitions_ahead = default")
    await clock.freeze(NOON)
    await factory.queue(conn)
    assert await conn.fetchval("select penstock.make_partitions()") > 0
    assert await conn.fetchval("select penstock.make_partitions()") == 0
    for days in (0, 1, 13.9):
        await clock.advance(timedelta(days=days))
        job = await run(conn)
        assert not (await partition_of(conn, job)).endswith("_rest"), f"{days} days ahead"
        await clock.freeze(NOON)


async def test_a_later_pass_makes_the_partitions_missing_by_then(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await conn.execute("update penstock.setting set partitions_ahead = default")
    await clock.freeze(NOON)
    await factory.queue(conn)
    await conn.execute("select penstock.make_partitions()")
    await clock.advance("1d")
    # One more day for jobs that are kept 7 days; the weeks of those kept longer are still enough.
    assert await conn.fetchval("select penstock.make_partitions()") == 1
    await clock.advance("7d")
    assert await conn.fetchval("select penstock.make_partitions()") > 7


async def test_rows_written_while_no_upkeep_ran_move_into_their_partition(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn, delay_seconds=0)
    await conn.execute("select penstock.make_partitions()")
    await clock.advance("30d")
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker), "retry")
    await factory.finish(conn, worker, await factory.claim(conn, worker), result=7)
    before = await factory.read(conn, job)
    assert (await partition_of(conn, job)).endswith("_rest")
    assert (await partition_of(conn, job, "attempt")).endswith("_rest")
    await conn.execute("select penstock.make_partitions()")
    assert not (await partition_of(conn, job)).endswith("_rest")
    assert not (await partition_of(conn, job, "attempt")).endswith("_rest")
    assert await factory.read(conn, job) == before


async def test_successes_are_kept_seven_days_and_failures_ninety(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """M14"""
    await clock.freeze(NOON)
    await factory.queue(conn)
    succeeded, cancelled = await run(conn), await run(conn, "cancelled")
    failed = await run(conn, "failed")

    async def kept() -> list[bool]:
        await factory.prune(conn)
        return [await is_kept(conn, job) for job in (succeeded, cancelled, failed)]

    await clock.advance(timedelta(days=7, seconds=-1))
    assert await kept() == [True, True, True]
    await clock.advance("1d")  # the partition of the day is dropped as a whole
    assert await kept() == [False, False, True]
    with refused(404, "unknown_job", "id") as refusal:
        await factory.read(conn, succeeded)
    assert "retention" in refusal["hint"]
    await clock.advance(timedelta(days=82))
    assert await kept() == [False, False, True]
    await clock.advance("8d")
    assert await kept() == [False, False, False]


async def test_a_queue_keeps_its_jobs_for_its_retention(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """M14"""
    await factory.queue(conn, "forever", retention_seconds="forever")
    await factory.queue(conn, "hour", retention_seconds=3600)
    for_ever = await run_in(conn, "forever")
    hour = await run_in(conn, "hour")
    await clock.advance(timedelta(days=2))
    await factory.prune(conn)
    assert (await is_kept(conn, for_ever), await is_kept(conn, hour)) == (True, False)
    await clock.advance(timedelta(days=3650))
    await factory.prune(conn)
    assert await is_kept(conn, for_ever)


async def run_in(conn: asyncpg.Connection, queue: str) -> UUID:
    worker = await factory.worker(conn)
    job = await factory.submit(conn, queue)
    await factory.finish(conn, worker, await factory.claim(conn, worker, queue))
    return job


async def test_pruning_drops_partitions_and_touches_no_live_job(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """M14: at any size, old jobs are removed in a moment."""
    await factory.queue(conn)
    job = await run(conn)
    live = await factory.submit(conn)
    partition = await partition_of(conn, job)
    await clock.advance("9d")
    gone = await factory.prune(conn)
    assert partition.removeprefix("penstock.") in gone
    assert await conn.fetchval("select to_regclass($1)", partition) is None
    assert await factory.status(conn, live) == "queued"


async def test_retention_counts_from_when_a_job_finished(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn, lease="100 days")
    job = await factory.submit(conn, timeout_seconds=86400 * 50)
    start = await factory.claim(conn, worker)
    await clock.advance("6d")
    await factory.finish(conn, worker, start)
    await clock.advance("6d")
    await factory.prune(conn)
    assert await is_kept(conn, job)
    await clock.advance("2d")
    await factory.prune(conn)
    assert not await is_kept(conn, job)


async def test_a_job_older_than_every_partition_is_kept_and_pruned(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    job = await factory.submit(conn, delay_seconds=30 * 86400)
    await clock.advance("31d")
    await factory.prune(conn)
    worker = await factory.worker(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    assert (await partition_of(conn, job)).endswith("_rest")
    await clock.advance("6d")
    await factory.prune(conn)
    assert await is_kept(conn, job)
    await clock.advance("2d")
    await factory.prune(conn)
    assert not await is_kept(conn, job)


async def test_single_rows_are_deleted_in_bounded_steps(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await conn.execute(
        "insert into penstock.idempotency (scope, key, fingerprint, job_id, deduplicated,"
        " created_at) select 's', n::text, '', penstock.new_id(penstock.clock()), false,"
        " penstock.clock() from generate_series(1, 25) n"
    )
    await clock.advance("8d")
    steps = []
    while rows := await conn.fetch(
        "select rows from penstock.prune_history(10) where what = 'idempotency'"
    ):
        steps.append(rows[0]["rows"])
    assert steps == [10, 10, 5]


async def test_attempts_are_kept_as_long_as_their_job(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    start = await factory.claim(conn, worker)
    await factory.finish(conn, worker, start, "snoozed", delay="200 days")
    for days in (60, 60, 60, 21):
        await clock.advance(timedelta(days=days))
        await factory.prune(conn)
        assert len((await factory.read(conn, job))["attempts"]) == 1
    worker = await factory.worker(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    await clock.advance("6d")
    await factory.prune(conn)
    assert len((await factory.read(conn, job))["attempts"]) == 2
    await clock.advance("2d")
    await factory.prune(conn)
    assert await conn.fetchval("select count(*) from penstock.attempt") == 0


async def test_idempotency_keys_are_kept_for_a_week_and_late_results_for_90_days(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await conn.execute("select penstock.submit_job('q', '{}', idempotency_key => 'k')")
    worker = await factory.worker(conn)
    start = await factory.claim(conn, worker)
    await factory.finish(conn, worker, start, "released")
    await factory.finish(conn, worker, start, result="late")

    async def remembered() -> tuple[int, int]:
        await factory.prune(conn)
        row = await conn.fetchrow(
            "select (select count(*) from penstock.idempotency) as keys,"
            " (select count(*) from penstock.late_result) as late_results"
        )
        assert row
        return row["keys"], row["late_results"]

    await clock.advance("6.9d")
    assert await remembered() == (1, 1)
    await clock.advance("0.2d")
    assert await remembered() == (0, 1)
    await clock.advance("83d")
    assert await remembered() == (0, 0)


@pytest.mark.parametrize("day", [0, 1])  # in the middle of a week, and at the beginning of one
async def test_making_and_pruning_partitions_ends(
    conn: asyncpg.Connection, clock: Clock, day: int
) -> None:
    """Pruning must not drop partitions that were just made, or the two would repeat for ever."""
    await clock.freeze(NOON + timedelta(days=day))
    await factory.queue(conn, retention_seconds=3600)
    await clock.advance("40d")
    await factory.prune(conn)
    assert await conn.fetchval("select penstock.make_partitions()") == 0
    assert await conn.fetch("select * from penstock.prune_history()") == []


async def test_a_reader_delays_the_drop_and_nothing_else(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    """The reader is a backup that runs for hours, or an app's transaction that has read its job."""
    await conn.execute("update penstock.setting set partitions_ahead = default")
    await factory.queue(conn)
    job = await run(conn)
    await conn.execute("select penstock.submit_job('q', '{}', idempotency_key => 'k')")
    await clock.advance("9d")
    reader = await connect()
    async with reader.transaction():
        assert await reader.fetchval("select count(*) from penstock.finished") == 1
        assert await conn.fetchval("select penstock.make_partitions()") > 0  # of attempts
        await conn.execute("select penstock.prune_history()")
        assert await is_kept(conn, job)
        assert await conn.fetchval("select count(*) from penstock.idempotency") == 0
    await factory.prune(conn)
    assert not await is_kept(conn, job)


async def test_steps_and_chunks_are_deleted_with_their_job(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """Although a failed job of the same week is kept for longer."""
    await factory.queue(conn, attempts=1)
    worker = await factory.worker(conn, lease="1000 days")
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    rows = await factory.claim(conn, worker, limit=2)
    for row in rows:
        await conn.execute("select penstock.keep_step($1, $2, 1, 's', '1')", worker, row["id"])
        await conn.execute(
            "select penstock.append_chunks($1, array[$2::uuid], array[1], array[1],"
            " array['1'::jsonb])",
            worker,
            row["id"],
        )
    await factory.finish(conn, worker, rows[:1])
    await factory.finish(conn, worker, rows[1:], "failed", error={"class": "bug", "message": "x"})
    await clock.advance("20d", beats=True)
    for _ in range(5):
        await conn.execute("select penstock.prune_history()")
    kept = [row["id"] for row in await conn.fetch("select id from penstock.finished")]
    assert len(kept) == 1
    for table in ("step", "chunk"):
        left = await conn.fetch(f"select job_id from penstock.{table}")
        assert [row["job_id"] for row in left] == kept
    assert set(kept) < set(jobs)


async def test_old_workers_and_callbacks_without_a_handler_are_deleted(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await factory.worker(conn)
    await conn.execute("select penstock.stop_worker($1)", worker)
    await conn.execute(
        "insert into penstock.pending_on_finish (job_id, kind_id, next_at)"
        " values (gen_random_uuid(), 1, penstock.clock())"
    )
    await clock.advance("11m")
    await conn.execute("select penstock.recover_jobs()")
    await clock.advance("31d")
    await conn.execute("select penstock.prune_history()")
    assert await conn.fetchval("select count(*) from penstock.worker") == 0
    assert await conn.fetchval("select count(*) from penstock.pending_on_finish") == 0
