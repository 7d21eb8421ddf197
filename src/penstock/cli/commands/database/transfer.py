"""`penstock import`: bring back the jobs that `penstock migrate down --export` wrote."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output.console import Json, print_json, with_connection
from penstock.db.connections.connect import connect_ready
from penstock.db.schema import transfer


def import_jobs(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `penstock migrate down --export` wrote.")
    ],
    *,
    as_json: Json = False,
) -> None:
    """Bring exported jobs back; what is there already stays as it is."""
    done = with_connection(connect_ready, lambda conn: transfer.import_jobs(conn, file))
    if as_json:
        print_json(dataclasses.asdict(done))
    else:
        there = f"; {done.known} were there already" if done.known else ""
        typer.echo(f"imported {done.imported} jobs from {file}{there}")
