"""Races around ownership: one owner at a time, one outcome, one budget, one new job per retry.

As in test_races.py, each test also runs on a naive variant, on which the error occurs.
"""

import asyncpg

from support import factory
from support.clock import Clock
from support.interleave import Step
from support.naive_functions import both, breaches, spoil
from support.shapes import Connect

# A guard that is always true.
OPEN_FENCE = (
    ("and j.attempt = t.attempt", "and true"),
    (
        "and (p_worker is null or j.worker_id is not distinct from p_worker)",
        "and true",
    ),
)


async def let_recoveries_settle_what_they_have_read(conn: asyncpg.Connection) -> None:
    """Install a naive variant that waits for the row and does not check it again."""
    await spoil(
        conn,
        "finish.sql:_settle_jobs",
        ("for update of j skip locked", "for update of j"),
        ("where j.attempt = t.attempt and j.status in ('running', 'awaiting')", "where true"),
    )
    await spoil(
        conn,
        "finish.sql:_requeue_jobs",
        ("and j.attempt = t.attempt", "and true"),
        ("and j.status in ('running', 'awaiting')", "and true"),
        ("    from locked h\n  )\n", "    from locked h on conflict do nothing\n  )\n"),
    )


@both
async def test_of_a_recovered_worker_and_its_successor_only_the_successor_counts(
    conn: asyncpg.Connection, connect: Connect, clock: Clock, naive: bool
) -> None:
    """S12, M4: the first worker's report waits for the recovery, and comes too late."""
    if naive:  # settles an attempt by the job's id alone
        await spoil(conn, "finished.sql:_move_to_finished", *OPEN_FENCE)
        await spoil(conn, "finish.sql:_settle_jobs", ("where j.attempt = t.attempt and", "where"))
    await factory.queue(conn)
    slow, successor = [await factory.worker(conn, name) for name in ("slow", "successor")]
    job = await factory.submit(conn)
    first = await factory.claim(conn, slow)
    await clock.advance("20s")
    await conn.execute("select penstock.beat_worker($1)", successor)
    upkeep, late = await connect(), await connect()
    async with upkeep.transaction():
        assert [row["verdict"] for row in await factory.recover(upkeep)] == ["done"]
        [second] = await factory.claim(upkeep, successor)
        assert second["attempt"] == 2
        # It cannot have the job: who reports is told to try again, and nobody waits.
        [told] = await factory.finish(late, slow, first, result="first")
        assert told["verdict"] == "locked"
    [told] = await factory.finish(late, slow, first, result="first")
    assert told["verdict"] == ("done" if naive else "stale")
    [told] = await factory.finish(conn, successor, [second], result="second")
    assert told["verdict"] == ("stale" if naive else "done")
    assert (await factory.read(conn, job))["result"] == ("first" if naive else "second")


@both
async def test_a_report_and_a_recovery_of_one_attempt_settle_it_once(
    conn: asyncpg.Connection, connect: Connect, clock: Clock, naive: bool
) -> None:
    """S12: the recovery has read the attempt while the report that settles it is not committed."""
    if naive:
        await let_recoveries_settle_what_they_have_read(conn)
    await factory.queue(conn, delay_seconds=0)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    started = await factory.claim(conn, worker)
    await clock.advance("125s", beats=True)
    reporter, upkeep = await connect(), await connect()
    async with reporter.transaction():
        await factory.finish(reporter, worker, started, "retry")
        recovery = Step(upkeep, factory.recover(upkeep))
        assert await recovery.waits(conn) is naive
    await recovery
    assert (await factory.read(conn, job))["failures"] == (2 if naive else 1)


@both
async def test_two_recoveries_of_one_attempt_count_one_crash(
    conn: asyncpg.Connection, connect: Connect, clock: Clock, naive: bool
) -> None:
    """S13, S2: both have read the attempt before either has settled it."""
    if naive:
        await let_recoveries_settle_what_they_have_read(conn)
    await factory.queue(conn, stuck_after_seconds=60)
    worker = await factory.worker(conn)
    job = await factory.submit(conn, timeout_seconds=3600)
    await factory.claim(conn, worker)
    await clock.advance("2m", beats=True)
    one, other = await connect(), await connect()
    async with one.transaction():
        assert [row["outcome"] for row in await factory.recover(one)] == ["stuck"]
        second = Step(other, factory.recover(other))
        assert await second.waits(conn) is naive
    await second
    assert (await factory.read(conn, job))["recovery"]["count"] == (2 if naive else 1)


