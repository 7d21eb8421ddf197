"""`penstock account ledger`: every move of an account's credits, to look at or to take along."""

import csv
import sys
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.cli.output.console import Calls, Json, json_text, with_calls
from penstock.cli.output.render import Column, clean, print_lines, room, table
from penstock.engine.accounts.accounts import books

PAGE = 1_000
FIELDS = ("at", "kind", "amount", "job", "ref", "reason", "balance_after")
COLUMNS = (
    Column("AT"),
    Column("KIND"),
    Column("AMOUNT", right=True),
    Column("BALANCE", right=True),
    Column("JOB", least=8, drop=1),
    Column("REF", least=8, drop=2),
    Column("REASON", least=10, drop=3),
)
Lines = list[dict[str, Any]]


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def ledger(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The account's name.")],
    *,
    limit: Annotated[int, typer.Option(min=1, max=PAGE, help="How many at most.")] = 20,
    whole: Annotated[
        bool, typer.Option("--all", help="Every line there is, the oldest first.")
    ] = False,
    form: Annotated[
        Format, typer.Option("--format", help="csv has the oldest line first.")
    ] = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Show what moved on an account, the newest first."""
    if as_json:
        form = Format.JSON

    async def ask(calls: Calls) -> None:
        pages = (
            books(calls.accounts, name, page=PAGE) if whole else _newest(calls, name, limit, form)
        )
        await _PRINTERS[form](pages)

    with_calls(ask)


async def _newest(calls: Calls, name: str, limit: int, form: Format) -> AsyncIterator[Lines]:
    lines = await calls.accounts.ledger(name, limit=limit)
    yield lines[::-1] if form is Format.CSV else lines


async def _print_table(pages: AsyncIterator[Lines]) -> None:
    titles = True
    async for lines in pages:
        if not lines:
            typer.echo("No credits have come or gone yet.")
            return
        drawn = table(COLUMNS, [_row(line) for line in lines], width=room())
        print_lines(drawn if titles else drawn[1:])
        titles = False


def _row(line: dict[str, Any]) -> list[Any]:
    return [
        line["at"],
        line["kind"],
        f"{line['amount']:+,}",
        f"{line['balance_after']:,}",
        line["job"],
        line["ref"],
        line["reason"],
    ]


async def _print_json(pages: AsyncIterator[Lines]) -> None:
    """One list on one line, written as it comes."""
    before = "["
    async for lines in pages:
        typer.echo(before + ", ".join(json_text(line) for line in lines), nl=False)
        before = ", "
    typer.echo("]")


async def _print_csv(pages: AsyncIterator[Lines]) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    seen = sys.stdout.isatty()
    titles = True
    async for lines in pages:
        if titles:  # not before an account that is not there was refused
            out.writerow(FIELDS)
            titles = False
        for line in lines:
            cells = [line[field] for field in FIELDS]
            # What somebody wrote as a reason must not move the cursor of who looks at it.
            out.writerow(
                [cell if cell is None else clean(cell) for cell in cells] if seen else cells
            )


_PRINTERS = {Format.TABLE: _print_table, Format.JSON: _print_json, Format.CSV: _print_csv}
