"""How near does the engine come to what Postgres itself can do?

    python bench/engine.py [--smoke]

One run, five rounds, everything in turn within each round; medians, and ratios of medians. The
bare SQL does the same work on a minimal table: claim a batch with SKIP LOCKED, then move it to a
history table, fenced by the attempt. It has one index for the claim and no accounts, limits,
retries, deadlines or partitions.
"""

import asyncio
import io
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle, islice
from uuid import uuid4

import asyncpg

from penstock.engine import Engine
from penstock.engine.outcomes import Succeeded
from server import connection, database, record, server, smoke

SMALL = smoke()
ROUNDS = 2 if SMALL else 5
BATCH = 200
JOBS = 2_000 if SMALL else 20_000
ACCOUNTS = 100 if SMALL else 1_000
BACKLOG = 20_000 if SMALL else 1_000_000
BULK = 5_000 if SMALL else 50_000

BARE = """
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
BARE_CLAIM = """
with next as materialized (
  select id from bare_job where queue = $1 and state = 'queued'
  order by rank limit $2 for update skip locked
)
update bare_job j set state = 'running', attempt = attempt + 1, worker = 1,
  started_at = clock_timestamp()
from next where j.id = next.id returning j.id, j.attempt, j.payload
"""
BARE_FINISH = """
with ended as (
  delete from bare_job j
  using unnest($1::uuid[], $2::integer[], $3::jsonb[]) t (id, attempt, result)
  where j.id = t.id and j.attempt = t.attempt and j.state = 'running'
  returning j.*, t.result
)
insert into bare_history
select id, queue, rank, 'succeeded', attempt, worker, started_at, clock_timestamp(), payload, result
from ended
"""

Rate = float


async def timed(jobs: int, work: Callable[[], Awaitable[None]]) -> Rate:
    began = time.perf_counter()
    await work()
    return jobs / (time.perf_counter() - began)


async def settle(conn: asyncpg.Connection, *tables: str) -> None:
    """Between rounds: what autovacuum would do in its own time is done, and not measured."""
    for table in tables:
        await conn.execute(f"vacuum analyze {table}")
    await conn.execute("checkpoint") if await _may_checkpoint(conn) else None


async def _may_checkpoint(conn: asyncpg.Connection) -> bool:
    may: bool = await conn.fetchval("select pg_has_role('pg_checkpoint', 'member')")
    return may


async def bare(conn: asyncpg.Connection) -> Rate:
    await conn.execute("truncate bare_job, bare_history")
    await conn.execute(
        "insert into bare_job select gen_random_uuid(), 'q', g, 'queued', 0, null, null, '{}'"
        " from generate_series(1, $1::integer) g",
        JOBS,
    )
    await settle(conn, "bare_job")

    async def work() -> None:
        while rows := await conn.fetch(BARE_CLAIM, "q", BATCH):
            await conn.execute(
                BARE_FINISH,
                [row["id"] for row in rows],
                [row["attempt"] for row in rows],
                [{}] * len(rows),
            )

    return await timed(JOBS, work)


async def core(conn: asyncpg.Connection, kind: str, accounts: Sequence[str | None]) -> Rate:
    """The SQL functions, called as the bare SQL is."""
    await fill(conn, kind, JOBS, accounts)
    worker = await conn.fetchval("select penstock.register_worker('bench', '1 day')")
    await settle(conn, "penstock.job", "penstock.lane", "penstock.account")
    return await timed(JOBS, lambda: drain(conn, worker, kind, JOBS))


async def drain(conn: asyncpg.Connection, worker: int, queue: str, jobs: int) -> None:
    left = jobs
    while left > 0:
        rows = await conn.fetch(
            "select id, attempt, slot_account, payload from penstock.claim_jobs($1, $2, $3)",
            worker,
            queue,
            min(BATCH, left),
        )
        left -= len(rows)
        ended = await conn.fetch(
            "select job_id, verdict from penstock.finish_jobs($1, $2, $3, $4, $5,"
            " p_accounts => $6)",
            worker,
            [row["id"] for row in rows],
            [row["attempt"] for row in rows],
            ["succeeded"] * len(rows),
            [{}] * len(rows),
            list({row["slot_account"] for row in rows} - {None}),
        )
        assert rows
        assert all(row["verdict"] == "done" for row in ended)


async def python(engine: Engine, conn: asyncpg.Connection) -> Rate:
    """The same through the Python engine, with its values."""
    await fill(conn, "plain", JOBS, [None])
    worker = await engine.workers.register("bench")
    await settle(conn, "penstock.job")

    async def work() -> None:
        while jobs := await engine.jobs.claim(worker, "plain", BATCH):
            await engine.jobs.finish(worker, [(job, Succeeded({})) for job in jobs])

    return await timed(JOBS, work)


async def fill(
    conn: asyncpg.Connection, kind: str, jobs: int, accounts: Sequence[str | None]
) -> None:
    names = list(islice(cycle(accounts), jobs)) if any(accounts) else None
    await conn.execute(
        "select count(*) from penstock.submit_many($1, $2, $3)", [kind] * jobs, [{}] * jobs, names
    )


async def bulk(conn: asyncpg.Connection) -> Rate:
    kinds, payloads = ["bulk"] * BULK, [{}] * BULK

    async def work() -> None:
        await conn.fetch(
            "select id, status, deduplicated from penstock.submit_many($1, $2)", kinds, payloads
        )

    rate = await timed(BULK, work)
    await conn.execute("delete from penstock.job")
    await settle(conn, "penstock.job")
    return rate


async def copy(conn: asyncpg.Connection) -> Rate:
    """COPY of ready-made rows into a table with the columns and indexes of penstock.job."""
    now = await conn.fetchval("select clock_timestamp()::text")
    rows = "".join(
        f"{uuid4()}\t{n}\t-1\t0\t1\t1\tqueued\t0\t3\t{now}\t{now}\t{now}\t{{}}\n"
        for n in range(BULK)
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

    rate = await timed(BULK, work)
    await conn.execute("truncate copied")
    return rate


async def main() -> None:
    rates: dict[str, list[Rate]] = {}

    def note(name: str, rate: Rate) -> None:
        rates.setdefault(name, []).append(rate)

    async with server() as running:
        small = await connection(dsn := await database(running, "small"))
        large = await connection(await database(running, "large"))
        for conn in (small, large):
            await conn.execute(
                "select penstock.declare_queue(q), penstock.declare_kind(q, q)"
                " from unnest(array['plain', 'laned', 'bulk', 'deep']) q"
            )
            await conn.execute("""select penstock.declare_plan('one', '{"concurrency": 1}')""")
        await small.execute(BARE)
        await small.execute("create table copied (like penstock.job including all)")
        accounts = [f"a{n}" for n in range(ACCOUNTS)]

        print(f"filling a backlog of {BACKLOG:,} jobs")
        for _ in range(BACKLOG // BULK or 1):
            await fill(large, "deep", min(BULK, BACKLOG), [None])
        await fill(small, "deep", JOBS, [None])
        await settle(large, "penstock.job")
        deep = {
            conn: await conn.fetchval("select penstock.register_worker('bench', '1 day')")
            for conn in (small, large)
        }

        async with await Engine.open(dsn) as engine:
            for number in range(1, ROUNDS + 1):
                print(f"round {number} of {ROUNDS}")
                note("bare", await bare(small))
                note("core", await core(small, "plain", [None]))
                note("python", await python(engine, small))
                note("accounts", await core(small, "laned", accounts))
                for name, conn in (("backlog small", small), ("backlog large", large)):
                    work = lambda conn=conn: drain(conn, deep[conn], "deep", JOBS // 2)  # noqa: E731
                    note(name, await timed(JOBS // 2, work))
                await fill(small, "deep", JOBS // 2, [None])
                await settle(small, "penstock.job")
                note("copy", await copy(small))
                note("bulk", await bulk(small))
                await fill(small, "deep", JOBS, [None])

        unsound = [await conn.fetch("select * from penstock.check()") for conn in (small, large)]
        assert not any(unsound), unsound

    report({name: statistics.median(values) for name, values in rates.items()}, rates)


GOALS = (
    ("claim + finish, SQL functions / bare SQL", "core", "bare", 0.6),
    ("claim + finish, Python engine / bare SQL", "python", "bare", 0.6),
    (f"the same with {ACCOUNTS:,} accounts, one running each / bare SQL", "accounts", "bare", 0.3),
    (f"at a backlog of {BACKLOG:,} / of {JOBS:,}", "backlog large", "backlog small", 0.9),
    (f"bulk submit of {BULK:,} / COPY with the same indexes", "bulk", "copy", 0.3),
)


def report(medians: dict[str, Rate], rates: dict[str, list[Rate]]) -> None:
    print(f"\n{'':66}{'ratio':>7}{'goal':>6}{'ours/s':>10}{'other/s':>10}")
    ratios = {}
    for what, ours, other, goal in GOALS:
        ratios[what] = round(medians[ours] / medians[other], 2)
        print(
            f"{what:66}{ratios[what]:>7.2f}{goal:>6.1f}"
            f"{medians[ours]:>10,.0f}{medians[other]:>10,.0f}"
        )
    if not SMALL:
        rounds = {name: [round(rate) for rate in values] for name, values in rates.items()}
        record("engine", {"batch": BATCH, "ratios": ratios, "jobs_per_second": rounds})


if __name__ == "__main__":
    asyncio.run(main())
