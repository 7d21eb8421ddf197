"""`penstock migrate` and `penstock import`: upgrade, downgrade and show the schema."""

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import asyncpg
import typer

from penstock.base.wording import count
from penstock.cli.output.console import Json, answer, database, with_connection
from penstock.db.connections.connect import connect, connect_ready
from penstock.db.connections.display_address import display_address
from penstock.db.schema import migrations, transfer, version

app = typer.Typer(
    name="migrate",
    help="Upgrade, downgrade or show the database's schema.",
    no_args_is_help=True,
)


@app.command()
def up(*, as_json: Json = False) -> None:
    """Apply pending migrations and load the functions, in one transaction."""
    moved = with_connection(connect, migrations.up)
    lines = [
        *(f"applied {name}" for name in moved.migrations),
        *(["loaded the functions"] if moved.functions_loaded else []),
        f"The schema is at {moved.current}, which this program needs.",
    ]
    answer(dataclasses.asdict(moved), lambda _: "\n".join(lines), as_json=as_json)


@app.command()
def down(
    *,
    to: Annotated[
        int | None,
        typer.Option(metavar="N", help="The migration to go back to; 0 removes the schema."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Before 0, write the live jobs to this new file."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether you are sure.")] = False,
    as_json: Json = False,
) -> None:
    """Undo the last migration, or all after --to; jobs are kept, except at 0.

    At a terminal it asks for confirmation first; a script is not asked.
    """
    if not yes and sys.stdin.isatty():
        _ask(to)
    moved = with_connection(connect, lambda conn: migrations.down(conn, to=to, export=export))
    wrote = f"wrote {count(moved.jobs_exported or 0, 'live job')} to {export}"
    lines = [
        *(f"undid {name}" for name in moved.migrations),
        *([] if moved.jobs_exported is None else [wrote]),
        f"The schema is at {moved.current}.",
    ]
    answer(dataclasses.asdict(moved), lambda _: "\n".join(lines), as_json=as_json)


def _ask(to: int | None) -> None:
    """Ask for confirmation, and say what will be removed."""
    status = with_connection(connect, _read_status)
    target = max(0, status.current - 1) if to is None else to
    if target >= status.current or status.other_tables:
        return
    dsn = database().dsn
    where = "the embedded database" if dsn is None else display_address(dsn)
    typer.confirm(
        f"Remove the whole schema from {where}, with all history, accounts and their ledger?"
        if target == 0
        else f"Downgrade the schema of {where} from migration {status.current} to {target}?"
        " Programs that need the newer one will be refused.",
        abort=True,
        err=True,
    )


@app.command("status")
def show_status(*, as_json: Json = False) -> None:
    """Show the schema's number, the one this program needs, and what is pending."""
    # `frugal`: also through a pooler, by which an app may submit.
    status = with_connection(partial(connect, frugal=True), _read_status)
    known = {"is_current": status.is_current, "is_served": status.is_served}
    answer(dataclasses.asdict(status) | known, lambda _: _lines(status), as_json=as_json)


def _lines(status: version.Status) -> str:
    if status.other_tables:
        more = [version.OTHER_TABLES]
    else:
        more = [f"edited after it was applied: {name}" for name in status.changed]
        if status.difference:
            more += ["This program is still served, during an upgrade: replace it soon."]
        elif status.current > status.wanted:
            more += ["It is newer than this program: upgrade penstock here."]
        elif not status.is_current:
            more += ["Run `penstock migrate up`."]
    return "\n".join(
        (
            f"The schema is at {status.current}; this program needs {status.wanted}.",
            *(f"pending {name}" for name in status.pending),
            *more,
        )
    )


async def _read_status(conn: asyncpg.Connection) -> version.Status:
    async with conn.transaction():
        return await version.status(conn)


def import_jobs(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file of `penstock migrate down --export`.")
    ],
    *,
    as_json: Json = False,
) -> None:
    """Import exported jobs; jobs that the database already has stay as they are."""
    done = with_connection(connect_ready, lambda conn: transfer.import_jobs(conn, file))
    known = f"; {done.known:,} existed already" if done.known else ""
    text = f"imported {count(done.imported, 'job')} from {file}{known}"
    answer(dataclasses.asdict(done), lambda _: text, as_json=as_json)
