"""Guards of hourly.sql, history.sql, erase.sql, and of declarations."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg

from mutation.scene import Scene, catches
from support import factory

COUNT = "select coalesce(sum(count), 0)::integer from penstock.hourly"


async def _end_one(s: Scene, conn: asyncpg.Connection) -> None:
    worker = await s.worker()
    await factory.submit(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker))


async def _roll_up(s: Scene) -> None:
    while await s.value("select penstock.roll_up()"):
        pass


@catches("roll_up: alone", replace=("for update skip locked", ""))
async def a_window_is_added_once(s: Scene) -> None:
    await factory.queue(s.conn)
    await _end_one(s, s.conn)
    await s.clock.advance("20s")
    one, other = await s.connect(), await s.connect()
    begun = one.transaction()
    await begun.start()
    await one.fetchval("select penstock.roll_up()")
    await s.does_not_wait(other, other.fetchval("select penstock.roll_up()"))
    await begun.commit()
    assert await s.value(COUNT) == 1


@catches(
    "prune_history: alone",
    replace=("not pg_try_advisory_xact_lock(1886413173, 2)", "false"),
    raises=asyncpg.LockNotAvailableError,
)
async def only_one_worker_at_a_time_prunes_history(s: Scene) -> None:
    await factory.queue(s.conn)
    await s.conn.execute("select penstock.submit_one('q', '{}', p_key => 'k')")
    await s.clock.advance("30d")
    one, other = await s.connect(), await s.connect()
    begun = one.transaction()
    await begun.start()
    assert await one.fetch("select what from penstock.prune_history()")
    assert await other.fetch("select what from penstock.prune_history()") == []
    await begun.commit()


@catches("_settle_hour: over")
async def an_hour_is_closed_after_late_commits(s: Scene) -> None:
    await factory.queue(s.conn)
    now = await s.clock.now()
    hour = now.replace(minute=0, second=0, microsecond=0)
    await s.clock.advance(max(timedelta(0), hour + timedelta(minutes=55) - now))
    hour = (await s.clock.now()).replace(minute=0, second=0, microsecond=0)
    slow = await s.connect()
    begun = slow.transaction()
    await begun.start()
    await _end_one(s, slow)
    await s.clock.advance(hour + timedelta(minutes=62) - await s.clock.now())
    await _roll_up(s)
    await begun.commit()
    await s.clock.advance("10m")
    await _roll_up(s)
    assert await s.value(COUNT) == 1


@catches("_add_outcomes: never less")
async def jobs_removed_by_retention_stay_counted(s: Scene) -> None:
    await factory.queue(s.conn)
    for _ in range(2):
        await _end_one(s, s.conn)
    await s.clock.advance("20s")
    await _roll_up(s)
    await s.conn.execute(
        "delete from penstock.finished"
        " where id = (select id from penstock.finished order by id limit 1)"
    )
    await s.clock.advance("2h")
    await _roll_up(s)
    assert await s.value(COUNT) == 2


async def _erase(conn: asyncpg.Connection) -> dict[str, Any]:
    step: dict[str, Any] = await conn.fetchval("select penstock.erase_account('a', 1)")
    return step


async def _erase_beside_a_submit(s: Scene) -> None:
    """An app's open transaction submits two jobs for an account that is being erased."""
    await factory.queue(s.conn)
    await s.conn.execute("select penstock.create_account('a')")
    app, eraser = await s.connect(), await s.connect()
    begun = app.transaction()
    await begun.start()
    await factory.submit_rows(app, [{"kind": "q", "account": "a"}] * 2)
    task = asyncio.ensure_future(_erase(eraser))
    await factory.until_blocked_or_done(s.conn, eraser, task)
    await begun.commit()
    step = await task
    while not step["done"]:
        step = await _erase(eraser)
    assert await s.value("select count(*) from penstock.job where account_id <> 0") == 0
    assert await s.value("select count(*) from penstock.finished where account_id <> 0") == 0


@catches("erase_account: no open submit")
async def erasing_waits_for_a_job_that_is_being_submitted(s: Scene) -> None:
    await _erase_beside_a_submit(s)


@catches("erase_account: still empty")
async def erasing_includes_a_job_submitted_in_between(s: Scene) -> None:
    await _erase_beside_a_submit(s)


HERE, THERE = {"file": "/srv/here.py"}, {"file": "/srv/there.py"}


@catches("_refuse_other_declaration: moved by name", raises=asyncpg.PostgresError)
async def a_moved_declaration_is_accepted(s: Scene) -> None:
    declare = "select penstock.declare_queue('q', $1, $2, $3, $4)"
    await s.conn.execute(declare, {"concurrency": 1}, "old", HERE, None)
    await s.conn.execute(declare, {"concurrency": 2}, "new", THERE, "old")
    assert await s.value("select concurrency from penstock.queue") == 2


@catches("declare_queue: own location", "declare_kind: own location", "declare_plan: own location")
async def the_location_of_a_declaration_is_not_overwritten_by_an_identical_one(s: Scene) -> None:
    for by, at in (("one", HERE), ("other", THERE)):
        await s.conn.execute("select penstock.declare_queue('q', '{}', $1, $2)", by, at)
        await s.conn.execute("select penstock.declare_kind('k', 'q', '{}', $1, $2)", by, at)
        await s.conn.execute("select penstock.declare_plan('p', '{}', $1, $2)", by, at)
    for table in ("queue", "kind", "plan"):
        assert await s.value(f"select declared_in from penstock.{table}") == HERE, table
