"""The cost of a call, counted by Postgres: rows, scans and pages; no times are measured."""

import json
from dataclasses import dataclass

import asyncpg


@dataclass
class Work:
    """What one call read."""

    job_rows: int
    sequential_scans: int
    pages: int
    index_scans: dict[str, int]


async def warmed(conn: asyncpg.Connection, sql: str, *args: object) -> Work:
    """Measure the second call: the first in a session also reads the catalogue and makes plans."""
    undone = conn.transaction()
    await undone.start()
    await conn.fetch(sql, *args)
    await undone.rollback()
    return await measured(conn, sql, *args)


async def measured(conn: asyncpg.Connection, sql: str, *args: object) -> Work:
    """Run one call, keep its effect, and count what it did to the job table."""
    async with conn.transaction():
        before = await counters(conn)
        plan = await conn.fetchval(f"explain (analyze, buffers, format json) {sql}", *args)
        after = await counters(conn)
    [top] = json.loads(plan) if isinstance(plan, str) else plan
    pages = top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"]
    return Work(
        job_rows=after["rows"] - before["rows"],
        sequential_scans=after["seq"] - before["seq"],
        pages=pages,
        index_scans={
            name.removeprefix("index "): after[name] - before[name]
            for name in after
            if name.startswith("index ") and after[name] != before[name]
        },
    )


async def counters(conn: asyncpg.Connection) -> dict[str, int]:
    table = await conn.fetchrow(
        "select seq_scan as seq, seq_tup_read + coalesce(idx_tup_fetch, 0) as rows"
        " from pg_stat_xact_user_tables where relid = 'penstock.job'::regclass"
    )
    indexes = await conn.fetch(
        "select 'index ' || indexrelid::regclass::text as name,"
        " pg_stat_get_xact_numscans(indexrelid) as n"
        " from pg_index where indrelid = 'penstock.job'::regclass"
    )
    assert table
    return dict(table) | {row["name"]: row["n"] for row in indexes}


async def fill(
    conn: asyncpg.Connection, jobs: int, *, accounts: int = 0, account: str | None = None
) -> None:
    """Queue `jobs` jobs: without an account, of one account, or of many in turn."""
    await conn.execute(
        "select count(*) from penstock.submit_many(array_fill('q'::text, array[$1::integer]),"
        " array_fill('{}'::jsonb, array[$1]),"
        " case when $2::integer > 0"
        "        then (select array_agg('a' || g % $2) from generate_series(1, $1) g)"
        "      when $3::text is not null then array_fill($3::text, array[$1]) end)",
        jobs,
        accounts,
        account,
    )
