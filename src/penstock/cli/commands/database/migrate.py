"""`penstock migrate`: bring the schema up, take it back, see where it is."""

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import asyncpg
import typer

from penstock.cli.output.console import Json, database, print_json, with_connection
from penstock.db.connections.connect import connect
from penstock.db.connections.display_address import place
from penstock.db.schema import migrations, version

app = typer.Typer(
    help="Bring the database's schema up, take it back, see where it is.", no_args_is_help=True
)


@app.command()
def up(*, as_json: Json = False) -> None:
    """Apply pending migrations and load the functions, in one transaction."""
    moved = with_connection(connect, migrations.up)
    if as_json:
        print_json(dataclasses.asdict(moved))
        return
    for name in moved.migrations:
        typer.echo(f"applied {name}")
    if moved.functions_loaded:
        typer.echo("loaded the functions")
    typer.echo(f"The schema is at {moved.current}, as this program wants it.")


@app.command()
def down(
    *,
    to: Annotated[
        int | None,
        typer.Option(metavar="N", help="The migration to go back to; 0 removes the schema."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Before going to 0, write the live jobs to this new file."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether you are sure.")] = False,
    as_json: Json = False,
) -> None:
    """Undo the last migration, or all after --to; jobs are kept except below the first.

    At a terminal it asks first; scripts are not asked.
    """
    if not yes and sys.stdin.isatty():
        _ask(to)
    moved = with_connection(connect, lambda conn: migrations.down(conn, to=to, export=export))
    if as_json:
        print_json(dataclasses.asdict(moved))
        return
    for name in moved.migrations:
        typer.echo(f"undid {name}")
    if moved.jobs_exported is not None:
        typer.echo(f"wrote {moved.jobs_exported} live jobs to {export}")
    typer.echo(f"The schema is at {moved.current}.")


def _ask(to: int | None) -> None:
    """Whoever types it at a terminal may not know what goes."""
    found = with_connection(connect, _read_status)
    target = max(0, found.current - 1) if to is None else to
    if target >= found.current or found.other_tables:
        return
    dsn = database().dsn
    where = "the embedded database" if dsn is None else place(dsn)
    typer.confirm(
        f"Remove the whole schema from {where}, with all history, accounts and their ledger?"
        if target == 0
        else f"Take the schema of {where} from migration {found.current} back to {target}?"
        " Programs that need what goes are refused then.",
        abort=True,
        err=True,
    )


@app.command()
def status(*, as_json: Json = False) -> None:
    """Show the schema's number, the one this program wants, and what is pending."""
    # Also through a pooler, by which an app may submit.
    found = with_connection(partial(connect, frugal=True), _read_status)
    if as_json:
        print_json(
            {
                **dataclasses.asdict(found),
                "is_current": found.is_current,
                "is_served": found.is_served,
            }
        )
        return
    typer.echo(f"The schema is at {found.current}; this program wants {found.wanted}.")
    for name in found.pending:
        typer.echo(f"pending {name}")
    if found.other_tables:
        typer.echo(version.OTHER_TABLES)
        return
    for name in found.changed:
        typer.echo(f"edited after it was applied: {name}")
    if found.difference:
        typer.echo("This program is still served: fine during an upgrade, replace it soon.")
    elif found.current > found.wanted:
        typer.echo("It is newer than this program: upgrade penstock here.")
    elif not found.is_current:
        typer.echo("Run `penstock migrate up`.")


async def _read_status(conn: asyncpg.Connection) -> version.Status:
    async with conn.transaction():
        return await version.status(conn)
