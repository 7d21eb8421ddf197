"""Dead workers and suspects: lost advisory locks, and jobs that were lost with others twice."""

import asyncpg

from support import factory
from support.clock import Clock
from support.factory import Row
from support.shapes import Connect
from support.waiting import eventually


async def die(conn: asyncpg.Connection, clock: Clock, n: int) -> list[Row]:
    """Start all jobs on a worker that then stops its heartbeats."""
    worker = await factory.worker(conn, lease="15 seconds")
    rows = await factory.claim(conn, worker, limit=n)
    for row in rows:
        if row["losses"] >= 2:
            await conn.fetchval(
                "select penstock.mark_only_suspect($1, $2, $3)", worker, row["id"], row["attempt"]
            )
    await clock.advance("30s")
    await factory.recover(conn)
    await clock.advance("2m")
    return rows


async def test_a_job_that_keeps_killing_its_workers_fails(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """S2, S3: two losses with others do not count; then it is a suspect and fails after four."""
    await factory.queue(conn)
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    for _ in range(2):
        assert len(await die(conn, clock, 2)) == 2
    deaths = 0
    while not await conn.fetchval("select count(*) from penstock.finished"):
        await die(conn, clock, 2)
        deaths += 1
        assert deaths <= 10
    shown = [await factory.read(conn, job) for job in jobs]
    failed = [job for job in shown if job["status"] == "failed"]
    assert [job["error"]["reason"] for job in failed] == ["stuck_exhausted"]
    assert failed[0]["recovery"]["count"] == 3


async def test_a_suspect_that_succeeds_is_finished(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    for _ in range(2):
        await die(conn, clock, 2)
    worker = await factory.worker(conn)
    rows = await factory.claim(conn, worker, limit=2)
    assert {row["losses"] for row in rows} == {2}
    done = await factory.finish(conn, worker, rows)
    assert {row["verdict"] for row in done} == {"done"}


async def test_a_worker_without_sessions_is_lost_at_once(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """E6: long before its lease expires; while one of two sessions is left, it is alive."""
    await factory.queue(conn)
    await factory.submit(conn)
    worker = await factory.worker(conn, lease="1 day")
    await factory.claim(conn, worker)
    sessions = [await connect(), await connect()]
    for session in sessions:
        assert await session.fetchval("select penstock.lock_worker($1)", worker)
    assert await factory.recover(conn) == []
    await sessions[0].close()
    assert await factory.recover(conn) == []
    await sessions[1].close()

    async def recovered() -> bool:
        return [row["outcome"] for row in await factory.recover(conn)] == ["lost"]

    await eventually(recovered, "the lock to vanish with its session")
    assert await conn.fetchval("select alive from penstock.worker_health") is False


async def test_a_worker_without_advisory_locks_has_its_lease_alone(
    conn: asyncpg.Connection,
) -> None:
    """Behind a pooler there are no sessions to hold one."""
    await factory.queue(conn)
    await factory.submit(conn)
    worker = await factory.worker(conn, lease="1 day")
    await factory.claim(conn, worker)
    assert await factory.recover(conn) == []


async def test_a_lock_of_another_database_means_nothing(
    conn: asyncpg.Connection, connect: Connect, migrated: str
) -> None:
    await factory.queue(conn)
    await factory.submit(conn)
    worker = await factory.worker(conn, lease="1 day")
    await factory.claim(conn, worker)
    session = await connect()
    await session.fetchval("select penstock.lock_worker($1)", worker)
    elsewhere = await asyncpg.connect(migrated)
    await elsewhere.execute(f"select pg_advisory_lock_shared({worker})")
    await session.close()

    async def recovered() -> bool:
        return len(await factory.recover(conn)) == 1

    await eventually(recovered, "the worker to be marked as lost")
    await elsewhere.close()


async def test_one_upkeep_at_a_time(conn: asyncpg.Connection, connect: Connect) -> None:
    other = await connect()
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn)
    await factory.claim(conn, worker)
    await conn.execute("select penstock.stop_worker($1)", worker)
    recover_alone = "select * from penstock.recover_jobs(500, '0', true)"
    async with other.transaction():
        await other.fetch("select * from penstock.recover_jobs(0, '0', true)")
        assert await conn.fetch(recover_alone) == []
    assert len(await conn.fetch(recover_alone)) == 1


async def test_marking_a_suspect_waits_for_no_lock_and_blocks_nobody(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """An app's open transaction may lock the job: heartbeat and upkeep must not wait for it."""
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    [row] = await factory.claim(conn, worker)
    app, other = await connect(), await connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", job)
        began = await conn.fetchval(
            "select penstock.mark_only_suspect($1, $2, $3)", worker, job, row["attempt"]
        )
        assert began is False
        assert await other.fetchval("select penstock.beat_worker($1)", worker)
    async with app.transaction():
        await app.execute("select from penstock.worker where id = $1 for update", worker)
        await other.fetch("select * from penstock.recover_jobs()")


async def test_of_two_outcomes_of_one_job_in_a_report_the_later_attempt_counts(
    conn: asyncpg.Connection,
) -> None:
    """L3"""
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    [first] = await factory.claim(conn, worker)
    await factory.finish(conn, worker, [first], "released")
    await factory.claim(conn, worker)
    rows = await conn.fetch(
        "select * from penstock.report_progress($1, $2, $3, $4, null, null)",
        worker,
        [job, job],
        [2, 1],
        ["NEW", "OLD"],
    )
    assert [row["verdict"] for row in rows] == ["done", "stale"]
    assert (await factory.read(conn, job))["stage"] == "NEW"
