"""The fence: only its worker settles an attempt, once. Late results are kept and not applied."""

from uuid import UUID

import asyncpg

from support import factory
from support.clock import Clock
from support.factory import refused
from support.shapes import Connect


async def late_results(conn: asyncpg.Connection) -> list[tuple[UUID, int, object]]:
    rows = await conn.fetch("select job_id, attempt, result from penstock.late_result order by id")
    return [tuple(row) for row in rows]


async def test_a_late_result_changes_nothing_and_is_kept_for_people(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """S12: a worker that was marked as lost returns after another one has claimed its job."""
    await factory.queue(conn)
    slow = await factory.worker(conn, "slow")
    job = await factory.submit(conn)
    late = await factory.claim(conn, slow)
    await clock.advance("16s")
    quick = await factory.worker(conn, "quick")
    await factory.recover(conn)
    [start] = await factory.claim(conn, quick)
    assert (start["id"], start["attempt"]) == (job, 2)

    before = await factory.read(conn, job)
    [verdict] = await factory.finish(conn, slow, late, result="late")
    assert (verdict["verdict"], verdict["status"]) == ("stale", "running")
    assert await factory.read(conn, job) == before
    assert await late_results(conn) == [(job, 1, "late")]
    [verdict] = await factory.finish(conn, quick, [start], result="mine")
    assert verdict["verdict"] == "done"
    assert (await factory.read(conn, job))["result"] == "mine"


async def test_a_late_success_of_a_finished_job_is_kept_too(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn, attempts=1, timeout_seconds=60)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    late = await factory.claim(conn, worker)
    await clock.advance("66s", beats=True)
    await factory.recover(conn)
    assert await factory.status(conn, job) == "failed"
    [verdict] = await factory.finish(conn, worker, late, result="late")
    assert verdict["verdict"] == "stale"
    assert await factory.status(conn, job) == "failed"
    assert await late_results(conn) == [(job, 1, "late")]


async def test_a_late_failure_is_not_kept(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn)
    start = await factory.claim(conn, worker)
    await factory.finish(conn, worker, start, "released")
    for outcome in ("failed", "retry", "released", "snoozed", "cancelled", "deferred"):
        [verdict] = await factory.finish(conn, worker, start, outcome)
        assert verdict["verdict"] == "stale"
    assert await late_results(conn) == []


async def test_a_report_can_be_repeated(conn: asyncpg.Connection) -> None:
    """A worker that lost the answer reports again: nothing is counted twice."""
    await factory.queue(conn, concurrency=2)
    await factory.plan(conn, concurrency=2)
    worker = await factory.worker(conn)
    job = await factory.submit(conn, account="u1")
    start = await factory.claim(conn, worker)
    await factory.finish(conn, worker, start, result=1)
    before = await factory.contents(conn)
    [verdict] = await factory.finish(conn, worker, start, result=1)
    assert verdict["verdict"] == "stale"
    assert await factory.contents(conn) == before
    assert (await factory.read(conn, job))["result"] == 1


async def test_a_repeated_retry_does_not_use_up_another_attempt(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    start = await factory.claim(conn, worker)
    for verdict in ("done", "stale", "stale", "stale"):
        [row] = await factory.finish(conn, worker, start, "retry")
        assert (row["verdict"], row["status"]) == (verdict, "scheduled")
    shown = await factory.read(conn, job)
    assert (shown["failures"], len(shown["attempts"])) == (1, 1)


async def test_another_worker_cannot_settle_an_attempt(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    owner, thief = await factory.worker(conn), await factory.worker(conn)
    job = await factory.submit(conn)
    start = await factory.claim(conn, owner)
    before = await factory.contents(conn)
    for outcome in ("succeeded", "failed", "retry", "released"):
        [verdict] = await factory.finish(conn, thief, start, outcome)
        assert (verdict["verdict"], verdict["status"]) == ("stale", "running")
    with refused(422, "invalid_finish", "worker"):
        await conn.fetch(
            "select * from penstock.finish_jobs(null, $1, array[1], array['succeeded'])", [job]
        )
    assert await factory.contents(conn) == before
    [verdict] = await factory.finish(conn, owner, start)
    assert verdict["verdict"] == "done"


async def test_a_worker_cannot_settle_an_attempt_that_it_has_handed_over(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    [start] = await factory.claim(conn, worker)
    assert await factory.hand_over(conn, worker, start, "t" * 16) == "done"
    [verdict] = await factory.finish(conn, worker, [start])
    assert (verdict["verdict"], verdict["status"]) == ("stale", "awaiting")
    assert await factory.status(conn, job) == "awaiting"
    assert await late_results(conn) == []


async def test_a_locked_account_delays_only_reports_of_its_own_jobs(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await factory.queue(conn, concurrency=10)
    await factory.plan(conn, concurrency=5)
    worker = await factory.worker(conn)
    busy = await factory.submit(conn, account="busy")
    retried = await factory.submit(conn, account="busy")
    free = await factory.submit(conn, account="free")
    nobody = await factory.submit(conn)
    starts = {row["id"]: row for row in await factory.claim(conn, worker, limit=9)}
    app = await connect()
    async with app.transaction():
        await factory.submit(app, account="busy")
        done = await factory.finish(conn, worker, [starts[j] for j in (busy, free, nobody)])
        done += await factory.finish(conn, worker, [starts[retried]], "retry")
    told = {row["job_id"]: (row["verdict"], row["status"]) for row in done}
    assert told == {
        busy: ("locked", "running"),
        retried: ("locked", "running"),
        free: ("done", "succeeded"),
        nobody: ("done", "succeeded"),
    }
    assert await late_results(conn) == []
    again = await factory.finish(conn, worker, [starts[busy], starts[retried]])
    assert {row["verdict"] for row in again} == {"done"}


async def test_an_attempt_older_than_its_accounts_limit_can_be_settled(
    conn: asyncpg.Connection,
) -> None:
    """A worker names the accounts whose slots its attempts took; it cannot know of later slots."""
    await factory.queue(conn)
    await factory.plan(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn, account="u1")
    [start] = await factory.claim(conn, worker)
    assert start["slot_account"] is None
    await conn.execute("select penstock.edit_plan('free', $1)", {"concurrency": 1})
    assert await conn.fetchval("select running from penstock.account where name = 'u1'") == 1
    finish = (
        "select verdict from penstock.finish_jobs($1, array[$2::uuid], array[1],"
        " array['succeeded'], p_accounts => '{}')"
    )
    assert await conn.fetchval(finish, worker, start["id"]) == "done"
    assert await conn.fetchval("select running from penstock.account where name = 'u1'") == 0
