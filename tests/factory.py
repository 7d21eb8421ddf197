"""Queues, jobs and workers in one line each, straight through the SQL functions."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

Row = asyncpg.Record


async def queue(conn: asyncpg.Connection, name: str = "q", **options: Any) -> str:
    """A queue and a kind of the same name in it."""
    await conn.execute("select penstock.declare_queue($1, $2)", name, options)
    await conn.execute("select penstock.declare_kind($1, $1)", name)
    return name


async def plan(conn: asyncpg.Connection, name: str = "free", **options: Any) -> str:
    """A plan, the default one unless it says otherwise; accounts are made at their first submit."""
    await conn.execute("select penstock.declare_plan($1, $2)", name, {"default": True} | options)
    return name


async def worker(conn: asyncpg.Connection, name: str = "w", *, lease: str = "15 seconds") -> int:
    number: int = await conn.fetchval(
        "select penstock.register_worker($1, $2::text::interval)", name, lease
    )
    return number


async def submit(conn: asyncpg.Connection, kind: str = "q", **fields: Any) -> UUID:
    """One job; `fields` are the arguments of penstock.submit_job."""
    [job] = await submit_rows(conn, [{"kind": kind} | fields])
    return job


async def submit_rows(conn: asyncpg.Connection, jobs: Sequence[dict[str, Any]]) -> list[UUID]:
    rows = await conn.fetch(
        "select job ->> 'id' as id from penstock.submit_jobs($1) with ordinality s (job, n)"
        " order by n",
        [{"payload": {}} | job for job in jobs],
    )
    return [UUID(row["id"]) for row in rows]


async def claim(
    conn: asyncpg.Connection, worker: int, queue: str = "q", limit: int = 1
) -> list[Row]:
    rows: list[Row] = await conn.fetch(
        "select * from penstock.claim_jobs($1, $2, $3)", worker, queue, limit
    )
    return rows


async def finish(
    conn: asyncpg.Connection,
    worker: int,
    started: Sequence[Row],
    outcome: str = "succeeded",
    *,
    result: Any = None,
    error: dict[str, Any] | None = None,
    delay: str | None = None,
) -> list[Row]:
    """End these starts, all the same way; a row (job_id, verdict, status) for each."""
    n = len(started)
    rows: list[Row] = await conn.fetch(
        "select * from penstock.finish_jobs($1, $2, $3, $4, $5, $6, $7::text[]::interval[])",
        worker,
        [row["id"] for row in started],
        [row["attempt"] for row in started],
        [outcome] * n,
        [result] * n,
        [error] * n,
        [delay] * n,
    )
    return rows


async def read(conn: asyncpg.Connection, job: UUID) -> dict[str, Any]:
    answer = await conn.fetchval("select penstock.read_job($1)", job)
    assert isinstance(answer, dict), json.dumps(answer)
    return answer


async def status(conn: asyncpg.Connection, job: UUID) -> str:
    answer: str = (await read(conn, job))["status"]
    return answer
