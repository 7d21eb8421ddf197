"""What Postgres itself can do: the bare SQL with which our figures are compared.

The bare claim and finish do the same work on a minimal table: claim a batch with SKIP LOCKED, then
move it to a history table, fenced by the attempt. It has one index for the claim and no accounts,
limits, retries, deadlines or partitions.
"""

import asyncio
import io
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

import asyncpg

BATCH = 200

TABLES = """
create table bare_job (
  id uuid primary key, queue text not null, rank bigint not null, state text not null,
  attempt integer not null, worker bigint, started_at timestamptz, payload jsonb not null
);
create index on bare_job (queue, rank) where state = 'queued';
create table bare_history (
  id uuid primary key, queue text not null, rank bigint not null, state text not null,
  attempt integer not null, worker bigint, started_at timestamptz, finished_at timestamptz,
  payload jsonb not null, result jsonb
);
"""
COPIED = "create table copied (like penstock.job including all)"
_CLAIM = """
with next as materialized (
  select id from bare_job where queue = $1 and state = 'queued'
  order by rank limit $2 for update skip locked
)
update bare_job j set state = 'running', attempt = attempt + 1, worker = 1,
  started_at = clock_timestamp()
from next where j.id = next.id returning j.id, j.attempt, j.payload
"""
_FINISH = """
with finished as (
  delete from bare_job j
  using unnest($1::uuid[], $2::integer[], $3::jsonb[]) t (id, attempt, result)
  where j.id = t.id and j.attempt = t.attempt and j.state = 'running'
  returning j.*, t.result
)
insert into bare_history
select id, queue, rank, 'succeeded', attempt, worker, started_at, clock_timestamp(), payload, result
from finished
"""
_INSERT = (
    "insert into bare_job values (gen_random_uuid(), 'q', $1, 'queued', 0, null, null, '{}')"
    " returning id"
)

Rate = float
Milliseconds = float


async def timed(jobs: int, work: Callable[[], Awaitable[None]]) -> Rate:
    began = time.perf_counter()
    await work()
    return jobs / (time.perf_counter() - began)


async def settle(conn: asyncpg.Connection, *tables: str) -> None:
    """Do, between rounds, what autovacuum would do during one, so that it is not measured."""
    for table in tables:
        await conn.execute(f"vacuum analyze {table}")
    if await conn.fetchval("select pg_has_role('pg_checkpoint', 'member')"):
        await conn.execute("checkpoint")


async def claim_and_finish(conn: asyncpg.Connection, jobs: int) -> Rate:
    await conn.execute("truncate bare_job, bare_history")
    await conn.execute(
        "insert into bare_job select gen_random_uuid(), 'q', g, 'queued', 0, null, null, '{}'"
        " from generate_series(1, $1::integer) g",
        jobs,
    )
    await settle(conn, "bare_job")

    async def work() -> None:
        while rows := await conn.fetch(_CLAIM, "q", BATCH):
            await conn.execute(
                _FINISH,
                [row["id"] for row in rows],
                [row["attempt"] for row in rows],
                [{}] * len(rows),
            )

    return await timed(jobs, work)


async def copy(conn: asyncpg.Connection, jobs: int) -> Rate:
    """Copy ready-made rows into a table with the columns and indexes of penstock.job."""
    now = await conn.fetchval("select clock_timestamp()::text")
    rows = "".join(
        f"{uuid4()}\t{n}\t-1\t0\t1\t1\tqueued\t0\t3\t{now}\t{now}\t{now}\t{{}}\n"
        for n in range(jobs)
    ).encode()
    columns = [
        "id",
        "rank",
        "lane",
        "account_id",
        "queue_id",
        "kind_id",
        "status",
        "priority",
        "max_attempts",
        "created_at",
        "updated_at",
        "run_at",
        "payload",
    ]

    async def work() -> None:
        await conn.copy_to_table("copied", source=io.BytesIO(rows), columns=columns)

    rate = await timed(jobs, work)
    await conn.execute("truncate copied")
    return rate


async def insert(conn: asyncpg.Connection) -> Milliseconds:
    """Commit one row; return how long it took."""
    began = time.perf_counter()
    await conn.fetchval(_INSERT, 1)
    return (time.perf_counter() - began) * 1e3


async def commits(conn: asyncpg.Connection, rows: int) -> Rate:
    """Make single-row commits, one after the other."""
    await conn.execute("truncate bare_job")

    async def work() -> None:
        for _ in range(rows):
            await insert(conn)

    return await timed(rows, work)


class Echo:
    """A NOTIFY from one session, received by another."""

    def __init__(self, sender: asyncpg.Connection) -> None:
        self._sender = sender
        self._received: asyncio.Future[float] | None = None

    @classmethod
    async def between(cls, sender: asyncpg.Connection, receiver: asyncpg.Connection) -> "Echo":
        echo = cls(sender)
        await receiver.add_listener("bare", lambda *_: echo._receive())
        return echo

    def _receive(self) -> None:
        if self._received is not None and not self._received.done():
            self._received.set_result(time.perf_counter())

    async def round_trip(self) -> Milliseconds:
        """Return the time from just before the NOTIFY is sent until the receiver has it."""
        self._received = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        await self._sender.fetchval("select pg_notify('bare', 'q')")
        return (await self._received - began) * 1e3
