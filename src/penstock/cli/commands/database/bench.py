"""`penstock bench`: what this server can do, beside the bare commits of the same moment."""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output.console import Json, print_json, settings
from penstock.cli.output.render import Column, print_table

if TYPE_CHECKING:
    from penstock.cli.commands.database.measuring import Line


def bench(
    *,
    jobs: Annotated[
        int, typer.Option(min=100, max=1_000_000, help="How many in bulk; single ones: a tenth.")
    ] = 10_000,
    as_json: Json = False,
) -> None:
    """Measure submits, a worker and its reaction, in a database that is made for it and dropped.

    The figures are of this server, from this machine, at this moment. Your jobs are not touched,
    but they share the server: it is busy for some seconds.
    """
    # Only here: it brings the worker and all that it runs with.
    from penstock.cli.commands.database.measuring import measure

    found = asyncio.run(measure(settings(), jobs))
    if as_json:
        print_json([asdict(line) for line in found])
        return
    columns = [Column("WHAT"), Column("FIGURE", right=True), Column("TO COMMITS", right=True)]
    print_table(columns, [_cells(line) for line in found], none="Nothing was measured.")


def _cells(line: "Line") -> list[str]:
    figure = f"{line.value:,.0f}/s" if line.unit == "/s" else f"{line.value:.1f} {line.unit}"
    return [line.what, figure, "-" if line.beside is None else f"{line.value / line.beside:.2f}"]
