"""Accepting jobs: all or none, in the caller's transaction, with defaults of kind and plan."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import refused
from support.shapes import Connect, Scale

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


async def submit_job(conn: asyncpg.Connection, **arguments: Any) -> dict[str, Any]:
    """Call penstock.submit_job as plain SQL does, with named arguments."""
    named = {"kind": "q", "payload": {}} | arguments
    call = ", ".join(f"{name} => ${n}" for n, name in enumerate(named, 1))
    job: dict[str, Any] = await conn.fetchval(
        f"select penstock.submit_job({call})", *named.values()
    )
    return job


async def test_any_number_of_jobs_is_accepted_in_one_call_and_in_order(
    conn: asyncpg.Connection, scale: Scale
) -> None:
    """M1: "mark all" is one atomic call that drops nothing."""
    await factory.queue(conn)
    many = scale(10_000, 1_000_000)
    rows = await conn.fetch(
        "select ordinal, id from penstock.submit_many($1, $2)",
        ["q"] * many,
        [{"n": n} for n in range(many)],
    )
    stored = await conn.fetch("select id, payload -> 'n' as n from penstock.job order by rank")
    assert [row["n"] for row in stored] == list(range(many))
    by_ordinal = sorted(rows, key=lambda row: row["ordinal"])
    assert [row["id"] for row in stored] == [row["id"] for row in by_ordinal]


async def test_one_wrong_job_refuses_the_whole_batch(conn: asyncpg.Connection) -> None:
    """M1: all or none."""
    await factory.queue(conn)
    before = await factory.contents(conn)
    with refused(404, "unknown_kind", "kind") as error:
        await factory.submit_rows(conn, [{"kind": "q"}, {"kind": "q"}, {"kind": "nope"}])
    assert error["index"] == 2
    assert await factory.contents(conn) == before


async def test_an_accepted_job_shows_state_attempts_error_and_times(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """M2, F9: a job is a row, and its times are those of the database's clock."""
    await clock.freeze(NOON)
    await factory.queue(conn, attempts=5)
    job = await submit_job(conn, topic="a1", metadata={"page": 1}, account="u1")
    noon = "2030-01-01T12:00:00.000000Z"
    expected: dict[str, Any] = {
        "kind": "q",
        "queue": "q",
        "account": "u1",
        "plan": None,
        "topic": "a1",
        "status": "queued",
        "attempt": 0,
        "failures": 0,
        "max_attempts": 5,
        "metadata": {"page": 1},
        "error": None,
        "result": None,
        "created_at": noon,
        "updated_at": noon,
        "run_at": noon,
        "started_at": None,
        "finished_at": None,
        "attempts": [],
        "deduplicated": False,
        "replayed": False,
    }
    assert {name: job[name] for name in expected} == expected
    # The id is a UUID of version 7: its first 48 bits are the time.
    number = UUID(job["id"])
    assert (number.version, number.int >> 80) == (7, int(NOON.timestamp() * 1000))


@pytest.mark.parametrize("commits", [True, False])
async def test_a_submit_lives_and_dies_with_the_callers_transaction(
    conn: asyncpg.Connection, commits: bool
) -> None:
    """E3: the app's own write and the submit commit together."""
    await factory.queue(conn)
    await conn.execute("create temporary table task (done boolean)")
    transaction = conn.transaction()
    await transaction.start()
    await conn.execute("insert into task values (true)")
    await submit_job(conn, account="u1")
    await (transaction.commit() if commits else transaction.rollback())
    for table in ("task", "penstock.job", "(select from penstock.account where id > 0)"):
        assert await conn.fetchval(f"select count(*) from {table} t") == int(commits), table


async def test_an_account_is_made_at_its_first_submit_with_the_default_plan(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, "pro", default=False)
    await factory.plan(conn, "free", default=True, concurrency=1)
    job = await submit_job(conn, account="u1")
    assert (job["account"], job["plan"]) == ("u1", "free")
    again = await submit_job(conn, account="u1")
    assert again["account"] == "u1"
    assert await conn.fetchval("select count(*) from penstock.account where name = 'u1'") == 1


async def test_a_job_without_an_account_has_no_plan(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1, priority=50)
    job = await submit_job(conn)
    assert (job["account"], job["plan"], job["priority"]) == (None, None, 0)


async def test_priority_is_the_plans_plus_the_kinds_unless_the_caller_gives_one(
    conn: asyncpg.Connection,
) -> None:
    """E15, G5: pro 10, growth 20, starter 30, free 50; video +10."""
    await factory.queue(conn)
    await conn.execute("select penstock.declare_kind('video', 'q', $1)", {"priority_offset": 10})
    priorities = {"pro": 10, "growth": 20, "starter": 30, "free": 50, "last": 1000, "first": -1000}
    for plan, points in priorities.items():
        await factory.plan(conn, plan, priority=points)
        await conn.execute("select penstock.create_account($1, $1)", plan)

    async def priority(**arguments: Any) -> int:
        answer: int = (await submit_job(conn, **arguments))["priority"]
        return answer

    assert {plan: await priority(account=plan) for plan in priorities} == priorities
    assert await priority(kind="video", account="pro") == 20
    assert await priority(kind="video", account="free") == 60
    assert await priority(kind="video", account="last") == 1000
    assert await priority(kind="video", account="free", priority=-7) == -7


