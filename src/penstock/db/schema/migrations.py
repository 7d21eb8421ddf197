"""Bring a database's schema to what this program wants, or take it back.

Tables change by numbered migrations, each with a way up and a way down. Functions, views and
triggers are not migrated: their files say what there is, and `up` makes it so. The rules:

- One `up` is one transaction: all pending migrations and all functions. Either the database is
  what this program wants, or it is as it was. One `down` likewise.
- `up` is for databases at work. What it does before the tables change, locks no table; from there
  on it is as short as can be. It waits for a table only for a moment, since everyone queues
  behind whoever waits, and tries again.
- `up` leaves a note of what was there before it: a program that wants exactly that is still served
  until the next `up`, so old ones may be restarted while they are replaced. Whatever such a program
  calls has to stay for one version; sql/README.md says how. Not on the way back, by the program
  before: what a newer one calls may be gone.
- Functions are replaced in place, so grants on them survive and running workers see no gap. One
  whose signature changed is dropped and made anew (grants on it and on the views are then given
  again). What is in the schema and in no file is dropped. So nothing else may live in the schema
  `penstock`, and no default, constraint, index or policy of a table may call a function: tables
  come first on the way up and last on the way down.
- `down` drops all functions, views and triggers first, since they fit the newest tables only.
  At an older number the schema is therefore without functions, and every program refuses it until
  `penstock migrate up` of the older program (or of this one) brings its own.
- Going to 0 removes the schema, and refuses while live jobs exist, unless they are exported.
- A migration that was applied is never edited: its checksum shows it, and `up` refuses. Until the
  first release 0001 alone is edited in place. A database that another 0001 made is refused by every
  command, with what to do: export the live jobs with the program that made it, and import them.

Everything runs as the role that connected, which needs to own the schema or to be allowed to make
it; no superuser, no extension. The two tables of version.py are made by it, not by a migration.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from penstock.db.connections.driver_errors import translated
from penstock.db.embedded.files import TENANT
from penstock.db.schema import objects, transfer, version
from penstock.db.schema.files import Schema, packaged
from penstock.db.schema.script import explained
from penstock.errors import (
    Conflict,
    Invalid,
    MigrationFailed,
    PenstockError,
    Unavailable,
)

_IN_THE_WAY = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)

# One migration at a time per database: the first eight bytes of sha256("penstock.migrate").
LOCK_KEY = 0x7261AD34526AAC5E
# A twin that starts at the same moment finishes within this, with all its patience; then there is
# nothing left to do.
TWIN_WAIT = "60s"
# Shorter, for whoever waits for a table makes every later query on that table wait behind it. On
# the way up that is everyone's traffic, so it is shorter still, and tried again after a pause. Also
# shorter than a server's deadlock_timeout (1 s): after that, somebody's request may be the victim.
TABLE_WAIT = "5s"
TURN_WAIT = "200ms"
PAUSE_SECONDS = 0.3
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Moved:
    """What one `up` or `down` did, in the order it was done."""

    current: int
    migrations: tuple[str, ...]
    functions_loaded: bool = False
    jobs_exported: int | None = None


async def up(conn: asyncpg.Connection, schema: Schema | None = None) -> Moved:
    """Apply what is pending and load the functions, if anything changed at all."""
    schema = schema or packaged()
    async with _alone(conn):
        await version.make_tables(conn)
        status = await version.status(conn, schema)
        version.refuse_foreign(status)
        if status.is_current:
            await _grant_rights(conn)  # the tenants' role may have been made since
            return Moved(status.current, ())
        pending = schema.migrations[status.current :]
        loading = objects.Loading(conn, schema.functions)
        if status.current:
            await loading.begin()

        async def change() -> None:
            for migration in pending:
                for script in migration.up:
                    await script.run(conn)
                await conn.execute(
                    "insert into penstock.migration (number, name, checksum) values ($1, $2, $3)",
                    migration.number,
                    migration.name,
                    migration.checksum,
                )
            await loading.end()
            # Partitions for the first days; later ones are made by upkeep.
            if await conn.fetchval(
                "select to_regprocedure('penstock.make_partitions()') is not null"
            ):
                await conn.execute("select penstock.make_partitions()")
            await _grant_rights(conn)
            previous = 0 if status.is_previous else status.current
            await version.note(conn, previous, schema.functions_checksum)

        await _in_turn(conn, change)
    return Moved(schema.wanted, tuple(map(str, pending)), functions_loaded=True)


async def _in_turn(conn: asyncpg.Connection, change: Callable[[], Awaitable[None]]) -> None:
    """Do it when nobody is in the way for long; until then let everyone else go first."""
    patience = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            async with conn.transaction():
                await conn.execute(f"set local lock_timeout = '{TURN_WAIT}'")
                await change()
        except (asyncpg.PostgresError, MigrationFailed) as error:
            cause = error.__cause__ if isinstance(error, MigrationFailed) else error
            if not isinstance(cause, _IN_THE_WAY) or time.monotonic() > patience:
                raise
            await asyncio.sleep(PAUSE_SECONDS)  # all that was locked is free again
        else:
            return


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
            status = await version.status(conn, schema)
            version.refuse_foreign(status, edited_too=False)
            target = max(status.current - 1, 0) if to is None else to
            _refuse_odd_target(target, status.current, export)
            undone = schema.migrations[target : status.current][::-1]
            if not undone:
                return Moved(status.current, ())
            if target == 0:
                exported = await transfer.empty(conn, export)
            await objects.drop_all(conn)
            await _withdraw_rights(conn)
            await version.note(conn, 0, None)
            for migration in undone:
                await migration.down.run(conn)
                await conn.execute(
                    "delete from penstock.migration where number = $1", migration.number
                )
            if target == 0:
                # Not CASCADE: what is still there is somebody's, and they should hear of it.
                await conn.execute("drop table penstock.migration, penstock.schema_info")
                await conn.execute("drop schema penstock")
    except Unavailable:
        raise  # whether it was committed is not known: the file may be the only copy
    except PenstockError:
        if export is not None and exported is not None:
            export.unlink(missing_ok=True)  # noqa: ASYNC240  # else the jobs come in twice
        raise
    return Moved(target, tuple(map(str, undone)), jobs_exported=exported)


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
