"""Where a database's schema stands, and which programs it serves: its own, and the one before.

The two tables that say so are the migration runner's; migrations.py has the rules.
"""

import json
import logging
from dataclasses import dataclass
from typing import Any

import asyncpg

from penstock.db.connections.driver_errors import translated
from penstock.db.schema.files import Schema, packaged
from penstock.errors import SchemaMismatch

_log = logging.getLogger("penstock.db")

_TABLES = """
create table if not exists penstock.migration (
  number integer primary key,
  name text not null,
  applied_at timestamptz not null default now(),
  checksum text not null
);
create table if not exists penstock.schema_info (
  only_row boolean primary key default true,
  functions_checksum text,
  functions_loaded_at timestamptz,
  previous_number integer,
  previous_checksum text,
  constraint there_is_one_row check (only_row)
);
insert into penstock.schema_info default values on conflict do nothing;
"""
OTHER_TABLES = (
    "The tables of this database were made by another edition of migration 0001 than this program"
    " has, and no migration leads from one to the other. Run `penstock migrate down --to 0"
    " --export FILE` with the program that made them: it writes the live jobs to FILE and removes"
    " the schema, with finished jobs, credits and keys. Then run `penstock migrate up` and"
    " `penstock import FILE` with this program."
)


@dataclass(frozen=True, slots=True)
class Status:
    """Where a database stands, next to what this program wants."""

    current: int
    wanted: int
    pending: tuple[str, ...]  # what `up` would apply
    changed: tuple[str, ...]  # applied, and edited since
    functions_current: bool
    is_previous: bool = False  # this program's schema was replaced by the one that is there
    other_tables: bool = False  # made by another 0001: no migration leads to this program's

    @property
    def is_current(self) -> bool:
        """Whether the database is as this program wants it."""
        return self.current == self.wanted and self.functions_current and not self.changed

    @property
    def is_served(self) -> bool:
        """Whether this program can work on the database."""
        return self.is_current or (self.is_previous and not self.changed)

    @property
    def difference(self) -> str | None:
        """In which way the schema is newer than this program, which is still served."""
        if self.is_current or not self.is_previous:
            return None
        newer = (
            "with functions newer than this program"
            if self.current == self.wanted
            else f"newer than this program, which wants {self.wanted}"
        )
        return f"the schema is at migration {self.current}, {newer}"


async def status(conn: asyncpg.Connection, schema: Schema | None = None) -> Status:
    """Read where the database stands; changes nothing, and needs no schema to be there."""
    schema = schema or packaged()
    with translated():
        applied, info = await _read(conn)
    current = max(applied, default=0)
    changed = [m for m in schema.migrations if applied.get(m.number, m.checksum) != m.checksum]
    return Status(
        current=current,
        wanted=schema.wanted,
        pending=tuple(str(m) for m in schema.migrations if m.number > current),
        changed=tuple(str(m) for m in changed),
        functions_current=info.get("functions_checksum") == schema.functions_checksum,
        is_previous=(info.get("previous_number"), info.get("previous_checksum"))
        == (schema.wanted, schema.functions_checksum),
        other_tables=any(m.number == 1 for m in changed),
    )


async def admit(conn: asyncpg.Connection, schema: Schema | None = None) -> None:
    """`require_served` for a program that starts: one line in the log where it is an old one."""
    served = await require_served(conn, schema)
    if served.difference:
        _log.warning("%s: fine during an upgrade, replace this program soon", served.difference)


async def require_served(conn: asyncpg.Connection, schema: Schema | None = None) -> Status:
    """Refuse a database this program cannot work on, and say what to do."""
    state = await status(conn, schema)
    refuse_unserved(state)
    return state


def refuse_unserved(state: Status) -> None:
    """`require_served` of a status that was read already."""
    if state.is_served:
        return
    refuse_foreign(state)
    if state.current == 0:
        reason = "The database has no Penstock schema yet"
    elif state.pending:
        reason = (
            f"The database's schema is at migration {state.current}"
            f" and this program needs {state.wanted}"
        )
    else:
        reason = "The functions in the database are not those of this program"
    raise SchemaMismatch(f"{reason}: run `penstock migrate up`.")


def refuse_foreign(state: Status, *, edited_too: bool = True) -> None:
    """Refuse a schema that this program's migrations have not made."""
    if state.other_tables:
        raise SchemaMismatch(OTHER_TABLES)
    if state.current > state.wanted:
        raise SchemaMismatch(
            f"The database's schema is at migration {state.current}, newer than this program,"
            f" which knows {state.wanted}. Upgrade penstock here, or take the schema back with the"
            f" newer program: `penstock migrate down --to {state.wanted}`."
        )
    if state.changed and edited_too:
        raise SchemaMismatch(
            f"{', '.join(state.changed)} was edited after it was applied to this database."
            " Put the file back and write the change as a new migration; where the jobs may go,"
            " `penstock migrate down --to 0` and `penstock migrate up` start afresh."
        )


async def make_tables(conn: asyncpg.Connection) -> None:
    """Make the schema and the runner's own tables where they are missing."""
    # Asked first: `create schema if not exists` needs CREATE on the database even when it exists,
    # and an owner of a ready-made schema may not have it.
    if await conn.fetchval("select to_regnamespace('penstock') is null"):
        await conn.execute("create schema penstock")
    if await conn.fetchval("select to_regclass('penstock.schema_info') is null"):
        await conn.execute(_TABLES)


async def _read(conn: asyncpg.Connection) -> tuple[dict[int, str], dict[str, Any]]:
    """Checksums of applied migrations by number, and the row about the functions."""
    if await conn.fetchval("select to_regclass('penstock.schema_info') is null"):
        return {}, {}
    rows = await conn.fetch("select number, checksum from penstock.migration")
    # In a type that stays the same when columns are added: sessions keep their plan.
    info = await conn.fetchval("select to_jsonb(i)::text from penstock.schema_info i")
    return {row["number"]: row["checksum"] for row in rows}, json.loads(info or "{}")


async def note(conn: asyncpg.Connection, previous: int, functions_checksum: str | None) -> None:
    """Which functions are there now, and whom they follow; on the way down or back, nobody."""
    # Last of all: it stops those who ask whether they are served.
    await conn.execute(
        "update penstock.schema_info set functions_checksum = $2::text,"
        " functions_loaded_at = case when $2::text is not null then now() end,"
        " previous_number = case when $1::int > 0 then $1::int end,"
        " previous_checksum = case when $1::int > 0 then functions_checksum end",
        previous,
        functions_checksum,
    )
