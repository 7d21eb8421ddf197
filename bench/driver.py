"""Which driver should our own connections use?

    python bench/driver.py

asyncpg compared with psycopg 3 (binary, prepared), both asynchronous, with the work of a worker:
read a batch of 200 claimed jobs, and report 200 outcomes, one transaction each. Five rounds.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import psycopg

from server import connection, database, record, server, smoke

BATCH = 200
CALLS = 20 if smoke() else 300
ROUNDS = 2 if smoke() else 5

READ = "select id, attempt, kind, payload, created_at from claimed limit 200"
WRITE = (
    "insert into outcome select * from unnest({ids}::uuid[], {attempts}::int[], {results}::jsonb[])"
)
SETUP = """
create table claimed as
select gen_random_uuid() as id, 1 as attempt, 'mark'::text as kind, clock_timestamp() as created_at,
  jsonb_build_object('answer', repeat('word ', 40), 'n', g) as payload
from generate_series(1, 200) g;
create table outcome (id uuid, attempt integer, result jsonb);
"""


async def calls_per_second(call: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        await call()
    return CALLS / (time.perf_counter() - began)


async def main() -> None:
    rates: dict[str, list[float]] = {}
    async with server() as running:
        dsn = await database(running, "driver", migrated=False)
        fast = await connection(dsn)
        await fast.execute(SETUP)
        other = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=0)
        ids: list[UUID] = [row["id"] for row in await fast.fetch(READ)]
        attempts = [1] * BATCH
        results = [json.dumps({"score": n}) for n in range(BATCH)]
        write_fast = WRITE.format(ids="$1", attempts="$2", results="$3::text[]")
        write_other = WRITE.format(ids="%b", attempts="%b", results="%b::text[]")

        async def read_other() -> None:
            async with other.cursor(binary=True) as cursor:
                await cursor.execute(READ)
                await cursor.fetchall()

        async def report_other() -> None:
            async with other.cursor(binary=True) as cursor:
                await cursor.execute(write_other, (ids, attempts, results))

        work: dict[str, Callable[[], Awaitable[Any]]] = {
            "asyncpg read": lambda: fast.fetch(READ),
            "psycopg read": read_other,
            "asyncpg write": lambda: fast.execute(write_fast, ids, attempts, results),
            "psycopg write": report_other,
        }
        for _ in range(ROUNDS):
            for name, call in work.items():
                await fast.execute("truncate outcome")
                rates.setdefault(name, []).append(await calls_per_second(call))
        await other.close()

    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratios = {
        what: round(medians[f"asyncpg {what}"] / medians[f"psycopg {what}"], 2)
        for what in ("read", "write")
    }
    for what, ratio in ratios.items():
        print(
            f"{what:6} batches of {BATCH}: asyncpg {medians[f'asyncpg {what}']:7,.0f}/s"
            f"  psycopg {medians[f'psycopg {what}']:7,.0f}/s  ratio {ratio:.2f}"
        )
    if not smoke():
        record("driver", {"batch": BATCH, "ratios": ratios, "calls_per_second": medians})


if __name__ == "__main__":
    asyncio.run(main())
