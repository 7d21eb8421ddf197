"""All statements on the app's own tables.

All functions take a connection, so that the caller decides what belongs into one transaction.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from studio.forms import Order

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Row = dict[str, Any]

SCHEMA = Path(__file__).with_name("schema.sql")
SCHEMA_LOCK = 0x53545544494F  # "STUDIO": a number of this program only

# With what has been written down of its jobs, how the others are now, and which pictures there are.
_GENERATIONS = """
select g.id, g.batch, g.job_type, g.prompt, g.images, g.quality, g.job_ids, g.created_at,
  (
    select coalesce(jsonb_agg(to_jsonb(e)), '[]') from studio.generation_jobs e
    where e.job_id = any (g.job_ids)
  )::text as ended,
  (
    select coalesce(jsonb_agg(studio.read_job(j.id)), '[]') from unnest(g.job_ids) j (id)
    where not exists (select from studio.generation_jobs e where e.job_id = j.id)
  )::text as live,
  (
    select coalesce(jsonb_agg(jsonb_build_array(i.job_id, i.number) order by i.number), '[]')
    from studio.image i where i.job_id = any (g.job_ids)
  )::text as kept
from studio.generation g
"""


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection for a moment: a job does not hold one while the model draws."""
    conn = await asyncpg.connect(dsn)
    try:
        yield conn
    finally:
        await conn.close()


@asynccontextmanager
async def looking(pool: asyncpg.Pool) -> AsyncIterator[Connection]:
    """Read in one snapshot: a job, and the balance that its settlement has changed."""
    async with (
        pool.acquire() as conn,
        conn.transaction(isolation="repeatable_read", readonly=True),
    ):
        yield conn


async def create_tables(conn: Connection) -> None:
    async with conn.transaction():
        await conn.execute("select pg_advisory_xact_lock($1)", SCHEMA_LOCK)
        await conn.execute(SCHEMA.read_text(encoding="utf-8"))


# --- orders ---------------------------------------------------------------------------------------


async def save(
    conn: Connection, account: str, order: Order, batch: UUID, job_ids: list[UUID]
) -> None:
    """Store an order; a repeated click finds the stored one."""
    await conn.execute(
        "insert into studio.generation"
        " (id, batch, account, job_type, prompt, images, quality, job_ids)"
        " values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (id) do nothing",
        job_ids[0],
        batch,
        account,
        order.job_type,
        order.prompt,
        order.images,
        order.quality,
        job_ids,
    )


async def read(conn: Connection, account: str, generation: UUID) -> Row | None:
    """Return an order of this account, or None."""
    found = await conn.fetch(
        f"{_GENERATIONS} where g.id = $1 and g.account = $2", generation, account
    )
    return next(iter(_rows(found)), None)


async def latest(
    conn: Connection, account: str, limit: int, before: UUID | None = None
) -> list[Row]:
    found = await conn.fetch(
        f"{_GENERATIONS} where g.account = $1 and ($2::uuid is null or g.id < $2)"
        " order by g.id desc limit $3",
        account,
        before,
        limit,
    )
    return _rows(found)


async def batch_of(conn: Connection, account: str, generation: UUID) -> UUID | None:
    batch: UUID | None = await conn.fetchval(
        "select batch from studio.generation where id = $1 and account = $2", generation, account
    )
    return batch


async def read_account(conn: Connection, account: str) -> Row:
    """Return balance, limits, usage, and the priority of the plan."""
    text = await conn.fetchval(
        "select (a || jsonb_build_object('priority', p -> 'priority'))::text"
        " from penstock.read_account($1) a, penstock.list_plans() p"
        " where p ->> 'name' = a ->> 'plan'",
        account,
    )
    found: Row = json.loads(text)
    return found


async def read_job(conn: Connection, job: UUID) -> Row:
    found: Row = json.loads(await conn.fetchval("select penstock.read_job($1)::text", job))
    return found


# --- pictures -------------------------------------------------------------------------------------


async def keep_image(conn: Connection, job: UUID, number: int, account: str, png: bytes) -> None:
    """Store a picture, unless its job has finished meanwhile: nobody would pay for it."""
    await conn.execute(
        "insert into studio.image (job_id, number, account, png) select $1, $2, $3, $4"
        " where not exists (select from studio.generation_jobs where job_id = $1)"
        " on conflict (job_id, number) do update set png = excluded.png",
        job,
        number,
        account,
        png,
    )


async def read_image(conn: Connection, account: str, job: UUID, number: int) -> bytes | None:
    """Return a picture of this account, or None."""
    png: bytes | None = await conn.fetchval(
        "select png from studio.image where job_id = $1 and number = $2 and account = $3",
        job,
        number,
        account,
    )
    return png


async def drop_images(conn: Connection, job: UUID, but: list[int]) -> None:
    await conn.execute(
        "delete from studio.image where job_id = $1 and not number = any ($2::integer[])", job, but
    )


async def record(
    conn: Connection,
    job: UUID,
    account: str | None,
    job_type: str,
    order: dict[str, Any],
    *,
    status: str,
    pictures: list[Row],
    reserved: int,
    charged: int,
    error_class: str | None,
    created_at: datetime,
    completed_at: datetime,
) -> None:
    """Write the row of the history; a second outcome changes nothing."""
    await conn.execute(
        "insert into studio.generation_jobs (job_id, account, job_type, prompt, quality, images,"
        " status, pictures, credits_reserved, credits_charged, error_class, created_at,"
        " completed_at)"
        " values ($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9, $10, $11, $12, $13)"
        " on conflict (job_id) do nothing",
        job,
        account,
        job_type,
        order["prompt"],
        order["quality"],
        order["images"],
        status,
        json.dumps(pictures),
        reserved,
        charged,
        error_class,
        created_at,
        completed_at,
    )


def _rows(found: list[asyncpg.Record]) -> list[Row]:
    return [
        {
            **row,
            "ended": json.loads(row["ended"]),
            "kept": json.loads(row["kept"]),
            "live": [one for one in json.loads(row["live"]) if one is not None],
        }
        for row in found
    ]
