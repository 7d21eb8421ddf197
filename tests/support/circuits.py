"""A queue with a provider, set up in one line each."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from support import factory
from support.factory import Row

Circuit = asyncpg.Record

EFFECTS = {
    "unavailable": ("deferred", "opens"),
    "overloaded": ("deferred", "opens"),
    "rate_limited": ("deferred", "pauses"),
    "auth": ("deferred", "stops"),
    "quota": ("deferred", "stops"),
    "config": ("deferred", "stops"),
    "provider_error": ("provisional", "counts"),
    "interrupted": ("provisional", "counts"),
    "stalled": ("provisional", "counts"),
}


async def circuit(conn: asyncpg.Connection, queue: str = "q") -> Circuit:
    row = await conn.fetchrow(
        "select c.* from penstock.circuit c join penstock.queue q on q.id = c.queue_id"
        " where q.name = $1",
        queue,
    )
    assert row
    return row


async def end(
    conn: asyncpg.Connection,
    worker: int,
    started: Sequence[Row],
    cls: str,
    *,
    after: float | None = None,
    address: str | None = None,
    delay: str | None = None,
) -> list[Row]:
    """Finish these attempts as the worker does when the provider fails in this way."""
    outcome, effect = EFFECTS[cls]
    return await factory.finish(
        conn,
        worker,
        started,
        outcome,
        error={"class": cls, "message": "no", "retryable": True},
        delay=delay,
        effect=effect,
        retry_after=None if after is None else f"{after} seconds",
        address=address,
    )


async def fail(conn: asyncpg.Connection, worker: int, cls: str, **fields: Any) -> UUID:
    """Start the next job, and let it fail in this way."""
    started = await factory.claim(conn, worker)
    assert len(started) == 1, f"{len(started)} started"
    await end(conn, worker, started, cls, **fields)
    job: UUID = started[0]["id"]
    return job


async def noticed(conn: asyncpg.Connection, trouble: str = "outage") -> None:
    """Let another job have the same failure just now: the next one opens the circuit."""
    await conn.execute(
        "update penstock.circuit set in_row = 1, row_trouble = $1, row_job = gen_random_uuid(),"
        " row_mixed = false where state = 'closed'",
        trouble,
    )


async def opened(conn: asyncpg.Connection, *, jobs: int = 3, **options: Any) -> int:
    """A queue whose provider is unavailable from now on, with jobs; the worker that noticed it."""
    await factory.queue(conn, **options)
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit_rows(conn, [{"kind": "q"}] * jobs)
    while (await circuit(conn))["state"] != "open":
        started = await factory.claim(conn, worker, limit=2)
        await end(conn, worker, started, "unavailable", address="127.0.0.1:11434", delay="0")
    return worker
