"""The work of a claim and a finish depends on the batch, never on the backlog or the history.

Postgres counts it within one transaction: rows fetched and read from each table, scans of each
index, and pages touched, with everything that the functions do. No times are measured.
"""

import asyncpg
import pytest

from support import factory
from support.effort import Work, fill, measured, warmed
from support.shapes import Scale

BATCH = 100

# Rows of the job table a claim or finish may touch for each job of its batch. A claim locks, reads
# and writes a job, and reads the next one of its lane; a finish finds and deletes it.
ROWS_PER_JOB = 6

# Pages, of all tables and indexes: each row read or written costs a few on the way down the tree.
PAGES_PER_JOB = 80


def claim_sql(limit: int = BATCH) -> str:
    return f"select * from penstock.claim_jobs($1, 'q', {limit})"


async def finish_work(conn: asyncpg.Connection, worker: int) -> Work:
    """Measure the finish of everything this worker runs."""
    running = await conn.fetchrow(
        "select array_agg(id) as ids, array_agg(attempt) as attempts,"
        " array_agg('succeeded'::text) as outcomes from penstock.job where worker_id = $1",
        worker,
    )
    assert running
    return await measured(
        conn, "select * from penstock.finish_jobs($1, $2, $3, $4)", worker, *running
    )


@pytest.fixture
async def worker(conn: asyncpg.Connection) -> int:
    await factory.queue(conn)
    return await factory.worker(conn, lease="1 day")


@pytest.mark.timeout(600)
async def test_a_claim_touches_its_batch_not_the_backlog(
    conn: asyncpg.Connection, worker: int, scale: Scale
) -> None:
    """With 100,000 queued jobs (1,000,000 in the long form)."""
    await fill(conn, scale(100_000, 1_000_000))
    work = await warmed(conn, claim_sql(), worker)
    assert work.sequential_scans == 0
    assert work.job_rows <= BATCH * ROWS_PER_JOB
    assert work.pages <= BATCH * PAGES_PER_JOB


@pytest.mark.timeout(600)
async def test_a_claim_does_not_read_the_jobs_of_a_blocked_account(
    conn: asyncpg.Connection, worker: int, scale: Scale
) -> None:
    """One account with 20,000 jobs (200,000) in front, of which one runs, as its limit allows."""
    await factory.plan(conn, concurrency=1)
    await fill(conn, scale(20_000, 200_000), account="greedy")
    [first] = await factory.claim(conn, worker, limit=BATCH)
    await fill(conn, 1_000, accounts=500)
    await conn.execute("analyze penstock.job, penstock.lane")

    work = await warmed(conn, claim_sql(), worker)

    assert work.sequential_scans == 0
    assert work.job_rows <= BATCH * ROWS_PER_JOB
    assert work.pages <= BATCH * PAGES_PER_JOB
    owners = await conn.fetch(
        "select a.name, count(*) as n from penstock.job j"
        " join penstock.account a on a.id = j.account_id where j.status = 'running' group by 1"
    )
    assert len(owners) == BATCH + 1
    assert {row["n"] for row in owners} == {1}
    assert await factory.finish(conn, worker, [first])


@pytest.mark.timeout(600)
async def test_a_claim_closes_the_lanes_of_full_accounts_once(
    conn: asyncpg.Connection, worker: int
) -> None:
    """Another queue has filled the limits of the accounts of 300 open lanes in front."""
    await factory.plan(conn, concurrency=1)
    await factory.queue(conn, "other")
    await factory.submit_rows(conn, [{"kind": "other", "account": f"a{n}"} for n in range(300)])
    await fill(conn, 3_000, accounts=300)
    assert len(await factory.claim(conn, worker, "other", 300)) == 300
    await factory.submit(conn, account="free")

    [found] = await factory.claim(conn, worker, limit=BATCH)
    assert found["account"] == "free"
    work = await warmed(conn, claim_sql(), worker)

    assert work.job_rows <= 2
    assert work.pages <= 100
    assert await conn.fetchval("select count(*) from penstock.lane where open and waiting > 0") == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("accounts", [0, 500])
async def test_a_finish_uses_the_primary_key_after_20000_finished_jobs(
    conn: asyncpg.Connection, worker: int, accounts: int
) -> None:
    """Every index on running rows has dead entries of 20,000 attempts; none is read."""
    await factory.plan(conn, concurrency=1)
    await fill(conn, 20_100 if accounts == 0 else 5_000, accounts=accounts)
    for _ in range(200 if accounts == 0 else 45):
        await factory.finish(conn, worker, await factory.claim(conn, worker, limit=BATCH))
    await conn.execute("analyze penstock.job")
    assert len(await factory.claim(conn, worker, limit=BATCH)) == BATCH

    work = await finish_work(conn, worker)

    assert work.sequential_scans == 0
    assert set(work.index_scans) == {"penstock.job_pkey"}
    assert work.job_rows <= BATCH * ROWS_PER_JOB
    assert work.pages <= BATCH * PAGES_PER_JOB


@pytest.mark.timeout(600)
async def test_a_recovery_reads_running_jobs_and_no_waiting_ones(
    conn: asyncpg.Connection, scale: Scale
) -> None:
    """100 jobs of a lost worker, and 50,000 waiting jobs behind them (1,000,000)."""
    await factory.queue(conn)
    await fill(conn, scale(50_000, 1_000_000))
    lost = await factory.worker(conn, "lost", lease="1 hour")
    assert len(await factory.claim(conn, lost, limit=BATCH)) == BATCH
    await conn.execute("analyze penstock.job")
    await conn.execute("update penstock.worker set beat_at = '-infinity' where id = $1", lost)

    work = await warmed(conn, "select * from penstock.recover_jobs()")

    assert work.sequential_scans == 0
    assert work.job_rows <= BATCH * ROWS_PER_JOB * 2
    assert work.pages <= BATCH * PAGES_PER_JOB
    assert await conn.fetchval("select count(*) from penstock.job where status = 'running'") == 0


async def test_an_idle_claim_touches_a_handful_of_pages(
    conn: asyncpg.Connection, worker: int
) -> None:
    """Idle workers poll every second: that must cost nearly nothing."""
    work = await warmed(conn, claim_sql(), worker)
    assert work.job_rows == 0
    assert work.pages <= 100


@pytest.mark.timeout(600)
async def test_an_outcome_reported_twice_does_not_read_the_history(
    conn: asyncpg.Connection, worker: int, scale: Scale
) -> None:
    """After 5,000 finished jobs (100,000), where a late batch once took seconds."""
    await fill(conn, scale(5_000, 100_000))
    late: list[asyncpg.Record] = []
    while batch := await factory.claim(conn, worker, limit=1_000):
        await factory.finish(conn, worker, batch)
        late = batch[:BATCH]

    work = await warmed(
        conn,
        "select * from penstock.finish_jobs($1, $2, $3, $4)",
        worker,
        [row["id"] for row in late],
        [row["attempt"] for row in late],
        ["succeeded"] * BATCH,
    )

    assert work.pages <= BATCH * PAGES_PER_JOB