async def test_a_kind_declares_which_fields_are_account_topic_and_key(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    fields = {"account_field": "teacher", "topic_field": "task", "dedupe_field": "paper"}
    fixed = {"account": "school", "topic": "all"}
    await conn.execute("select penstock.declare_kind('mark', 'q', $1)", fields)
    await conn.execute("select penstock.declare_kind('plain', 'q', $1)", fixed)
    payload = {"teacher": "t1", "task": "a1", "paper": "p1"}

    job = await submit_job(conn, kind="mark", payload=payload)
    assert (job["account"], job["topic"]) == ("t1", "a1")
    twin = await submit_job(conn, kind="mark", payload=payload)
    assert (twin["id"], twin["deduplicated"]) == (job["id"], True)
    overridden = await submit_job(conn, kind="mark", payload=payload, account="t2", topic="a2")
    assert (overridden["account"], overridden["topic"], overridden["deduplicated"]) == (
        "t2",
        "a2",
        False,
    )
    plain = await submit_job(conn, kind="plain", payload=payload)
    assert (plain["account"], plain["topic"]) == ("school", "all")
    without = await submit_job(conn, kind="mark", payload={})
    assert (without["account"], without["topic"]) == (None, None)


async def test_a_kind_that_needs_code_is_refused_to_plain_sql(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await conn.execute("select penstock.declare_kind('k', 'q', $1)", {"computed": ["dedupe"]})
    for call in (submit_job(conn, kind="k"), factory.submit(conn, "k")):
        with refused(422, "kind_needs_code", "dedupe") as error:
            await call
        assert "function in the app's code" in error["message"]
    by_code = "select count(*) from penstock.submit_one('k', '{}')"
    assert await conn.fetchval(by_code) == 1


async def test_a_submit_with_a_live_key_returns_its_job_until_that_finishes(
    conn: asyncpg.Connection,
) -> None:
    """M9: one live job per kind, account and key."""
    await factory.queue(conn)
    await factory.queue(conn, "other")
    first = await submit_job(conn, dedupe_key="s1", account="u1")
    second = await submit_job(conn, dedupe_key="s1", account="u1", payload={"late": True})
    assert (second["id"], second["deduplicated"]) == (first["id"], True)
    for different in ({"account": "u2"}, {"kind": "other"}, {"dedupe_key": "s2"}):
        job = await submit_job(conn, **({"dedupe_key": "s1", "account": "u1"} | different))
        assert job["deduplicated"] is False, different

    worker = await factory.worker(conn)
    started = await factory.claim(conn, worker)
    running = await submit_job(conn, dedupe_key="s1", account="u1")
    assert (running["id"], running["status"]) == (first["id"], "running")
    await factory.finish(conn, worker, started)
    again = await submit_job(conn, dedupe_key="s1", account="u1")
    assert again["deduplicated"] is False
    assert again["id"] != first["id"]


async def test_twins_inside_one_batch_become_one_job(conn: asyncpg.Connection) -> None:
    """M9"""
    await factory.queue(conn)
    jobs = [{"kind": "q", "dedupe_key": key} for key in "abab"]
    a, b, twin_a, twin_b = await factory.submit_rows(conn, jobs)
    assert (twin_a, twin_b) == (a, b)
    assert await conn.fetchval("select total from penstock.batch") == 2


async def test_a_delayed_job_waits_and_a_run_at_in_the_past_is_due_now(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze(NOON)
    await factory.queue(conn)
    later = await submit_job(conn, delay_seconds=90.5)
    assert later["status"] == "scheduled"
    assert later["run_at"] == "2030-01-01T12:01:30.500000Z"
    at = await submit_job(conn, run_at=NOON + timedelta(days=1))
    assert (at["status"], at["run_at"]) == ("scheduled", "2030-01-02T12:00:00.000000Z")
    past = await submit_job(conn, run_at=NOON - timedelta(days=1))
    assert (past["status"], past["run_at"]) == ("queued", "2030-01-01T12:00:00.000000Z")


async def test_plain_sql_wakes_workers_when_it_commits(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    woken: list[object] = []
    listener = await connect()
    await factory.queue(conn)
    await listener.add_listener("penstock_job", lambda *arguments: woken.append(arguments[-1]))
    await submit_job(conn, dedupe_key="k")
    await submit_job(conn, dedupe_key="k")  # a twin sends no wake-up
    await submit_job(conn, delay_seconds=60)  # nor does a job that is not due
    transaction = conn.transaction()
    await transaction.start()
    await submit_job(conn)
    await transaction.rollback()
    await factory.submit_rows(conn, [{"kind": "q"}] * 3)
    await listener.execute("select 1")  # what was sent before arrives before the answer
    assert woken == ["q", "q"]
