"""Plans that a session made while there were few jobs do not read all jobs added since."""

import asyncio

import asyncpg
import pytest

from support import factory
from support.effort import fill, measured
from support.shapes import Connect


@pytest.fixture
async def worker(conn: asyncpg.Connection) -> int:
    # It would also refresh the planner's statistics now and then.
    for table in ("job", "account", "lane"):
        await conn.execute(f"alter table penstock.{table} set (autovacuum_enabled = off)")
    await factory.queue(conn)
    return await factory.worker(conn, lease="1 day")


# Calls for one job that is known by its key, in a session that made them when there was only one.
ONE_JOB = {
    "submitted": "select * from penstock.submit_one('q', '{{}}')",
    "of an account": "select * from penstock.submit_one('q', '{{}}', 'a')",
    "deduplicated": "select * from penstock.submit_one('q', '{{}}', 'a', 'key')",
    "idempotent": "select * from penstock.submit_one('q', '{{}}', p_key => 'key')",
    "submitted in SQL": "select penstock.submit_job('q', '{{}}')",
    "accepted": "select penstock.accept_job('q', '{{}}')",
    "read": "select penstock.read_job('{job}')",
    "read by its owner": "select * from penstock.read_jobs_of('{{{job}}}', '{{a}}')",
    "inspected": "select penstock.inspect_job('{job}')",
    "cancelled": "select penstock.cancel_job('{job}')",
    "begun alone": "select penstock.mark_only_suspect({worker}, '{job}', 1)",
    "found by its callback": "select * from penstock.find_callbacks('{{{job}}}')",
    "previewed": (
        "select * from penstock.preview_finish({worker}, '{job}', 1, 'succeeded', '{{}}', null)"
    ),
}
# Calls for many jobs.
SOME_JOBS = {
    "accepted": "select * from penstock.accept_jobs('q', '{{q}}', array['{{}}'::jsonb])",
    "claimed": "select * from penstock.claim_jobs({worker}, 'q', 1)",
    "finished": (
        "select * from penstock.finish_jobs({worker}, '{{{job}}}', '{{1}}', '{{succeeded}}')"
    ),
    "released": "select * from penstock.finish_jobs({worker}, '{{{job}}}', '{{1}}', '{{retry}}')",
    "handed over": (
        "select * from penstock.hand_over_jobs({worker}, '{{{job}}}', '{{1}}', '{{{token}}}')"
    ),
    "called back for": (
        "select * from penstock.resolve_callbacks('{{{job}}}', '{{1}}', '{{{token}}}',"
        " '{{succeeded}}')"
    ),
}


@pytest.fixture(params=[False, True], ids=["waiting", "running"])
async def one_job(
    conn: asyncpg.Connection, worker: int, request: pytest.FixtureRequest
) -> dict[str, object]:
    """Submit the only job, and give the planner its statistics."""
    job = await factory.submit(conn, account="a")
    if request.param:
        await factory.claim(conn, worker)
    await conn.execute("vacuum analyze penstock.job")
    return {"job": job, "worker": worker, "token": "t" * 16}


async def plan(conn: asyncpg.Connection, sql: str) -> None:
    """Run it ten times and roll back: a statement's first plans may be for its arguments alone."""
    for _ in range(10):
        undone = conn.transaction()
        await undone.start()
        await conn.fetch(sql)
        await undone.rollback()


@pytest.mark.parametrize("call", ONE_JOB.values(), ids=list(ONE_JOB))
async def test_plans_made_for_one_job_do_not_read_thousands(
    conn: asyncpg.Connection, one_job: dict[str, object], call: str
) -> None:
    """A session keeps its plans: some of them read all jobs that were added since."""
    sql = call.format(**one_job)
    await plan(conn, sql)
    await fill(conn, 2_000)

    work = await measured(conn, sql)

    assert work.sequential_scans == 0
    assert work.job_rows <= 500


@pytest.mark.parametrize("call", SOME_JOBS.values(), ids=list(SOME_JOBS))
async def test_plans_made_for_few_jobs_are_dropped_when_there_are_thousands(
    conn: asyncpg.Connection, one_job: dict[str, object], call: str
) -> None:
    """Otherwise a burst after a quiet time ran at a fifteenth of its speed, for up to a minute."""
    sql = call.format(**one_job)
    await plan(conn, sql)
    assert not await conn.fetchval("select penstock._refresh_statistics()")
    await fill(conn, 2_000)

    assert await conn.fetchval("select penstock._refresh_statistics()")

    await plan(conn, sql)
    work = await measured(conn, sql)
    assert work.sequential_scans == 0
    assert work.job_rows <= 500
    assert not await conn.fetchval("select penstock._refresh_statistics()")


async def test_the_planner_gets_statistics_of_accounts_and_lanes(
    conn: asyncpg.Connection, worker: int
) -> None:
    """Many customers submit at the same time, each with a lane of its own."""
    await factory.plan(conn, concurrency=1)
    await conn.execute("vacuum analyze penstock.account, penstock.lane")
    await fill(conn, 1_500, accounts=1_500)

    assert await conn.fetchval("select penstock._refresh_statistics()")

    statistics = await conn.fetch(
        "select relname, reltuples from pg_class where oid = any ($1::regclass[])",
        ["penstock.account", "penstock.lane"],
    )
    assert all(row["reltuples"] >= 1_500 for row in statistics), statistics
    assert await factory.claim(conn, worker)


async def test_refreshing_statistics_does_not_wait_for_a_vacuum(
    conn: asyncpg.Connection, worker: int, connect: Connect
) -> None:
    """Autovacuum holds this lock, and would be cancelled for us."""
    await conn.execute("vacuum analyze penstock.job")
    await fill(conn, 2_000)
    other = await connect()
    async with other.transaction():
        await other.execute("lock table penstock.job in share update exclusive mode")
        async with asyncio.timeout(5):
            assert not await conn.fetchval("select penstock._refresh_statistics()")
        few = "select penstock._has_few_by_statistics('penstock.job')"
        assert await conn.fetchval(few)
    assert await conn.fetchval("select penstock._refresh_statistics()")
    assert not await conn.fetchval(few)
    assert worker


async def test_cancelling_one_job_leaves_no_plan_that_reads_all_jobs(
    conn: asyncpg.Connection, worker: int
) -> None:
    """The first caller of a shared function makes its plan, with that caller's settings."""
    job = await factory.submit(conn)
    await conn.execute("vacuum analyze penstock.job")
    await plan(conn, f"select penstock._finish_waiting('{{{job}}}', 'cancelled', null, null)")
    await fill(conn, 2_000)

    work = await measured(conn, f"select penstock.cancel_job('{job}')")

    assert (work.sequential_scans, worker > 0) == (0, True)
    assert work.job_rows <= 500


async def test_no_function_that_disables_a_plan_type_uses_jit(conn: asyncpg.Connection) -> None:
    """Before Postgres 18 a disabled plan type has a cost of ten billion, and JIT begins at 100,000.

    On a server with JIT, which is usual, a submit took a second instead of a millisecond.
    """
    compiled = await conn.fetch(
        "select proname from pg_proc where pronamespace = 'penstock'::regnamespace"
        " and array_to_string(proconfig, ' ') like '%enable_%'"
        " and not 'jit=off' = any (proconfig)"
    )
    assert compiled == []
