"""Bring a database's schema to what this program wants, or take it back.

Tables change by numbered migrations, each with a way up and a way down. Functions, views and
triggers are not migrated: their files say what there is, and `up` makes it so. The rules:

- One `up` is one transaction: all pending migrations, then all functions. Either the database is
  what this program wants, or it is as it was. One `down` likewise.
- Functions are replaced in place, so grants on them survive and running workers see no gap. One
  whose signature changed is dropped and made anew (grants on it and on the views are then given
  again). What is in the schema and in no file is dropped. So nothing else may live in the schema
  `penstock`, and no default, constraint, index or policy of a table may call a function: tables
  come first on the way up and last on the way down.
- `down` drops all functions, views and triggers first, since they fit the newest tables only.
  At an older number the schema is therefore without functions, and every program refuses it until
  `penstock migrate up` of the older program (or of this one) brings its own.
- Going to 0 removes the schema, and refuses while live jobs exist, unless they are exported.
- A migration that was applied is never edited: a checksum tells, and `up` refuses.

Everything runs as the role that connected, which needs to own the schema or to be allowed to make
it; no superuser, no extension. The two tables of this module are made by it, not by a migration.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from penstock.db import objects, transfer
from penstock.db.call import translated
from penstock.db.postgres_files import TENANT
from penstock.db.schema import Migration, Schema, packaged
from penstock.db.script import explained
from penstock.errors import (
    Conflict,
    Invalid,
    MigrationFailed,
    PenstockError,
    SchemaMismatch,
    Unavailable,
)

# One migration at a time per database: the first eight bytes of sha256("penstock.migrate").
LOCK_KEY = 0x7261AD34526AAC5E
# A twin that starts at the same moment finishes within this; then there is nothing left to do.
TWIN_WAIT = "30s"
# Shorter: whoever waits for a table makes every later query on that table wait behind it.
TABLE_WAIT = "5s"

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
  constraint there_is_one_row check (only_row)
);
insert into penstock.schema_info default values on conflict do nothing;
"""


@dataclass(frozen=True, slots=True)
class Status:
    """Where a database stands, next to what this program wants."""

    current: int
    wanted: int
    pending: tuple[str, ...]  # what `up` would apply
    changed: tuple[str, ...]  # applied, and edited since
    functions_current: bool

    @property
    def is_current(self) -> bool:
        """Whether this program can work on the database."""
        return self.current == self.wanted and self.functions_current


@dataclass(frozen=True, slots=True)
class Moved:
    """What one `up` or `down` did, in the order it was done."""

    current: int
    migrations: tuple[str, ...]
    functions_loaded: bool = False
    jobs_exported: int | None = None


async def status(conn: asyncpg.Connection, schema: Schema | None = None) -> Status:
    """Read where the database stands; changes nothing, and needs no schema to be there."""
    schema = schema or packaged()
    with translated():
        applied, functions_checksum = await _read(conn)
    known = {migration.number: migration for migration in schema.migrations}
    current = max(applied, default=0)
    return Status(
        current=current,
        wanted=schema.wanted,
        pending=tuple(str(m) for m in schema.migrations if m.number > current),
        changed=tuple(
            str(known[number])
            for number, checksum in sorted(applied.items())
            if number in known and known[number].checksum != checksum
        ),
        functions_current=functions_checksum == schema.functions_checksum,
    )


async def require_current(conn: asyncpg.Connection, schema: Schema | None = None) -> None:
    """Refuse a database this program cannot work on, and say what to do."""
    found = await status(conn, schema)
    _refuse_newer(found)
    if found.is_current:
        return
    if found.current == 0:
        said = "The database has no Penstock schema yet"
    elif found.pending:
        said = (
            f"The database's schema is at migration {found.current}"
            f" and this program needs {found.wanted}"
        )
    else:
        said = "The functions in the database are not those of this program"
    raise SchemaMismatch(f"{said}: run `penstock migrate up`.")


async def up(conn: asyncpg.Connection, schema: Schema | None = None) -> Moved:
    """Apply what is pending and load the functions, if anything changed at all."""
    schema = schema or packaged()
    async with _alone(conn):
        await _make_room(conn)
        found = await status(conn, schema)
        _refuse_newer(found)
        _refuse_changed(found)
        if found.is_current:
            await _grant_rights(conn)  # the tenants' role may have been made since
            return Moved(found.current, ())
        pending = schema.migrations[found.current :]
        for migration in pending:
            await migration.up.run(conn)
            await _record(conn, migration)
        await objects.load(conn, schema.functions)
        await _open_history(conn)
        await _grant_rights(conn)
        await conn.execute(
            "update penstock.schema_info set functions_checksum = $1, functions_loaded_at = now()",
            schema.functions_checksum,
        )
    return Moved(schema.wanted, _names(pending), functions_loaded=True)


async def down(
    conn: asyncpg.Connection,
    *,
    to: int | None = None,
    export: Path | None = None,
    schema: Schema | None = None,
) -> Moved:
    """Undo migrations, last first, until the database is at `to` (default: one step)."""
    schema = schema or packaged()
    exported = None
    try:
        async with _alone(conn):
            found = await status(conn, schema)
            _refuse_newer(found)
            target = max(found.current - 1, 0) if to is None else to
            _refuse_odd_target(target, found.current, export)
            undone = schema.migrations[target : found.current][::-1]
            if not undone:
                return Moved(found.current, ())
            if target == 0:
                exported = await transfer.empty(conn, export)
            await _undo(conn, undone)
            if target == 0:
                await _leave(conn)
    except Unavailable:
        raise  # whether it was committed is not known: the file may be the only copy
    except PenstockError:
        if export is not None and exported is not None:
            transfer.discard(export)
        raise
    return Moved(target, _names(undone), jobs_exported=exported)


