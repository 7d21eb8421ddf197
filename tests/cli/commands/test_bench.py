"""`penstock bench`: it prints figures of this server and drops its database."""

import asyncio
import json
from pathlib import Path

import asyncpg
import psycopg

from penstock.db.embedded.database import Embedded
from support.shapes import Penstock

DATABASES = "select datname from pg_database where datname like 'penstock_bench%'"


def test_it_measures_in_a_separate_database(penstock: Penstock) -> None:
    done = penstock("bench", "--jobs", "200", "--json")
    assert done.code == 0, done.err
    lines = json.loads(done.out)
    assert [line["unit"] for line in lines] == ["/s"] * 4 + ["ms"] * 2
    assert all(line["value"] > 0 for line in lines)
    assert lines[1]["beside"] == lines[0]["value"]
    half, most = (line["value"] for line in lines[-2:])
    assert half <= most
    assert asyncio.run(_databases_left()) == []


async def _databases_left() -> list[asyncpg.Record]:
    embedded = await asyncio.to_thread(Embedded.use, Path(".penstock"))
    try:
        conn = await asyncpg.connect(embedded.admin_dsn)
        try:
            return list(await conn.fetch(DATABASES))
        finally:
            await conn.close()
    finally:
        await asyncio.to_thread(embedded.leave)


def test_a_role_that_may_not_create_databases_gets_advice(
    penstock: Penstock, db: psycopg.Connection
) -> None:
    assert db.execute(
        "select rolcreatedb from pg_roles where rolname = current_user"
    ).fetchone() == (False,)
    done = penstock("bench")
    assert done.code == 1
    assert "may not. Grant it CREATEDB" in done.err
    assert "Traceback" not in done.err


def test_wrong_sizes_are_refused(penstock: Penstock) -> None:
    done = penstock("bench", "--jobs", "3")
    assert done.code == 2
    assert "--jobs" in done.err