@both
async def test_jobs_of_a_claim_that_commits_after_its_worker_was_lost_are_recovered(
    conn: asyncpg.Connection, connect: Connect, clock: Clock, naive: bool
) -> None:
    """E12: the worker is marked as lost while its claim is not committed."""
    if naive:  # clears a lost worker as soon as it sees none of its jobs
        await spoil(conn, "recover.sql:recover_jobs", ("'10 minutes'", "'-1 second'"))
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    claimer = await connect()
    async with claimer.transaction():
        await factory.claim(claimer, worker)
        await clock.advance("20s")
        assert await factory.recover(conn) == []
    assert bool(await breaches(conn)) is naive
    assert [row["job_id"] for row in await factory.recover(conn)] == ([] if naive else [job])


@both
async def test_a_job_is_started_by_one_of_two_claims(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """M4, E9"""
    if naive:  # reads, then starts, without a lock and without a second check
        await spoil(
            conn,
            "choose.sql:_hold_plain",
            (
                "order by j.rank limit p_limit for no key update skip locked",
                "order by j.rank limit p_limit",
            ),
        )
        await spoil(conn, "claim.sql:claim_jobs", ("and j.status = 'queued' -- guard: queued", ""))
    await factory.queue(conn)
    first, second = [await factory.worker(conn, name) for name in ("first", "second")]
    job = await factory.submit(conn)
    one, other = await connect(), await connect()
    async with one.transaction():
        assert [row["id"] for row in await factory.claim(one, first)] == [job]
        claim = Step(other, factory.claim(other, second))
        assert await claim.waits(conn) is naive
    assert [row["id"] for row in await claim] == ([job] if naive else [])


@both
async def test_a_cancel_during_a_claim_requests_cancellation_of_the_running_job(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G13: a job that has just started is not deleted together with its slot."""
    if naive:  # cancels the job that it read as waiting
        await spoil(
            conn,
            "lifecycle.sql:_finish_waiting",
            ("and j.status in ('scheduled', 'queued') -- guard: waits", ""),
        )
        await spoil(
            conn,
            "finished.sql:_move_to_finished",
            ("and j.status = any (p_from) -- guard: expected status", ""),
        )
    await factory.queue(conn, concurrency=1)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    behind = await factory.submit(conn)
    claimer, app = await connect(), await connect()
    async with claimer.transaction():
        started = await factory.claim(claimer, worker)
        cancel = Step(app, app.execute("select penstock.cancel_job($1)", job))
        assert await cancel.waits(conn)
    await cancel
    assert await factory.status(conn, job) == ("cancelled" if naive else "running")
    assert bool(await breaches(conn)) is naive
    [verdict] = await factory.finish(conn, worker, started, "retry")
    assert (verdict["verdict"], verdict["status"]) == (
        ("stale", None) if naive else ("done", "cancelled")
    )
    # The slot of a deleted job stays taken for ever.
    claimed = [row["id"] for row in await factory.claim(conn, worker)]
    assert claimed == ([] if naive else [behind])


@both
async def test_two_concurrent_retries_submit_one_new_job(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """M15"""
    if naive:  # checks without a lock whether the job was retried
        await spoil(
            conn,
            "retry.sql:retry_job",
            ("where f.id = retry_job.id for no key update", "where f.id = retry_job.id"),
        )
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker), "failed")
    retry = "select penstock.retry_job($1)"
    one, other = await connect(), await connect()
    async with one.transaction():
        first = await one.fetchval(retry, job)
        click = Step(other, other.fetchval(retry, job))
        assert await click.waits(conn) is True  # naive: at the end, when it writes retried_by
    second = await click
    assert (first["id"] == second["id"]) is not naive
    assert await conn.fetchval("select count(*) from penstock.job") == (2 if naive else 1)
