"""How near is the engine to what Postgres itself can do?

    python bench/engine.py [--smoke]

One run of five rounds, with all measurements in turn in each round; the result is medians, and
ratios of medians. bench/bare.py says what the bare SQL does, and what it does not.
"""

import asyncio
import statistics
from collections.abc import Sequence
from itertools import cycle, islice

import asyncpg

import bare
from bare import BATCH, Rate, settle, timed
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Succeeded
from server import connection, database, record, server, smoke

SMALL = smoke()
ROUNDS = 2 if SMALL else 5
JOBS = 2_000 if SMALL else 20_000
ACCOUNTS = 100 if SMALL else 1_000
BACKLOG = 20_000 if SMALL else 1_000_000
BULK = 5_000 if SMALL else 50_000


async def core(
    conn: asyncpg.Connection, queue: str, accounts: Sequence[str | None], kinds: int = 1
) -> Rate:
    """Call the SQL functions in the same way as the bare SQL; jobs of `kinds` kinds in turn."""
    names = [queue, *(f"{queue}-{n}" for n in range(2, kinds + 1))]
    await fill(conn, names, JOBS, accounts)
    worker = await conn.fetchval("select penstock.register_worker('bench', '1 day')")
    await settle(conn, "penstock.job", "penstock.lane", "penstock.account")
    return await timed(JOBS, lambda: drain(conn, worker, queue, JOBS))


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
        verdicts = await conn.fetch(
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
        assert all(row["verdict"] == "done" for row in verdicts)


async def python(engine: Engine, conn: asyncpg.Connection) -> Rate:
    """Do the same through the Python engine, with its dataclasses."""
    await fill(conn, ["plain"], JOBS, [None])
    worker = await engine.workers.register("bench")
    await settle(conn, "penstock.job")

    async def work() -> None:
        while jobs := await engine.jobs.claim(worker, "plain", BATCH):
            await engine.jobs.finish(worker, [(job, Succeeded({})) for job in jobs])

    return await timed(JOBS, work)


async def fill(
    conn: asyncpg.Connection, kinds: Sequence[str], jobs: int, accounts: Sequence[str | None]
) -> None:
    names = list(islice(cycle(accounts), jobs)) if any(accounts) else None
    await conn.execute(
        "select count(*) from penstock.submit_many($1, $2, $3)",
        list(islice(cycle(kinds), jobs)),
        [{}] * jobs,
        names,
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
                " from unnest(array['plain', 'laned', 'bulk', 'deep', 'some', 'many']) q"
            )
            await conn.execute(
                "select penstock.declare_kind(format('%s-%s', q.name, n), q.name)"
                " from (values ('some', 10), ('many', 50)) q (name, kinds),"
                " generate_series(2, q.kinds) n"
            )
            await conn.execute("""select penstock.declare_plan('one', '{"concurrency": 1}')""")
        await small.execute(bare.TABLES)
        await small.execute(bare.COPIED)
        accounts = [f"a{n}" for n in range(ACCOUNTS)]

        print(f"filling a backlog of {BACKLOG:,} jobs")
        for _ in range(BACKLOG // BULK or 1):
            await fill(large, ["deep"], min(BULK, BACKLOG), [None])
        await fill(small, ["deep"], JOBS, [None])
        await settle(large, "penstock.job")
        deep = {
            conn: await conn.fetchval("select penstock.register_worker('bench', '1 day')")
            for conn in (small, large)
        }

        async with await Engine.open(dsn) as engine:
            for number in range(1, ROUNDS + 1):
                print(f"round {number} of {ROUNDS}")
                note("bare", await bare.claim_and_finish(small, JOBS))
                note("core", await core(small, "plain", [None]))
                note("python", await python(engine, small))
                note("accounts", await core(small, "laned", accounts))
                note("ten kinds", await core(small, "some", [None], 10))
                note("fifty kinds", await core(small, "many", [None], 50))
                for name, conn in (("backlog small", small), ("backlog large", large)):
                    work = lambda conn=conn: drain(conn, deep[conn], "deep", JOBS // 2)  # noqa: E731
                    note(name, await timed(JOBS // 2, work))
                await fill(small, ["deep"], JOBS // 2, [None])
                await settle(small, "penstock.job")
                note("copy", await bare.copy(small, BULK))
                note("bulk", await bulk(small))
                await fill(small, ["deep"], JOBS, [None])

        unsound = [await conn.fetch("select * from penstock.check()") for conn in (small, large)]
        assert not any(unsound), unsound

    report({name: statistics.median(values) for name, values in rates.items()}, rates)


GOALS = (
    ("claim + finish, SQL functions / bare SQL", "core", "bare", 0.6),
    ("claim + finish, Python engine / bare SQL", "python", "bare", 0.6),
    (f"the same with {ACCOUNTS:,} accounts, one running each / bare SQL", "accounts", "bare", 0.3),
    ("the same with 10 kinds in the queue / with one", "ten kinds", "core", 0.7),
    ("the same with 50 kinds in the queue / with one", "fifty kinds", "core", 0.5),
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
