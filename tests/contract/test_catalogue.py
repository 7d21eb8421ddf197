"""What the catalogue of a migrated database must say, whoever wrote the functions."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

import penstock
from penstock.engine.states import LIVE, JobStatus

SRC = Path(penstock.__file__).parent


@pytest.fixture
async def conn(migrated: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(migrated)
    yield conn
    await conn.close()


async def test_no_function_is_executable_by_everyone(conn: asyncpg.Connection) -> None:
    rows = await conn.fetch(
        "select p.oid::regprocedure::text as name from pg_proc p"
        " cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        " where p.pronamespace = 'penstock'::regnamespace and a.grantee = 0"
    )
    assert [row["name"] for row in rows] == []


async def test_every_function_says_where_its_names_are_found(conn: asyncpg.Connection) -> None:
    """A function that follows the caller's search path can be led to the caller's own objects.

    Only small ones in plain SQL may go without, since a setting would keep Postgres from inlining
    them; they run inside a function that has the setting, and never with the owner's rights. And
    procedures, which could not commit with it: with the caller's rights, and each name in full.
    """
    rows = await conn.fetch(
        "select p.oid::regprocedure::text as name from pg_proc p"
        " join pg_language l on l.oid = p.prolang"
        " where p.pronamespace = 'penstock'::regnamespace"
        " and (p.prosecdef or (l.lanname <> 'sql' and p.prokind <> 'p'))"
        " and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)"
    )
    assert [row["name"] for row in rows] == []


async def test_everything_belongs_to_a_role_that_is_no_superuser(conn: asyncpg.Connection) -> None:
    rows = await conn.fetch(
        "select c.oid::regclass::text as name from pg_class c"
        " join pg_roles r on r.oid = c.relowner"
        " where c.relnamespace = 'penstock'::regnamespace and r.rolsuper"
        " union all select p.oid::regprocedure::text from pg_proc p"
        " join pg_roles r on r.oid = p.proowner"
        " where p.pronamespace = 'penstock'::regnamespace and r.rolsuper"
    )
    assert [row["name"] for row in rows] == []


async def test_the_statuses_are_those_of_states_py(conn: asyncpg.Connection) -> None:
    found = await conn.fetchval("select enum_range(null::penstock.job_status)::text[]")
    assert found == list(JobStatus)
    rule = await conn.fetchval(
        "select pg_get_constraintdef(oid) from pg_constraint"
        " where conrelid = 'penstock.job'::regclass and conname = 'live_only'"
    )
    assert set(re.findall(r"'(\w+)'", rule)) == LIVE


async def test_every_call_from_python_names_a_function_that_exists(
    conn: asyncpg.Connection,
) -> None:
    rows = await conn.fetch(
        "select proname as name from pg_proc where pronamespace = 'penstock'::regnamespace"
    )
    there = {row["name"] for row in rows}
    called = {
        (file.relative_to(SRC).as_posix(), name)
        for file in SRC.rglob("*.py")
        for name in re.findall(r"\bpenstock\.(\w+)\(", _sql_in(file))
    }
    assert {call for call in called if call[1] not in there} == set()


def _sql_in(file: Path) -> str:
    """The string literals that read like SQL, so that Python's own calls do not count."""
    strings = re.findall(r'"""(?:.|\n)*?"""|"[^"\n]*"', file.read_text())
    return "\n".join(text for text in strings if re.search(r"\b(select|from|call)\b", text))
