"""Naive variants of Penstock's functions, for tests that show what a line of them prevents.

Each is the function's own source with a small edit, loaded into one test's database. A test runs
twice, `ours` and `naive`, and asserts that the second run goes wrong: so the test is known to
detect it. An edit that no longer fits the source fails at once.
"""

import re
from pathlib import Path

import asyncpg
import pytest

import penstock

_FUNCTIONS = Path(penstock.__file__).parent / "sql" / "functions"

both = pytest.mark.parametrize(
    "naive",
    [pytest.param(False, id="ours"), pytest.param(True, id="naive", marks=pytest.mark.unsound)],
)
"""Run a test on our SQL and, `unsound`, on the naive variant that it loads itself."""


async def spoil(conn: asyncpg.Connection, function: str, *edits: tuple[str, str]) -> None:
    """Replace `function` ("submit.sql:submit_many") by its source with each (old, new) applied."""
    file, name = function.split(":")
    found = re.search(
        rf"^create or replace function penstock\.{name}\(.*?^\$\$;$|"
        rf"^create or replace function penstock\.{name}\([^;]*?as \$\$.*?\$\$;$",
        next(_FUNCTIONS.rglob(file)).read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    assert found, f"there is no function {function}"
    source = found[0]
    for old, new in edits:
        assert old in source, f"{function} does not contain {old!r} any more"
        source = source.replace(old, new)
    await conn.execute(source)


async def breaches(conn: asyncpg.Connection) -> set[str]:
    """The invariants that are broken now."""
    return {row["invariant"] for row in await conn.fetch("select invariant from penstock.check()")}
