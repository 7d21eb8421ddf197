"""Functions return the same in sessions of an app with odd settings."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import penstock
from penstock.db.connections.pool import prepare
from support import factory
from support.clock import Clock

FUNCTIONS = sorted((Path(penstock.__file__).parent / "sql" / "functions").rglob("*.sql"))
ODD = {
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "escape_string_warning": "on",
    "timezone": "Asia/Kolkata",
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "bytea_output": "escape",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "search_path": "nowhere",
    "row_security": "off",
    "plpgsql.extra_errors": "all",
    "plpgsql.extra_warnings": "all",
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "enable_indexscan": "off",
    "enable_hashjoin": "off",
    "enable_nestloop": "off",
    "jit_above_cost": "0",
    "work_mem": "64kB",
    "default_transaction_deferrable": "on",
    "statement_timeout": "20s",
    "synchronous_commit": "off",
}
DAY_OF_23_HOURS = "2030-03-30 12:00+01"


async def submit(conn: asyncpg.Connection, **fields: Any) -> Any:
    names = ", ".join(f"{name} => ${n}" for n, name in enumerate(fields, 1))
    return await conn.fetchval(
        f"select penstock.submit_job('q', '{{}}', {names})", *fields.values()
    )


async def walk(conn: asyncpg.Connection) -> list[Any]:
    """Call every function, and return the answers without ids and times."""
    answers: list[Any] = []

    def note(job: dict[str, Any]) -> dict[str, Any]:
        kept = (
            "status attempt priority account topic balance waiting_for deduplicated credits error"
        )
        answers.append({name: job.get(name) for name in kept.split()})
        assert job["created_at"].endswith("Z")
        return job

    await factory.queue(conn, rate="500/min", order="strict")
    await factory.plan(conn, concurrency=2, per_hour=20)
    await submit(conn, account="a")
    await conn.execute("select penstock.grant_credits('a', 100, 'bought', 'r1')")
    await conn.execute("select penstock.deduct_credits('a', 10, 'by hand', 'r2')")
    await conn.execute("select penstock.refund_credits('a', 'r2')")
    note(await submit(conn, account="a", price=7))
    twins = [note(await submit(conn, account="a", dedupe_key="k\\'")) for _ in range(2)]
    again = [note(await submit(conn, idempotency_key="k", run_at=None)) for _ in range(2)]
    assert len({one["id"] for one in twins}) == len({one["id"] for one in again}) == 1
    nested = {"a": ['["\\"]}', {"b": [[], {}]}], "text": "back\\slash ü"}
    [deep] = await factory.submit_rows(conn, [{"kind": "q", "payload": nested, "topic": "t\\n"}])
    assert (await conn.fetchval("select penstock.read_job($1)", deep))["topic"] == "t\\n"
    note(await submit(conn, run_at=None, delay_seconds=60.0))
    worker = await factory.worker(conn)
    rows = await factory.claim(conn, worker, limit=2)
    assert len(rows) == 2
    await factory.finish(conn, worker, rows[:1], result=nested)
    await factory.finish(conn, worker, rows[1:], "failed")
    for row in rows:
        note(await conn.fetchval("select penstock.read_job($1)", row["id"]))
    note(await conn.fetchval("select penstock.cancel_job($1)", deep))
    note(await conn.fetchval("select penstock.retry_job($1)", rows[1]["id"]))
    answers.append(await conn.fetchval("select array_agg(balance_after) from penstock.ledger"))
    await conn.execute("select penstock.make_partitions()")
    await conn.fetch("select * from penstock.prune_history()")
    assert await conn.fetch("select * from penstock.check()") == []
    return answers


@pytest.fixture
async def expected(migrated: str) -> list[Any]:
    conn = await asyncpg.connect(migrated)
    try:
        await prepare(conn)
        return await walk(conn)
    finally:
        await conn.close()


async def test_every_call_returns_the_same_in_every_session(
    conn: asyncpg.Connection, expected: list[Any]
) -> None:
    """D3: also in a session of an app, whose settings we do not control."""
    for name, value in ODD.items():
        await conn.execute("select set_config($1, $2, false)", name, value)
    assert await walk(conn) == expected


async def test_days_have_24_hours_in_every_time_zone(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await conn.execute("set timezone = 'Europe/Berlin'")
    begun = await conn.fetchval("select $1::text::timestamptz", DAY_OF_23_HOURS)
    await clock.advance(begun - await conn.fetchval("select penstock.clock()"))
    day = timedelta(days=1)
    lengths = "p_delay{0} => $1, p_timeout{0} => $1, p_expires => $1"
    one, many = lengths.format(""), lengths.format("s")
    for call, length in (
        (f"submit_one('q', '{{}}', {one})", day),
        (f"submit_many('{{q}}', '{{\"{{}}\"}}', {many})", [day]),
        (f"accept_jobs('q', '{{q}}', '{{\"{{}}\"}}', {many})", [day]),
    ):
        await conn.execute(f"select count(*) from penstock.{call}", length)
    rows = await conn.fetch(
        "select run_at - created_at as delay, expires_at - run_at as expires, timeout"
        " from penstock.job"
    )
    assert {tuple(row) for row in rows} == {(day, day, day)}
    assert len(rows) == 3
    hours = "select distinct extract(day from timeout) from penstock.job"
    assert await conn.fetchval(hours) == 0


@pytest.mark.parametrize("path", FUNCTIONS, ids=lambda path: path.name)
def test_no_literal_depends_on_how_backslashes_are_read(path: Path) -> None:
    """`e'…'` is unambiguous; a plain literal with a backslash depends on a session setting."""
    literal = re.compile(
        r"--[^\n]*|(?s:\$\w+\$.*?\$\w+\$)|(?P<escaped>\b[eE])?'(?P<text>(?:[^']|'')*)'"
    )
    found = [
        match[0]
        for match in literal.finditer(path.read_text())
        if match["text"] and "\\" in match["text"] and not match["escaped"]
    ]
    assert found == []
