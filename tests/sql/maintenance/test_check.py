"""check() finds every kind of damage, and the reconciler repairs and reports derived values."""

import asyncpg
import pytest

from support import factory
from support.clock import Clock

unsound = pytest.mark.unsound


@pytest.fixture
async def system(conn: asyncpg.Connection, clock: Clock) -> asyncpg.Connection:
    """Make limits, lanes, attempts, history, keys, a fair queue and a dead worker.

    u1 runs two of two jobs and has two waiting, u2 has one waiting although it has a free slot.
    """
    await factory.queue(conn, "q", concurrency=5, delay_seconds=0)
    await factory.queue(conn, "fair", order="fair")
    await factory.plan(conn, concurrency=2)
    dead, worker = await factory.worker(conn, "dead"), await factory.worker(conn, "alive")
    await factory.submit_rows(conn, [{"kind": "q"}] * 3)
    await factory.finish(conn, dead, await factory.claim(conn, dead), "retry")
    await factory.finish(conn, dead, await factory.claim(conn, dead))
    await factory.finish(conn, dead, await factory.claim(conn, dead), "failed")
    assert len(await factory.claim(conn, dead)) == 1
    await clock.advance("16s")
    await conn.execute("select penstock.beat_worker($1)", worker)
    await factory.recover(conn)
    await factory.submit_rows(conn, [{"kind": "q", "account": "u1"}] * 4)
    await factory.claim(conn, worker, limit=5)
    await factory.submit_rows(conn, [{"kind": "q", "account": "u2"}, {"kind": "fair"}])
    await conn.execute("select penstock.submit_job('fair', '{}', idempotency_key => 'k')")
    return conn


async def broken(conn: asyncpg.Connection) -> set[str]:
    rows = await conn.fetch("select invariant from penstock.check()")
    return {row["invariant"] for row in rows}


async def repaired(conn: asyncpg.Connection) -> list[str]:
    rows = await conn.fetch("select what from penstock.reconcile()")
    return [row["what"] for row in rows]


async def test_a_sound_system_has_no_violation_and_nothing_to_repair(
    system: asyncpg.Connection,
) -> None:
    before = await factory.contents(system)
    assert await broken(system) == set()
    assert await repaired(system) == []
    assert await factory.contents(system) == before


LANE_OF = "(select id from penstock.account where name = 'u1')"
COUNTED = "L6 a lane counts and orders its jobs"
OTHER_CLASS = "(select max(id) from penstock.retention_class)"

DERIVABLE = {
    "a queue counts one job too many": (
        (
            "update penstock.gate set running = running + 1"
            " where queue_id = (select id from penstock.queue where name = 'q')"
        ),
        "L5 a queue counts its running jobs",
        "gate.running",
    ),
    "a queue counts one job too few": (
        "update penstock.gate set running = running - 1 where running > 0",
        "L5 a queue counts its running jobs",
        "gate.running",
    ),
    "an account counts one job too many": (
        "update penstock.account set running = running + 1 where name = 'u2'",
        "L5 an account counts its running jobs",
        "account.running",
    ),
    "an account counts no job": (
        "update penstock.account set running = 0 where name = 'u1'",
        "L5 an account counts its running jobs",
        "account.running",
    ),
    "a lane counts one job too many": (
        f"update penstock.lane set waiting = waiting + 1 where account_id = {LANE_OF}",
        COUNTED,
        "lane",
    ),
    "a lane counts no job": (
        f"update penstock.lane set waiting = 0 where account_id = {LANE_OF}",
        COUNTED,
        "lane",
    ),
    "a lane's head is missing": (
        f"update penstock.lane set head = head - 5 where account_id = {LANE_OF}",
        COUNTED,
        "lane",
    ),
    "a lane is closed beside a free slot": (
        (
            "update penstock.lane set open = false where account_id ="
            " (select id from penstock.account where name = 'u2')"
        ),
        "L6 a lane with a free slot is open",
        "lane",
    ),
    "a lane is missing": (
        f"delete from penstock.lane where account_id = {LANE_OF}",
        "L6 a queued job of a lane has one",
        "lane",
    ),
}


@unsound
@pytest.mark.parametrize("damage", DERIVABLE)
async def test_wrong_derived_values_are_found_repaired_and_reported(
    system: asyncpg.Connection, damage: str
) -> None:
    sql, invariant, what = DERIVABLE[damage]
    before = await factory.contents(system)
    assert await system.execute(sql) in {"UPDATE 1", "DELETE 1"}
    assert invariant in await broken(system)
    assert what in await repaired(system)
    assert await broken(system) == set()
    assert await repaired(system) == []
    assert await factory.contents(system) == before


@unsound
async def test_the_reconciler_returns_old_and_new_values(
    system: asyncpg.Connection,
) -> None:
    await system.execute("update penstock.gate set running = 42 where running > 0")
    [row] = await system.fetch("select * from penstock.reconcile()")
    assert dict(row) == {"what": "gate.running", "subject": "q", "was": "42", "now": "3"}


