"""Export live jobs of a database as JSON lines, and import them into another.

sql/functions/maintenance/export.sql defines the content of a line; this module reads and writes it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import asyncpg

from penstock.db.connections.driver_errors import translated
from penstock.db.embedded.files import sync_folder
from penstock.errors import Conflict, Invalid

_AT_ONCE = 500


async def empty(conn: asyncpg.Connection, export: Path | None) -> int | None:
    """Before the tables are dropped, export the live jobs, or refuse if there are any.

    Runs inside the transaction that drops the tables. Returns how many jobs were exported.
    """
    if await conn.fetchval("select to_regclass('penstock.job') is null"):
        return None
    # Block submits until the end: a job accepted after the count or export would be lost.
    await conn.execute("lock table penstock.job in access exclusive mode")
    if export is not None:
        return await _export(conn, export)
    live = await conn.fetchval("select count(*) from penstock.job")
    if live:
        raise Conflict(
            f"{live} live job{'s' if live > 1 else ''} would be lost. Let them finish or cancel"
            " them, or keep them with `--export FILE` (`penstock import FILE` brings them back).",
            code="live_jobs",
            live=live,
        )
    return None


async def _export(conn: asyncpg.Connection, path: Path) -> int:
    if await conn.fetchval("select to_regprocedure('penstock.export_jobs()') is null"):
        raise Conflict(
            "The functions that export jobs are not loaded: run `penstock migrate up` first.",
            code="functions_not_loaded",
        )
    written = 0
    with _new_file(path) as file:
        jobs = conn.cursor("select job::text from penstock.export_jobs() job", prefetch=_AT_ONCE)
        async for (line,) in jobs:
            file.write(line + "\n")
            written += 1
    return written


@dataclass(frozen=True, slots=True)
class Imported:
    """How many jobs of a file were imported, and how many existed already."""

    imported: int
    known: int


async def import_jobs(conn: asyncpg.Connection, path: Path) -> Imported:
    """Import every job of the file, or none if a line is invalid."""
    read = new = 0
    with translated():
        async with conn.transaction():
            for line in _lines(path):
                read += 1
                try:
                    new += await conn.fetchval("select penstock.import_job($1::text::jsonb)", line)
                except asyncpg.PostgresError as error:
                    # Invalid data (22), or a refused job; other errors are not the line's fault.
                    if not (error.sqlstate or "").startswith(("22", "PS")):
                        raise
                    raise Invalid(
                        f"{path}, line {read}: {error.message}; nothing was imported",
                        code="invalid_line",
                        field="file",
                    ) from error
    return Imported(new, read - new)


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Create a file that is durable at the end of the block, or does not exist."""
    try:
        # Never overwrite an earlier export, which may be the only copy of its jobs. Only the owner
        # may read it, because payloads are personal.
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Invalid(
            f"{path} exists already; name a new file", code="file_exists", field="export"
        ) from None
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except BaseException as error:
        path.unlink(missing_ok=True)
        # A lost connection is an OSError, too, but not the file's fault.
        if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
            raise _not_written(path, error) from error
        raise


def _not_written(path: Path, error: OSError) -> Invalid:
    return Invalid(
        f"cannot write {path}: {error.strerror or error}", code="file_not_written", field="export"
    )


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except OSError as error:
        raise Invalid(
            f"cannot read {path}: {error.strerror or error}", code="file_not_read", field="file"
        ) from error
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} is not a text file", code="file_not_read", field="file") from error
