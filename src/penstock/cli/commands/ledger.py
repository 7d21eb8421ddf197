"""`penstock account ledger`: every move of an account's credits, to look at or to take along."""

import csv
import sys
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.cli.output.console import CommandEngine, Json, call_engine, json_text
from penstock.cli.output.render import Column, clean, print_lines, table, terminal_width
from penstock.engine.accounts.ledger_export import books

PAGE = 1_000
FIELDS = ("at", "kind", "amount", "job", "ref", "reason", "balance_after")
COLUMNS = (
    Column("AT", "at"),
    Column("KIND", "kind"),
    Column("AMOUNT", lambda line: f"{line['amount']:+,}", right=True),
    Column("BALANCE", lambda line: f"{line['balance_after']:,}", right=True),
    Column("JOB", "job", least=8, drop=1),
    Column("REF", "ref", least=8, drop=2),
    Column("REASON", "reason", least=10, drop=3),
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

    async def print_pages(engine: CommandEngine) -> None:
        if whole:
            pages = books(engine.accounts, name, page=PAGE)
        else:
            pages = _newest(engine, name, limit, oldest_first=form is Format.CSV)
        await _PRINTERS[form](pages)

    call_engine(print_pages)


async def _newest(
    engine: CommandEngine, name: str, limit: int, *, oldest_first: bool
) -> AsyncIterator[Lines]:
    lines = await engine.accounts.ledger(name, limit=limit)
    yield lines[::-1] if oldest_first else lines


async def _print_table(pages: AsyncIterator[Lines]) -> None:
    first = 0
    async for lines in pages:
        none = "No credits have come or gone yet."
        print_lines(table(COLUMNS, lines, none=none, width=terminal_width())[first:])
        first = 1  # the titles stand above the first page alone


async def _print_json(pages: AsyncIterator[Lines]) -> None:
    """One list on one line, written as it comes."""
    before = "["
    async for lines in pages:
        typer.echo(before + ", ".join(json_text(line) for line in lines), nl=False)
        before = ", "
    typer.echo("]")


async def _print_csv(pages: AsyncIterator[Lines]) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    is_seen = sys.stdout.isatty()
    titles = [FIELDS]
    async for lines in pages:
        out.writerows(titles)  # not before an account that is not there was refused
        titles = []
        for line in lines:
            cells = [line[field] for field in FIELDS]
            # What somebody wrote as a reason must not move the cursor of who looks at it.
            out.writerow(
                [cell if cell is None else clean(cell) for cell in cells] if is_seen else cells
            )


_PRINTERS = {Format.TABLE: _print_table, Format.JSON: _print_json, Format.CSV: _print_csv}
