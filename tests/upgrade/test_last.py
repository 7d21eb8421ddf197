"""What an old version calls is still there: its programs work while they are replaced (R-F27).

sql/README.md has the rule. Until there is a release, the old version is this one and the new one a
next one with changed tables and functions; then also the last release and this one.
"""

import ast
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from penstock.db.schema import migrations
from support.connections import connections
from upgrade import packages
from upgrade.packages import Package

SQL = re.compile(r"\s*(select|with|insert into|update|delete from)\s[^$]*\bpenstock\.", re.DOTALL)
# More would be found; with fewer, the way they are found has broken.
STATEMENTS, CALLED = 100, 250


@pytest.fixture(scope="module", params=packages.STEPS)
def versions(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Package, Package]:
    """An old version, and the one after it."""
    return packages.step(request.param, tmp_path_factory.mktemp("versions"))


@pytest.fixture
def old(versions: tuple[Package, Package]) -> Package:
    return versions[0]


@pytest.fixture
async def at_old(blank: str, old: Package) -> AsyncIterator[asyncpg.Connection]:
    """A database as the old version wants it."""
    async with connections(blank) as connect:
        conn = await connect()
        await migrations.up(conn, old.schema)
        yield conn


@pytest.fixture
async def at_new(
    migrated: str, versions: tuple[Package, Package]
) -> AsyncIterator[asyncpg.Connection]:
    """One as the new version wants it."""
    async with connections(migrated) as connect:
        conn = await connect()
        await migrations.up(conn, versions[1].schema)
        yield conn


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


async def refused(
    old: Package, at_old: asyncpg.Connection, at_new: asyncpg.Connection
) -> dict[str, str]:
    """Statements of the old version that the new schema refuses, or answers with fewer columns."""
    found, lacking = 0, {}
    for where, text in statements(old.code):
        try:
            wanted = await columns(at_old, text)
        except asyncpg.PostgresError:
            continue  # a part of a statement
        found += 1
        try:
            if missing := wanted - await columns(at_new, text):
                lacking[where] = str(missing)
        except asyncpg.PostgresError as error:
            lacking[where] = str(error)
    assert found >= STATEMENTS
    return lacking


async def gone(old: Package, at_old: asyncpg.Connection, at_new: asyncpg.Connection) -> list[str]:
    """Functions that the old version calls and the new schema does not have.

    Also calls from one function to another, for some are under way during the upgrade.
    """
    sql = "\n".join(script.text for script in old.schema.functions)
    python = "\n".join(file.read_text() for file in old.code.rglob("*.py"))
    mentions = Counter(re.findall(r"\bpenstock\.(\w+)", sql + python))
    mentions.subtract(re.findall(r"create or replace function penstock\.(\w+)", sql))
    # Functions whose name follows `select penstock.` in a composed text.
    mentions.update(re.findall(r"\b[a-z]+_[a-z_]+\b", python))
    wanted = [row for row in await at_old.fetch(_FUNCTIONS) if mentions[row["name"]] > 0]
    there = await at_new.fetch(_FUNCTIONS)
    assert len(wanted) >= CALLED
    return [
        f"{before['name']}({', '.join(before['types'])})"
        for before in wanted
        if not any(stands_in(after, before) for after in there)
    ]


async def test_every_statement_of_the_old_version_is_valid(
    old: Package, at_old: asyncpg.Connection, at_new: asyncpg.Connection
) -> None:
    """R-F27: with at least the columns it had."""
    assert await refused(old, at_old, at_new) == {}


async def test_every_function_that_the_old_version_calls_still_exists(
    old: Package, at_old: asyncpg.Connection, at_new: asyncpg.Connection
) -> None:
    """R-F27"""
    assert await gone(old, at_old, at_new) == []


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ("alter function penstock.beat_worker rename to beat", "beat_worker"),
        ("alter function penstock._free_slots rename to _release_slots", "_free_slots"),
    ],
)
async def test_a_change_that_stops_old_programs_is_found(
    old: Package, at_old: asyncpg.Connection, at_new: asyncpg.Connection, change: str, missed: str
) -> None:
    """R-F27: else the two tests above would pass where they look at nothing."""
    await at_new.execute(change)
    assert [name for name in await gone(old, at_old, at_new) if name.startswith(f"{missed}(")]
    assert bool(await refused(old, at_old, at_new)) is not missed.startswith("_")


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
