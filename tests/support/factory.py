"""Queues, jobs and workers in one line each, directly through the SQL functions."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support.waiting import eventually

Row = asyncpg.Record


async def queue(conn: asyncpg.Connection, name: str = "q", **options: Any) -> str:
    """A queue and a kind of the same name in it."""
    await conn.execute("select penstock.declare_queue($1, $2)", name, options)
    await conn.execute("select penstock.declare_kind($1, $1)", name)
    return name


async def plan(conn: asyncpg.Connection, name: str = "free", **options: Any) -> str:
    """A plan, the default one unless stated otherwise; accounts are made at their first submit."""
    await conn.execute("select penstock.declare_plan($1, $2)", name, {"default": True} | options)
    return name


async def worker(
    conn: asyncpg.Connection,
    name: str = "w",
    *,
    lease: str = "15 seconds",
    queues: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> int:
    """A worker that serves these queues and kinds; None: any."""
    number: int = await conn.fetchval(
        "select penstock.register_worker($1, $2::text::interval, $3, $4)",
        name,
        lease,
        queues,
        kinds,
    )
    return number


async def kind(conn: asyncpg.Connection, name: str, queue: str = "q") -> str:
    """One more kind in a queue."""
    await conn.execute("select penstock.declare_kind($1, $2)", name, queue)
    return name


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
    effect: str | None = None,
    retry_after: str | None = None,
    address: str | None = None,
) -> list[Row]:
    """Finish these attempts, all in the same way; a row (job_id, verdict, status) for each."""
    n = len(started)
    rows: list[Row] = await conn.fetch(
        "select * from penstock.finish_jobs($1, $2, $3, $4, $5, $6, $7::text[]::interval[],"
        " p_effects => $8, p_retry_afters => $9::text[]::interval[], p_addresses => $10)",
        worker,
        [row["id"] for row in started],
        [row["attempt"] for row in started],
        [outcome] * n,
        [result] * n,
        [error] * n,
        [delay] * n,
        [effect] * n,
        [retry_after] * n,
        [address] * n,
    )
    return rows


async def read(conn: asyncpg.Connection, job: UUID) -> dict[str, Any]:
    answer = await conn.fetchval("select penstock.read_job($1)", job)
    assert isinstance(answer, dict), json.dumps(answer)
    return answer


async def status(conn: asyncpg.Connection, job: UUID) -> str:
    answer: str = (await read(conn, job))["status"]
    return answer


async def recover(conn: asyncpg.Connection) -> list[Row]:
    """One pass of upkeep; a row (job_id, outcome, verdict, status) for each settled attempt."""
    rows: list[Row] = await conn.fetch("select * from penstock.recover_jobs()")
    return rows


async def hand_over(conn: asyncpg.Connection, worker: int, started: Row, token: str) -> str:
    verdict: str = await conn.fetchval(
        "select verdict from penstock.hand_over_jobs($1, $2, $3, $4)",
        worker,
        [started["id"]],
        [started["attempt"]],
        [token],
    )
    return verdict


async def call_back(
    conn: asyncpg.Connection,
    job: UUID,
    attempt: int,
    token: str | None,
    outcome: str | None = "succeeded",
    *,
    result: Any = None,
    error: dict[str, Any] | None = None,
    effect: str | None = None,
) -> str:
    """Send the callback of an outside function for one job; return its outcome."""
    answer: str = await conn.fetchval(
        "select outcome from penstock.resolve_callbacks($1, $2, $3, $4, $5, $6, p_effects => $7)",
        [job],
        [attempt],
        [token],
        [outcome],
        [result],
        [error],
        [effect],
    )
    return answer


async def prune(conn: asyncpg.Connection) -> list[str]:
    """Do what upkeep does in many passes: partitions for the coming days, none of the past."""
    await conn.execute("select penstock.make_partitions()")
    gone: list[str] = []
    while rows := await conn.fetch("select what from penstock.prune_history()"):
        gone.extend(row["what"] for row in rows)
        assert len(gone) < 1_000, "pruning does not finish"
    return gone


async def drain(
    conn: asyncpg.Connection, worker: int, queue: str = "q", most: int = 1_000
) -> list[Any]:
    """Run due jobs one after the other; return the `n` of their payloads in the order of starts."""
    order: list[Any] = []
    while len(order) < most and (started := await claim(conn, worker, queue)):
        order.append(started[0]["payload"]["n"])
        await finish(conn, worker, started)
    return order


@contextmanager
def refused(status: int, code: str, field: str | None = None) -> Iterator[dict[str, Any]]:
    """The block is refused with these; yields the other fields of the error afterwards."""
    detail: dict[str, Any] = {}
    with pytest.raises(asyncpg.PostgresError) as caught:
        yield detail
    error = caught.value
    assert error.sqlstate == f"PS{status}", f"{error.sqlstate}: {error}"
    detail.update(json.loads(error.detail or "{}"), message=error.message, hint=error.hint)
    assert (detail["code"], detail.get("field")) == (code, field), error.detail


async def contents(conn: asyncpg.Connection) -> dict[str, tuple[int, str]]:
    """How many rows each table has, and a hash of them: equal when nothing was written."""
    tables = await conn.fetch(
        "select oid::regclass::text as name from pg_class"
        " where relnamespace = 'penstock'::regnamespace and relkind in ('r', 'p')"
        " and not relispartition"
    )
    found = {}
    for table in tables:
        row = await conn.fetchrow(
            "select count(*) as n, coalesce(md5(string_agg(t::text, '|' order by t::text)), '')"
            f" as print from {table['name']} t"
        )
        assert row
        found[table["name"]] = (row["n"], row["print"])
    return found


async def until_blocked(watcher: asyncpg.Connection, conn: asyncpg.Connection) -> None:
    """Return when the call on `conn` waits for another session's lock."""
    pid = conn.get_server_pid()
    await eventually(lambda: watcher.fetchval(_IS_BLOCKED, pid), "it waits for a lock")


async def until_blocked_or_done(
    watcher: asyncpg.Connection, conn: asyncpg.Connection, task: asyncio.Task[Any]
) -> None:
    """The same for a `task` that may also have given up waiting for the lock."""
    pid = conn.get_server_pid()

    async def settled() -> bool:
        return task.done() or bool(await watcher.fetchval(_IS_BLOCKED, pid))

    await eventually(settled, "it waits for a lock, or has returned")


_IS_BLOCKED = "select pg_blocking_pids($1) <> '{}'"
