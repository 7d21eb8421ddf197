"""What the last version calls is still there: its programs work while they are replaced (R-F27).

sql/README.md tells the rule. `make last` moves it on with each release.
"""

import ast
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from connections import connections
from penstock.db import migrate
from upgrade import packages
from upgrade.packages import Package

SQL = re.compile(r"\s*(select|with|insert into|update|delete from)\s[^$]*\bpenstock\.", re.DOTALL)
# More would be found; with fewer, the way they are found has broken.
STATEMENTS, CALLED = 100, 250


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return packages.last(tmp_path_factory.mktemp("last"))


@pytest.fixture
async def at_last(blank: str, last: Package) -> AsyncIterator[asyncpg.Connection]:
    """A database as the last version wants it."""
    async with connections(blank) as connect:
        conn = await connect()
        await migrate.up(conn, last.schema)
        yield conn


@pytest.fixture
async def at_this(migrated: str) -> AsyncIterator[asyncpg.Connection]:
    async with connections(migrated) as connect:
        yield await connect()


def statements(folder: Path) -> Iterator[tuple[str, str]]:
    """SQL in Python files, with where it stands; parts that a constant holds are put in."""
    for file in sorted(folder.rglob("*.py")):
        tree = ast.parse(file.read_text())
        constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        }
        inside = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        for node in ast.walk(tree):
            if id(node) not in inside and (text := _text(node, constants)) and SQL.match(text):
                yield f"{file.relative_to(folder)}:{node.lineno}", text  # type: ignore[attr-defined]


def _text(node: ast.AST, constants: dict[str, str]) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            texts = [_text(part, constants) for part in parts]
            return "".join(t for t in texts if t is not None) if None not in texts else None
        case ast.FormattedValue(value=ast.Name(id=name)):
            return constants.get(name)
    return None


async def columns(conn: asyncpg.Connection, text: str) -> set[tuple[str, str]]:
    made = await conn.prepare(text)
    return {(one.name, one.type.name) for one in made.get_attributes()}


async def test_every_statement_of_the_last_version_is_understood(
    last: Package, at_last: asyncpg.Connection, at_this: asyncpg.Connection
) -> None:
    """R-F27: with at least the columns it had."""
    found, lacking = 0, {}
    for where, text in statements(last.code):
        try:
            wanted = await columns(at_last, text)
        except asyncpg.PostgresError:
            continue  # a part of a statement
        found += 1
        try:
            if missing := wanted - await columns(at_this, text):
                lacking[where] = str(missing)
        except asyncpg.PostgresError as error:
            lacking[where] = str(error)
    assert lacking == {}
    assert found >= STATEMENTS


async def test_every_function_that_the_last_version_calls_is_still_there(
    last: Package, at_last: asyncpg.Connection, at_this: asyncpg.Connection
) -> None:
    """R-F27: also from one function to another, for some are in the middle of a call."""
    sql = "\n".join(script.text for script in last.schema.functions)
    python = "\n".join(file.read_text() for file in last.code.rglob("*.py"))
    mentions = Counter(re.findall(r"\bpenstock\.(\w+)", sql + python))
    mentions.subtract(re.findall(r"create or replace function penstock\.(\w+)", sql))
    # Named by what comes after `select penstock.` in a text that is put together.
    mentions.update(re.findall(r"\b[a-z]+_[a-z_]+\b", python))
    wanted = [row for row in await at_last.fetch(_FUNCTIONS) if mentions[row["name"]] > 0]
    there = await at_this.fetch(_FUNCTIONS)
    gone = [
        f"{old['name']}({', '.join(old['types'])})"
        for old in wanted
        if not any(stands_in(new, old) for new in there)
    ]
    assert gone == []
    assert len(wanted) >= CALLED


def stands_in(new: asyncpg.Record, old: asyncpg.Record) -> bool:
    """Whether every call of the old function is a call of the new one, with what it gave."""
    n = len(old["types"])
    return (
        new["name"] == old["name"]
        and new["types"][:n] == old["types"]
        and new["names"][:n] == old["names"]
        and len(new["types"]) - new["defaults"] <= len(old["types"]) - old["defaults"]
        and new["result"] == old["result"]
        and set(zip(old["given"], old["given_types"], strict=True))
        <= set(zip(new["given"], new["given_types"], strict=True))
    )


# `given`: the columns of those that return a table.
_FUNCTIONS = """
select p.proname::text as name, p.pronargdefaults as defaults,
  array(select format_type(t, null) from unnest(p.proargtypes) with ordinality u (t, n) order by n)
    as types,
  coalesce((p.proargnames)[1:p.pronargs], '{}') as names,
  p.proretset::text || ' ' || format_type(p.prorettype, null) as result,
  coalesce((p.proargnames)[p.pronargs + 1:], '{}') as given,
  array(select format_type(t, null)
    from unnest((p.proallargtypes)[p.pronargs + 1:]) with ordinality u (t, n) order by n)
    as given_types
from pg_proc p where p.pronamespace = 'penstock'::regnamespace
"""
