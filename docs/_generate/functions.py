"""The page of SQL, from the catalogue of a migrated database and the heads of the SQL files."""

import re
from pathlib import Path

import asyncpg

import penstock
from _generate.page import Undocumented, code, codes, described, page, read_words, sentence, table

SQL = Path(penstock.__file__).parent / "sql" / "functions"
WORDS = read_words("sql")
CALLS: dict[str, str] = WORDS["calls"]
OPERATORS: dict[str, str] = WORDS["operators"]
VIEWS: dict[str, str] = WORDS["views"]
ARGUMENTS: dict[str, str] = WORDS["arguments"]
# Of more, the table below says enough.
MOST_SHOWN = 5

_FUNCTIONS = """
select p.proname as name, pg_get_function_arguments(p.oid) as arguments,
  pg_get_function_result(p.oid) as result, coalesce(p.proargnames[1:p.pronargs], '{}') as names
from pg_proc p
where p.pronamespace = 'penstock'::regnamespace and p.proname !~ '^_' order by p.proname
"""
_VIEWS = """
select c.relname as name, array_agg(a.attname::text order by a.attnum) as columns,
  array_agg(format_type(a.atttypid, a.atttypmod) order by a.attnum) as types
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'v' group by 1 order by 1
"""


async def render(conn: asyncpg.Connection) -> str:
    found = {row["name"]: row for row in await conn.fetch(_FUNCTIONS)}
    views = {row["name"]: row for row in await conn.fetch(_VIEWS)}
    described("view", views, VIEWS)
    public = {name for name, row in found.items() if is_public(row["names"])}
    described("public function", public | {"check"}, CALLS)
    described("function for operators", OPERATORS.keys() & found.keys(), OPERATORS)
    parts = ["## Calls"]
    for name, told in CALLS.items():
        parts += [f"### {name}", told, _signature(found[name]), _arguments(found[name])]
    parts += ["## Views", WORDS["views_about"]]
    for name, told in VIEWS.items():
        columns = zip(views[name]["columns"], views[name]["types"], strict=True)
        said = ", ".join(f"{code(one)} {_type(kind)}" for one, kind in columns)
        parts += [f"### {name}", told, f"Columns: {said}."]
    parts += ["## Tenants", WORDS["tenants"], "## For operators", WORDS["operators_about"]]
    parts.append(
        table(
            ["function", "arguments", ""],
            ([code(name), _short(found[name]), told] for name, told in OPERATORS.items()),
        )
    )
    parts += [
        "## For our own programs",
        WORDS["inner"],
        _inner(set(found) - set(CALLS) - set(OPERATORS)),
    ]
    return page("SQL", WORDS["about"], *parts)


def is_public(names: list[str]) -> bool:
    """Named for callers: what is ours has arguments that begin with p_."""
    return bool(names) and not any(name.startswith("p_") for name in names)


def _signature(row: asyncpg.Record) -> str:
    asked = _short(row).split(", [")
    shown = f"{asked[0]}, …" if len(asked) > MOST_SHOWN else ", [".join(asked)
    return f"```text\npenstock.{row['name']}({shown}) returns {_type(row['result'])}\n```"


def split(arguments: str) -> list[str]:
    """At the commas between them."""
    return [one for one in re.split(r", (?=\w+ )", arguments) if one]


def _type(written: str) -> str:
    # Written with its schema or without, by the search path of whoever asks.
    short = written.lower().replace("penstock.", "")
    return short.replace("timestamp with time zone", "timestamptz")


def _arguments(row: asyncpg.Record) -> str:
    rows = []
    for one in split(row["arguments"]):
        head, optional, _ = one.partition(" DEFAULT ")
        name, _, kind = head.partition(" ")
        if name not in ARGUMENTS:
            raise Undocumented(f"argument of {row['name']}", [name])
        rows.append([code(name), _type(kind), "" if optional else "required", ARGUMENTS[name]])
    return table(["argument", "type", "", ""], rows)


def _short(row: asyncpg.Record) -> str:
    names = (one.partition(" DEFAULT ") for one in split(row["arguments"]))
    return ", ".join(
        f"[{head.split()[0]}]" if default else head.split()[0] for head, default, _ in names
    )


def _inner(left: set[str]) -> str:
    """The rest, by file, with the first sentence that the file says of itself."""
    rows, seen = [], set()
    for file in sorted(SQL.rglob("*.sql")):
        text = file.read_text(encoding="utf-8")
        defined = re.findall(r"create or replace (?:function|procedure) penstock\.(\w+)\(", text)
        mine = [name for name in dict.fromkeys(defined) if name in left]
        seen |= set(mine)
        if mine:
            rows.append([code(file.name), head_of(text, file.name), codes(mine)])
    if left - seen:
        raise Undocumented("function in a file", sorted(left - seen))
    return table(["file", "", "functions"], rows)


def head_of(text: str, name: str) -> str:
    """The first sentence of the comment at the top of a file."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("--") or line.strip() == "--":
            break
        lines.append(line.removeprefix("--").strip())
    said = " ".join(lines)
    if not said:
        raise Undocumented("SQL file", [name])
    return sentence(re.split(r"(?<=[.]) |(?<=\w): ", said)[0])
