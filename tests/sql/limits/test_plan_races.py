"""Plans and payments beside an app's open transaction: no other session waits for it."""

import asyncpg
import pytest

from sql.credits.test_credits import rich
from support import factory
from support.clock import Clock
from support.interleave import Step
from support.shapes import Connect


async def does_not_wait(conn: asyncpg.Connection, call: Step[object]) -> None:
    assert not await call.waits(conn)
    await call


async def test_a_cancel_that_met_a_new_limit_does_not_hold_a_lane_without_its_account(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """Otherwise every claim of the queue waits behind the app that cancels."""
    await factory.queue(conn)
    await factory.plan(conn)
    await factory.plan(conn, "small", default=False, concurrency=1)
    worker = await factory.worker(conn)
    first, *_ = [await factory.submit(conn, account=name) for name in ("a", "a", "b")]
    operator, app, claimer = [await connect() for _ in range(3)]
    change = operator.transaction()
    await change.start()
    await operator.execute("select penstock.set_account_plan('a', 'small')")
    async with app.transaction():
        cancel = Step(app, app.execute("select penstock.cancel_job($1)", first))
        assert await cancel.waits(conn)
        await change.commit()
        await cancel
        await does_not_wait(conn, Step(claimer, factory.claim(claimer, worker, limit=5)))


async def test_a_change_of_plan_does_not_stop_queues_for_a_job_that_an_app_holds(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, "free", priority=50)
    await factory.plan(conn, "small", default=False, priority=10, concurrency=1)
    job = await factory.submit(conn, account="a")
    app, operator = await connect(), await connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", job)
        change = operator.execute("select penstock.set_account_plan('a', 'small')")
        await does_not_wait(conn, Step(operator, change))


async def test_pruning_does_not_wait_for_a_submit_that_is_counted(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    """M14"""
    await factory.queue(conn)
    await factory.plan(conn, per_hour=100)
    await factory.submit(conn, account="a")
    await clock.advance("2h")
    app = await connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        await conn.fetch("select what from penstock.prune_history()")


async def test_imported_jobs_were_counted_and_paid_before(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await factory.plan(conn, per_hour=2, first_job=-20)
    await rich(conn, "a")
    for _ in range(2):
        await factory.submit(conn, account="a", price=3)
    lines = [row["line"] for row in await conn.fetch("select penstock.export_jobs() as line")]
    for number, line in enumerate(lines):
        line["job"]["id"] = f"0199a000-0000-7000-8000-00000000000{number}"
        assert await conn.fetchval("select penstock.import_job($1)", line)
    rows = await conn.fetch("select reserved from penstock.job order by id limit 2")
    assert [row["reserved"] for row in rows] == [0, 0]


async def test_an_export_from_before_there_were_credits_can_be_imported(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    await factory.submit(conn)
    line = await conn.fetchval("select penstock.export_jobs()")
    for column in ("reserved", "units", "units_total", "first_job", "priority_given"):
        del line["job"][column]
    line["job"]["id"] = "0199a000-0000-7000-8000-000000000000"
    assert await conn.fetchval("select penstock.import_job($1)", line)


async def test_a_long_batch_is_cancelled_at_once(conn: asyncpg.Connection) -> None:
    """G13: waiting and running jobs, of several accounts, with their credits."""
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    for name in "ab":
        await rich(conn, name)
    await factory.submit_rows(
        conn, [{"kind": "q", "account": "ab"[n % 2], "price": 1} for n in range(60)]
    )
    worker = await factory.worker(conn)
    running = await factory.claim(conn, worker, limit=10)
    batch = await conn.fetchval("select id from penstock.batch")
    answer = await conn.fetchval("select penstock.cancel_batch($1)", batch)
    assert (answer["cancelled"], answer["running"]) == (58, 2)
    await factory.finish(conn, worker, running, "cancelled")
    rows = await conn.fetch("select balance from penstock.account where name is not null")
    assert [row["balance"] for row in rows] == [100, 100]


@pytest.mark.parametrize("progress", [{"done": "half", "total": 2}, {"done": 1, "total": 0}])
async def test_malformed_progress_does_not_break_reading_a_batch(
    conn: asyncpg.Connection, progress: dict[str, object]
) -> None:
    await factory.queue(conn)
    await factory.submit_rows(conn, [{"kind": "q"}])
    worker = await factory.worker(conn)
    [row] = await factory.claim(conn, worker)
    await conn.execute(
        "select verdict from penstock.report_progress($1, array[$2::uuid], array[1], null, null,"
        " array[$3::jsonb])",
        worker,
        row["id"],
        progress,
    )
    answer = await conn.fetchval("select penstock.read_batch(id) from penstock.batch")
    assert answer["progress"]["done"] == 0
