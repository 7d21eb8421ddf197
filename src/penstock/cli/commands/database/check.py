"""`penstock check`: look for broken invariants, or for what stands still."""

from functools import partial
from typing import Annotated, Any

import asyncpg
import typer

from penstock.base.settings import duration
from penstock.cli.output.console import Json, print_json, with_connection
from penstock.cli.output.render import clean
from penstock.db.connections.connect import connect_ready
from penstock.db.connections.driver_errors import fetching
from penstock.engine.queries.lists import Lists

OLDER_THAN = "10s"


def check(
    *,
    liveness: Annotated[
        bool,
        typer.Option("--liveness", help="Look for what should move and does not, instead."),
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="10s|1m",
            help=f"With --liveness: what has stood still for so long; {OLDER_THAN} if not given.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every invariant of the data; exit with 1 when one is broken."""
    if older_than is not None and not liveness:
        raise typer.BadParameter("it goes with --liveness only", param_hint="--older-than")
    if liveness:
        length = duration(older_than or OLDER_THAN, field="--older-than")
        found = with_connection(connect_ready, partial(_overdue, length=length))
    else:
        found = with_connection(connect_ready, _violations)
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("Nothing stands still." if liveness else "Sound: every invariant holds.")
    for row in [] if as_json else found:
        typer.echo("  ".join(clean(str(value)) for value in row.values()))
    if found:
        raise typer.Exit(1)


async def _violations(conn: asyncpg.Connection) -> list[dict[str, Any]]:
    rows = await fetching(conn)("select * from penstock.check()", ())
    return [dict(row) for row in rows]


async def _overdue(conn: asyncpg.Connection, length: Any) -> list[dict[str, Any]]:
    rows = await Lists(fetching(conn)).overdue(length)
    return [row | {"since": row["since"].isoformat()} for row in rows]