async def _undo(conn: asyncpg.Connection, migrations: Iterable[Migration]) -> None:
    await objects.drop_all(conn)
    await _withdraw_rights(conn)
    await conn.execute(
        "update penstock.schema_info set functions_checksum = null, functions_loaded_at = null"
    )
    for migration in migrations:
        await migration.down.run(conn)
        await conn.execute("delete from penstock.migration where number = $1", migration.number)


async def _leave(conn: asyncpg.Connection) -> None:
    # Not CASCADE: what is still there is somebody's, and they should hear of it.
    await conn.execute("drop table penstock.migration, penstock.schema_info")
    await conn.execute("drop schema penstock")


@asynccontextmanager
async def _alone(conn: asyncpg.Connection) -> AsyncIterator[None]:
    """One transaction, one migrator at a time, and no name found by luck of the search path."""
    with translated():
        try:
            async with conn.transaction():
                await conn.execute(f"set local lock_timeout = '{TWIN_WAIT}'")
                try:
                    await conn.execute("select pg_advisory_xact_lock($1)", LOCK_KEY)
                except asyncpg.LockNotAvailableError:
                    raise Conflict(
                        "Another migration is at work on this database; try again when it is done.",
                        code="migration_in_progress",
                    ) from None
                await conn.execute(f"set local lock_timeout = '{TABLE_WAIT}'")
                await conn.execute("set local search_path = pg_catalog, pg_temp")
                yield
        except asyncpg.PostgresError as error:
            if (error.sqlstate or "").startswith(("PS", "08", "57P")):
                raise  # refused by a function, or the server is gone: translated above
            raise MigrationFailed(explained(error)) from error


async def _make_room(conn: asyncpg.Connection) -> None:
    """Make the schema and the runner's own tables where they are missing."""
    # Asked first: `create schema if not exists` needs CREATE on the database even when it exists,
    # and an owner of a ready-made schema may not have it.
    if await conn.fetchval("select to_regnamespace('penstock') is null"):
        await conn.execute("create schema penstock")
    if await conn.fetchval("select to_regclass('penstock.schema_info') is null"):
        await conn.execute(_TABLES)


async def _read(conn: asyncpg.Connection) -> tuple[dict[int, str], str | None]:
    """Checksums of applied migrations by number, and of the functions."""
    if await conn.fetchval("select to_regclass('penstock.schema_info') is null"):
        return {}, None
    rows = await conn.fetch("select number, checksum from penstock.migration")
    functions = await conn.fetchval("select functions_checksum from penstock.schema_info")
    return {row["number"]: row["checksum"] for row in rows}, functions


async def _open_history(conn: asyncpg.Connection) -> None:
    """Partitions for the first days; later ones are made by upkeep."""
    if await conn.fetchval("select to_regprocedure('penstock.make_partitions()') is not null"):
        await conn.execute("select penstock.make_partitions()")


async def _grant_rights(conn: asyncpg.Connection) -> None:
    """What tenants may look at; nothing, where this role may not make theirs."""
    if await conn.fetchval(
        "select to_regprocedure('penstock.grant_rights()') is not null"
        " and pg_has_role(nspowner, 'usage') from pg_namespace where nspname = 'penstock'"
    ):
        await conn.execute("select penstock.grant_rights()")


async def _withdraw_rights(conn: asyncpg.Connection) -> None:
    """Nothing for tenants: a way down may take the policies that hold them back."""
    if await conn.fetchval("select to_regrole($1) is not null", TENANT):
        await conn.execute(f"revoke all on all tables in schema penstock from {TENANT}")
        await conn.execute(f"revoke all on schema penstock from {TENANT}")


async def _record(conn: asyncpg.Connection, migration: Migration) -> None:
    await conn.execute(
        "insert into penstock.migration (number, name, checksum) values ($1, $2, $3)",
        migration.number,
        migration.name,
        migration.checksum,
    )


def _refuse_newer(found: Status) -> None:
    if found.current > found.wanted:
        raise SchemaMismatch(
            f"The database's schema is at migration {found.current}, newer than this program,"
            f" which knows {found.wanted}. Upgrade penstock here, or take the schema back with the"
            f" newer program: `penstock migrate down --to {found.wanted}`."
        )


def _refuse_changed(found: Status) -> None:
    if found.changed:
        raise SchemaMismatch(
            f"{', '.join(found.changed)} was edited after it was applied to this database."
            " Put the file back and write the change as a new migration; where the jobs may go,"
            " `penstock migrate down --to 0` and `penstock migrate up` start afresh."
        )


def _refuse_odd_target(target: int, current: int, export: Path | None) -> None:
    if not 0 <= target <= current:
        raise Invalid(
            f"--to is {target}; it may be 0 to {current}, where this database is",
            code="invalid_target",
            field="to",
        )
    if export is not None and target > 0:
        raise Invalid(
            f"--export is for going to 0; going down to {target} keeps the jobs",
            code="invalid_export",
            field="export",
        )


def _names(migrations: Iterable[Migration]) -> tuple[str, ...]:
    return tuple(str(migration) for migration in migrations)
