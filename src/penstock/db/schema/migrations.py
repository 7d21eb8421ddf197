"""Migrate a database's schema to the version that this program needs, or back.

Tables change by numbered migrations, each with a way up and a way down. Functions, views and
triggers are not migrated: their files define them, and `up` loads the files. The rules:

- One `up` is one transaction: all pending migrations and all functions. Afterwards the database is
  either what this program needs, or unchanged. The same is true of `down`.
- `up` runs on databases in use. Its work before the tables change locks no table; from then on it
  is as short as possible. It waits for the lock of a table only for a moment and then tries again,
  because all other sessions queue behind a waiting lock.
- `up` records the schema that it replaces: a program that needs exactly that one is served until
  the next `up`, so old programs may restart while they are replaced. Everything that such a program
  calls must stay for one version; sql/README.md says how. This does not apply to `up` of an older
  program: functions that a newer program calls may be missing.
- Functions are replaced, not dropped, so grants on them survive and running workers notice no gap.
  One with a changed signature is dropped and created again (grants on it and on the views must
  then be repeated). Objects in the schema that no file defines are dropped. So nothing else may
  be in the schema `penstock`, and no default, constraint, index or policy of a table may call a
  function: tables come first on the way up and last on the way down.
- `down` first drops all functions, views and triggers, because they fit only the newest tables.
  Therefore the schema has no functions at an older number, and every program refuses it until
  `penstock migrate up` of the older program (or of this one) loads its own.
- Migrating to 0 removes the schema. It is refused while there are live jobs, unless they are
  exported.
- An applied migration is never edited: its checksum would show it, and `up` would refuse. Until the
  first release only 0001 is edited. Every command refuses a database that another 0001 made, and
  says what to do: export the live jobs with the program that made it, and import them.

All statements run as the connected role, which must own the schema or be allowed to create it; no
superuser and no extension is needed. The runner creates the two tables of version.py itself, not by
a migration.
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
# A second migration that starts at the same moment finishes within this time, including all its
# retries; then nothing is left to do.
TWIN_WAIT = "60s"
# Shorter, because a session that waits for a table blocks every later query on that table. On the
# way up that blocks all traffic, so the wait is shorter still and repeated after a pause. It is
# also shorter than a server's deadlock_timeout (1 s): later, Postgres may cancel a client's
# request instead.
TABLE_WAIT = "5s"
TURN_WAIT = "200ms"
PAUSE_SECONDS = 0.3
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of one `up` or `down`, with migrations in the order of execution."""

    current: int
    migrations: tuple[str, ...]
    functions_loaded: bool = False
    jobs_exported: int | None = None


async def up(conn: asyncpg.Connection, schema: Schema | None = None) -> Moved:
    """Apply the pending migrations and load the functions, if anything changed."""
    schema = schema or packaged()
    async with _alone(conn):
        await version.make_tables(conn)
        status = await version.status(conn, schema)
        version.refuse_foreign(status)
        if status.is_current:
            await _grant_rights(conn)  # the tenants' role may have been created since
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
            # Partitions for the first days; upkeep creates later ones.
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
    """Make the change when no session blocks it for long; until then release all locks."""
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
            await asyncio.sleep(PAUSE_SECONDS)  # without any locks
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
                # Not CASCADE: objects that are left belong to a user, who must get an error.
                await conn.execute("drop table penstock.migration, penstock.schema_info")
                await conn.execute("drop schema penstock")
    except Unavailable:
        raise  # it is not known whether it was committed: the file may be the only copy
    except PenstockError:
        if export is not None and exported is not None:
            export.unlink(missing_ok=True)  # noqa: ASYNC240  # otherwise the jobs could be imported twice
        raise
    return Moved(target, tuple(map(str, undone)), jobs_exported=exported)


@asynccontextmanager
async def _alone(conn: asyncpg.Connection) -> AsyncIterator[None]:
    """Run one transaction, as the only migration, with a search path of our own."""
    with translated():
        try:
            async with conn.transaction():
                await conn.execute(f"set local lock_timeout = '{TWIN_WAIT}'")
                try:
                    await conn.execute("select pg_advisory_xact_lock($1)", LOCK_KEY)
                except asyncpg.LockNotAvailableError:
                    raise Conflict(
                        "Another migration is running on this database; try again after it.",
                        code="migration_in_progress",
                    ) from None
                await conn.execute(f"set local lock_timeout = '{TABLE_WAIT}'")
                await conn.execute("set local search_path = pg_catalog, pg_temp")
                yield
        except asyncpg.PostgresError as error:
            if (error.sqlstate or "").startswith(("PS", "08", "57P")):
                raise  # refused by a function, or the connection was lost: translated above
            raise MigrationFailed(explained(error)) from error


async def _grant_rights(conn: asyncpg.Connection) -> None:
    """Grant tenants their rights, if the connected role may do that."""
    if await conn.fetchval(
        "select to_regprocedure('penstock.grant_rights()') is not null"
        " and pg_has_role(nspowner, 'usage') from pg_namespace where nspname = 'penstock'"
    ):
        await conn.execute("select penstock.grant_rights()")


async def _withdraw_rights(conn: asyncpg.Connection) -> None:
    """Revoke all rights of tenants: a way down may drop the policies that restrict them."""
    if await conn.fetchval("select to_regrole($1) is not null", TENANT):
        await conn.execute(f"revoke all on all tables in schema penstock from {TENANT}")
        await conn.execute(f"revoke all on schema penstock from {TENANT}")


def _refuse_odd_target(target: int, current: int, export: Path | None) -> None:
    if not 0 <= target <= current:
        raise Invalid(
            f"--to is {target}; it may be 0 to {current}, the number of this database",
            code="invalid_target",
            field="to",
        )
    if export is not None and target > 0:
        raise Invalid(
            f"--export needs --to 0; migrating down to {target} keeps the jobs",
            code="invalid_export",
            field="export",
        )
