"""The version of a database's schema, and the programs that it serves: its own and the one before.

The migration runner owns the two tables of this module; migrations.py has the rules.
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
    "The tables of this database were created by another edition of migration 0001 than this"
    " program has, and no migration converts them. Run `penstock migrate down --to 0"
    " --export FILE` with the program that created them: it writes the live jobs to FILE and"
    " removes the schema, with finished jobs, credits and keys. Then run `penstock migrate up` and"
    " `penstock import FILE` with this program."
)


@dataclass(frozen=True, slots=True)
class Status:
    """The version of a database's schema, compared with the one that this program needs."""

    current: int
    wanted: int
    pending: tuple[str, ...]  # migrations that `up` would apply
    changed: tuple[str, ...]  # migrations that were edited after they were applied
    functions_current: bool
    is_previous: bool = False  # the last `up` replaced this program's schema
    other_tables: bool = False  # created by another 0001: no migration converts them

    @property
    def is_current(self) -> bool:
        """Whether the schema is exactly the one that this program needs."""
        return self.current == self.wanted and self.functions_current and not self.changed

    @property
    def is_served(self) -> bool:
        """Whether this program can work on the database."""
        return self.is_current or (self.is_previous and not self.changed)

    @property
    def difference(self) -> str | None:
        """How the schema differs from that of this older program, if it is still served."""
        if self.is_current or not self.is_previous:
            return None
        newer = (
            "with functions newer than this program"
            if self.current == self.wanted
            else f"newer than this program, which needs {self.wanted}"
        )
        return f"the schema is at migration {self.current}, {newer}"


async def status(conn: asyncpg.Connection, schema: Schema | None = None) -> Status:
    """Read the version of the schema, which may be missing; change nothing."""
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
    """Call `require_served` for a program that starts; log a line if the program is old."""
    served = await require_served(conn, schema)
    if served.difference:
        _log.warning("%s: fine during an upgrade, replace this program soon", served.difference)


async def require_served(conn: asyncpg.Connection, schema: Schema | None = None) -> Status:
    """Refuse a database that does not serve this program, and say what to do."""
    state = await status(conn, schema)
    refuse_unserved(state)
    return state


def refuse_unserved(state: Status) -> None:
    """Do the same as `require_served` for a status that was read before."""
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
        reason = "The functions in the database are not the ones that this program needs"
    raise SchemaMismatch(f"{reason}: run `penstock migrate up`.")


def refuse_foreign(state: Status, *, edited_too: bool = True) -> None:
    """Refuse a schema that this program's migrations did not create."""
    if state.other_tables:
        raise SchemaMismatch(OTHER_TABLES)
    if state.current > state.wanted:
        raise SchemaMismatch(
            f"The database's schema is at migration {state.current}, newer than this program,"
            f" which knows {state.wanted}. Upgrade penstock here, or migrate the schema down with"
            f" the newer program: `penstock migrate down --to {state.wanted}`."
        )
    if state.changed and edited_too:
        raise SchemaMismatch(
            f"{', '.join(state.changed)} was edited after it was applied to this database."
            " Restore the file and write the change as a new migration; if the jobs may be lost,"
            " run `penstock migrate down --to 0` and `penstock migrate up` instead."
        )


async def make_tables(conn: asyncpg.Connection) -> None:
    """Create the schema and the runner's own tables if they are missing."""
    # Checked first: `create schema if not exists` needs CREATE on the database even if the schema
    # exists, and the owner of an existing schema may lack that right.
    if await conn.fetchval("select to_regnamespace('penstock') is null"):
        await conn.execute("create schema penstock")
    if await conn.fetchval("select to_regclass('penstock.schema_info') is null"):
        await conn.execute(_TABLES)


async def _read(conn: asyncpg.Connection) -> tuple[dict[int, str], dict[str, Any]]:
    """Read the checksums of applied migrations by number, and the row about the functions."""
    if await conn.fetchval("select to_regclass('penstock.schema_info') is null"):
        return {}, {}
    rows = await conn.fetch("select number, checksum from penstock.migration")
    # As JSON, a type that stays the same when columns are added, because sessions cache the plan.
    info = await conn.fetchval("select to_jsonb(i)::text from penstock.schema_info i")
    return {row["number"]: row["checksum"] for row in rows}, json.loads(info or "{}")


async def note(conn: asyncpg.Connection, previous: int, functions_checksum: str | None) -> None:
    """Record the loaded functions and the version they replace (0: none, on a way down or back)."""
    # The last statement of a migration: its lock blocks programs that check whether they are
    # served.
    await conn.execute(
        "update penstock.schema_info set functions_checksum = $2::text,"
        " functions_loaded_at = case when $2::text is not null then now() end,"
        " previous_number = case when $1::int > 0 then $1::int end,"
        " previous_checksum = case when $1::int > 0 then functions_checksum end",
        previous,
        functions_checksum,
    )
