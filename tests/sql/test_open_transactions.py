"""An app may keep a transaction open for as long as it likes: it blocks nobody else."""

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.interleave import Step
from support.shapes import Connect


async def test_a_new_retention_blocks_no_finish(conn: asyncpg.Connection, connect: Connect) -> None:
    """A partition of history is made without waiting for readers."""
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn)
    started = await factory.claim(conn, worker)
    app, operator = await connect(), await connect()
    async with app.transaction():
        await app.fetch("select count(*) from penstock.finished")
        await operator.execute(
            "select penstock.edit_queue('q', $1)", {"retention_seconds": 3 * 86_400}
        )
        [settled] = await factory.finish(conn, worker, started)
        assert settled["verdict"] == "done"


async def test_a_submit_holds_no_lock_on_history(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    async with conn.transaction():
        await conn.fetchval("select penstock.submit_job('q', '{}')")
        held = await conn.fetch(
            "select relation::regclass::text as name from pg_locks"
            " where pid = pg_backend_pid() and relation::regclass::text like 'penstock.finished%'"
        )
        assert held == []


async def test_a_new_limit_counts_after_an_open_finish(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """Otherwise the gate keeps the slot of a finished job, and the queue stops."""
    await factory.queue(conn, concurrency=1)
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    started = await factory.claim(conn, worker)
    # An edit can raise a declared limit and not remove it: a new declaration removes it.
    await conn.execute("select penstock.declare_queue('q', '{}')")
    finisher, operator = await connect(), await connect()
    async with finisher.transaction():
        await factory.finish(finisher, worker, started)
        edit = Step(
            operator, operator.execute("select penstock.edit_queue('q', $1)", {"concurrency": 1})
        )
        assert await edit.waits(conn)
    await edit
    assert len(await factory.claim(conn, worker)) == 1


@pytest.mark.parametrize("call", ["reconcile()", "edit_plan('free', '{\"per_hour\": 5}')"])
async def test_upkeep_and_edits_lock_only_the_accounts_that_they_change(
    conn: asyncpg.Connection, connect: Connect, call: str
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    await factory.submit(conn, account="a")
    started = await factory.claim(conn, worker)
    await factory.submit(conn, account="b")
    app = await connect()
    async with app.transaction():
        await factory.submit(app, account="b")
        await conn.fetch(f"select * from penstock.{call}")
        [settled] = await factory.finish(conn, worker, started)
        assert settled["verdict"] == "done"


async def test_an_edit_gives_up_when_it_cannot_lock_the_rows(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """The first limit of a queue counts the running jobs, and an app has locked one of them."""
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    await factory.claim(conn, worker)
    app = await connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", job)
        await conn.execute("select penstock.edit_queue('q', $1)", {"timeout_seconds": 60})
        with pytest.raises(asyncpg.LockNotAvailableError):
            await conn.execute("select penstock.edit_queue('q', $1)", {"concurrency": 1})
    await conn.execute("select penstock.edit_queue('q', $1)", {"concurrency": 1})


async def test_a_hand_over_does_not_wait_for_a_cancel(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    started = await factory.claim(conn, worker, limit=2)
    app = await connect()
    sql = "select verdict from penstock.hand_over_jobs($1, $2, array[1, 1], $3)"
    args = worker, [row["id"] for row in started], ["sixteen letters or more"] * 2
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", started[0]["id"])
        assert [row[0] for row in await conn.fetch(sql, *args)] == ["locked", "done"]
    assert [row[0] for row in await conn.fetch(sql, *args)] == ["done", "stale"]


async def test_due_jobs_of_a_locked_account_do_not_fill_the_pass(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    busy = [{"kind": "q", "account": "busy", "delay_seconds": 10}] * 5
    await factory.submit_rows(conn, [*busy, {"kind": "q", "account": "b", "delay_seconds": 20}])
    await clock.advance("1m")
    app = await connect()
    async with app.transaction():
        await factory.submit(app, account="busy")
        assert await conn.fetchval("select penstock.stage_due_jobs(1, 3)") == 1
    assert await conn.fetchval("select penstock.stage_due_jobs(1, 3)") == 3


async def test_lost_jobs_of_a_locked_account_do_not_fill_the_pass(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=3)
    worker = await factory.worker(conn)
    await factory.submit_rows(
        conn, [{"kind": "q", "account": name} for name in ("busy", "busy", "busy", "b")]
    )
    assert len(await factory.claim(conn, worker, limit=4)) == 4
    await clock.advance("1m")
    app = await connect()
    async with app.transaction():
        await factory.submit(app, account="busy")
        [freed] = await conn.fetch("select * from penstock.recover_jobs(3)")
        assert freed["status"] == "queued"
    assert len(await conn.fetch("select * from penstock.recover_jobs(3)")) == 3


async def test_retrying_a_scheduled_job_stages_no_other_job(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    """It runs now, before later jobs; other due jobs are left to the workers."""
    await factory.queue(conn)
    worker = await factory.worker(conn)
    late = await factory.submit(conn, delay_seconds=5 * 86_400)
    due = await factory.submit(conn, delay_seconds=1)
    await clock.advance("10s")
    app = await connect()
    async with app.transaction():
        await app.fetchval("select penstock.retry_job($1)", late)
        assert [row["id"] for row in await factory.claim(conn, worker, limit=5)] == [due]
    await factory.submit(conn)
    assert (await factory.claim(conn, worker))[0]["id"] == late


async def test_expired_jobs_that_are_left_by_a_pass_never_start(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn, lease="1 hour")
    await conn.execute(
        "select count(*) from penstock.submit_many(array_fill('q'::text, array[1500]),"
        " array_fill('{}'::jsonb, array[1500]),"
        " p_expires => array_fill(interval '5 seconds', array[1500]))"
    )
    await clock.advance("10s")
    assert await factory.claim(conn, worker, limit=100) == []
    assert await factory.claim(conn, worker, limit=100) == []
    assert await conn.fetchval("select count(*) from penstock.finished") == 1_500


async def test_an_idempotency_key_means_the_same_in_every_time_zone(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    sql = (
        "select penstock.submit_job('q', '{}', run_at => '2030-01-01T12:00:00Z',"
        " idempotency_key => 'k') ->> 'replayed'"
    )
    assert await conn.fetchval(sql) == "false"
    await conn.execute("set timezone = 'Asia/Tokyo'")
    assert await conn.fetchval(sql) == "true"


async def test_a_worker_never_has_the_id_of_an_earlier_one(conn: asyncpg.Connection) -> None:
    """Also if the tables were made again in between: ids are random and not counted."""
    numbers = [await factory.worker(conn) for _ in range(20)]
    assert len(set(numbers)) == 20
    assert min(numbers) > 1_000_000


async def test_a_change_of_a_queues_order_waits_for_open_submits(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await factory.queue(conn)
    app = await connect()
    async with app.transaction():
        await factory.submit(app)
        with pytest.raises(asyncpg.LockNotAvailableError):
            await conn.execute("select penstock.edit_queue('q', $1)", {"order": "fair"})
    with pytest.raises(asyncpg.PostgresError, match="while it has live jobs"):
        await conn.execute("select penstock.edit_queue('q', $1)", {"order": "fair"})