@unsound
async def test_many_errors_at_once_are_found_and_repaired(
    system: asyncpg.Connection,
) -> None:
    before = await factory.contents(system)
    for sql, _, _ in DERIVABLE.values():
        await system.execute(sql)
    assert len(await broken(system)) >= 3
    await repaired(system)
    assert await broken(system) == set()
    assert await factory.contents(system) == before


BEYOND_REPAIR = {
    "a job is live and finished": (
        (
            "update penstock.job set id = (select id from penstock.finished limit 1)"
            " where id = (select id from penstock.job where attempt = 0 limit 1)"
        ),
        "L1 live or finished, never both",
    ),
    "a job is finished twice": (
        (
            "insert into penstock.finished select (jsonb_populate_record(f,"
            f" jsonb_build_object('class', {OTHER_CLASS}))).* from penstock.finished f"
            f" where f.class <> {OTHER_CLASS} limit 1"
        ),
        "L1 finished once",
    ),
    "a job runs at no known worker": (
        (
            "update penstock.job set worker_id = 4711"
            " where id = (select id from penstock.job where status = 'running' limit 1)"
        ),
        "L2 a running job has a known worker",
    ),
    "a worker is cleared while it runs jobs": (
        "update penstock.worker set cleared_at = penstock.clock() where name = 'alive'",
        "L2 a cleared worker runs nothing",
    ),
    "an attempt is not recorded": (
        "delete from penstock.attempt where ctid = (select ctid from penstock.attempt limit 1)",
        "L4 every settled attempt has one row",
    ),
    "a job counts an attempt that never was": (
        (
            "update penstock.job set attempt = attempt + 1"
            " where id = (select id from penstock.job where status = 'running' limit 1)"
        ),
        "L4 every settled attempt has one row",
    ),
    "a finished job counts an attempt that never was": (
        (
            "update penstock.finished set attempt = attempt + 1"
            " where id = (select id from penstock.finished limit 1)"
        ),
        "L4 every settled attempt has one row",
    ),
    "an attempt ends before it began": (
        (
            "update penstock.attempt set ended_at = started_at - interval '1 second'"
            " where ctid = (select ctid from penstock.attempt limit 1)"
        ),
        "L4 an attempt ends after it began",
    ),
    "a queue runs more than it may": (
        "update penstock.queue set concurrency = 1, changed_at = '-infinity' where name = 'q'",
        "L5 a queue keeps its limit",
    ),
    "an account runs more than it may": (
        (
            "with p as (update penstock.plan set concurrency = 1)"
            " update penstock.account set concurrency = 1, limited_at = '-infinity'"
            " where name = 'u1'"
        ),
        "L5 an account keeps its limit",
    ),
    "an account has another limit than its plan": (
        "update penstock.account set concurrency = 9 where name = 'u1'",
        "L5 an account follows its plan",
    ),
    "an account has another weight than its plan": (
        "update penstock.account set weight = 9 where name = 'u1'",
        "L5 an account follows its plan",
    ),
    "a fair queue has a job in no lane": (
        (
            "update penstock.job set lane = -1 where id = (select j.id from penstock.job j"
            " join penstock.queue q on q.id = j.queue_id where q.name = 'fair' limit 1)"
        ),
        "L6 a fair queue has everyone in a lane",
    ),
    "a key was recorded without its job": (
        "update penstock.idempotency set job_id = '00000000-0000-0000-0000-000000000000'",
        "idempotency record names a job",
    ),
}


@unsound
@pytest.mark.parametrize("damage", BEYOND_REPAIR)
async def test_errors_that_cannot_be_derived_are_found_and_not_repaired(
    system: asyncpg.Connection, damage: str
) -> None:
    sql, invariant = BEYOND_REPAIR[damage]
    assert (await system.execute(sql)).endswith(" 1")
    assert invariant in await broken(system)
    await repaired(system)
    assert invariant in await broken(system)


@pytest.mark.parametrize(
    "sql",
    [
        "update penstock.job set worker_id = null where status = 'running'",
        "update penstock.job set deadline_at = null where status = 'running'",
        "update penstock.job set status = 'awaiting' where status = 'running'",
        "update penstock.job set status = 'succeeded' where status = 'running'",
        "update penstock.job set status = 'queued' where status = 'running'",
        "update penstock.job set failures = max_attempts",
        "update penstock.job set slots_held = 1 where status = 'queued'",
        "update penstock.job set lane = 4711",
        "update penstock.account set balance = -1",
        "update penstock.account set running = -1",
        "update penstock.gate set running = -1",
        "update penstock.lane set waiting = -1",
        "update penstock.finished set status = 'queued'",
        "update penstock.finished set error = null where status = 'failed'",
        "insert into penstock.setting default values",
        "insert into penstock.account (id, created_at, limited_at) values (0, now(), now())",
    ],
)
async def test_constraints_forbid_what_they_can(system: asyncpg.Connection, sql: str) -> None:
    """L2, L5, L7: the rule is a constraint of the table, which no code can skip."""
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await system.execute(sql)
