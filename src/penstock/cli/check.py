"""`penstock check`: look for broken invariants."""

import asyncpg
import typer

from penstock.cli.console import Json, print_json, with_connection
from penstock.db.call import translated
from penstock.db.connect import connect_ready


def check(*, as_json: Json = False) -> None:
    """Check every invariant of the data; exit with 1 when one is broken."""
    found = with_connection(connect_ready, _violations)
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("Sound: every invariant holds.")
    for row in [] if as_json else found:
        typer.echo("  ".join(str(value) for value in row.values()))
    if found:
        raise typer.Exit(1)


async def _violations(conn: asyncpg.Connection) -> list[dict[str, object]]:
    with translated():
        return [dict(row) for row in await conn.fetch("select * from penstock.check()")]
