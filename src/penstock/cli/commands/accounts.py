"""`penstock account` and `penstock erase`: plan, balance, ledger, erasure."""

import asyncio
import csv
import re
import sys
import time
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.base.wording import age, ahead, count
from penstock.cli.output.console import CommandEngine, Json, answer, call_engine, json_text
from penstock.cli.output.render import (
    Column,
    clean,
    facts,
    listing,
    print_lines,
    table,
    terminal_width,
)
from penstock.engine.accounts.accounts import books
from penstock.engine.encoding.encode import CREDITS_MAX
from penstock.errors import Conflict

app = typer.Typer(
    name="account", help="Accounts: plan, balance, credits, ledger.", no_args_is_help=True
)

# A worker that is asked to stop a job does so at once; otherwise upkeep ends it after 10 s.
WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.5


def _of(used: int, limit: int | None) -> str:
    return f"{used:,}" if limit is None else f"{used:,} of {limit:,}"


def _running(account: dict[str, Any]) -> str:
    return _of(account["running"], account["concurrency"])


def _last_hour(account: dict[str, Any]) -> str:
    return _of(account["submitted_last_hour"], account["per_hour"])


COLUMNS = (
    Column("ACCOUNT", "id", least=10),
    Column("PLAN", "plan", least=6),
    Column("BALANCE", lambda account: f"{account['balance']:,}", right=True),
    Column("RUNNING", _running, right=True),
    Column("QUEUED", "queued", right=True),
    Column("LAST HOUR", _last_hour, right=True, drop=2),
    Column("AGE", lambda account: age(account["created_at"]), right=True, drop=1),
)

PAGE = 1_000
FIELDS = ("at", "kind", "amount", "job", "ref", "reason", "balance_after")
_LEDGER_COLUMNS = (
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


def _amount(text: str) -> int:
    amount = int(text[:20]) if re.fullmatch(r"\+?[0-9]+", text) else 0
    if not 1 <= amount <= CREDITS_MAX:
        raise typer.BadParameter(
            f"must be a whole number from 1 to {CREDITS_MAX:,}, not {text[:40]!r}."
        )
    return amount


def _name(text: str) -> str:
    """Refuse a name that begins with a dash: it is a mistyped option."""
    if text.startswith("-"):
        raise typer.BadParameter(
            f"there is no option {text[:40]!r}, and a name cannot begin with a dash."
        )
    return text


Name = Annotated[str, typer.Argument(metavar="NAME", parser=_name, help="The account's name.")]
Amount = Annotated[
    int, typer.Argument(metavar="AMOUNT", parser=_amount, help="Credits, a whole number.")
]
Reason = Annotated[str | None, typer.Option(help="Why, for readers of the ledger.")]
_REF = typer.Option(metavar="REF", help="Your own name for this change; each is made only once.")
Ref = Annotated[str, _REF]
# Without it, typer would refuse -5 as an unknown option.
_NEGATIVE = {"ignore_unknown_options": True}


@app.command()
def create(
    name: Name,
    *,
    plan: Annotated[str | None, typer.Option(help="Its plan, instead of the default one.")] = None,
    as_json: Json = False,
) -> None:
    """Create an account."""

    async def make(engine: CommandEngine) -> dict[str, Any]:
        await engine.accounts.create(name, plan=plan)
        return await engine.accounts.show(name)

    answer(
        call_engine(make),
        lambda account: (
            f"Account {name} exists, with"
            f" {'plan ' + account['plan'] if account['plan'] else 'no plan'}"
            f" and {_credits(account['balance'])}."
        ),
        as_json=as_json,
    )


@app.command(context_settings=_NEGATIVE)
def grant(
    name: Name,
    amount: Amount,
    *,
    reason: Reason = None,
    ref: Annotated[str | None, _REF] = None,
    as_json: Json = False,
) -> None:
    """Give credits."""
    move = call_engine(lambda engine: engine.accounts.grant(name, amount, reason=reason, ref=ref))
    answer(move, lambda move: _moved(move, "Granted", name), as_json=as_json)


@app.command(context_settings=_NEGATIVE)
def deduct(
    name: Name, amount: Amount, *, ref: Ref, reason: Reason = None, as_json: Json = False
) -> None:
    """Deduct credits for something that is no job; never more than the balance."""
    move = call_engine(lambda engine: engine.accounts.deduct(name, amount, ref=ref, reason=reason))
    answer(move, lambda move: _moved(move, "Deducted", name), as_json=as_json)


@app.command()
def refund(name: Name, *, ref: Ref, reason: Reason = None, as_json: Json = False) -> None:
    """Refund what was deducted under a ref."""
    move = call_engine(lambda engine: engine.accounts.refund(name, ref=ref, reason=reason))
    answer(move, lambda move: _moved(move, "Refunded", name), as_json=as_json)


@app.command("plan")
def set_plan(
    name: Name,
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="The new plan.")],
    *,
    as_json: Json = False,
) -> None:
    """Change an account's plan; its limits apply at once to waiting jobs."""

    async def change(engine: CommandEngine) -> dict[str, Any]:
        await engine.accounts.set_plan(name, plan)
        return await engine.accounts.show(name)

    answer(
        call_engine(change),
        lambda account: f"Account {name} now has plan {account['plan']}.",
        as_json=as_json,
    )


@app.command()
def show(name: Name, *, as_json: Json = False) -> None:
    """Show one account: plan, balance, running and queued jobs, when it may submit again."""
    account = call_engine(lambda engine: engine.accounts.show(name))
    answer(account, lambda account: facts(_facts(account).items()), as_json=as_json)


def _facts(account: dict[str, Any]) -> dict[str, Any]:
    when = ahead(account["next_submit_at"])
    return {
        "account": account["id"],
        "plan": account["plan"],
        "balance": _credits(account["balance"]),
        "running": _running(account),
        "queued": f"{account['queued']:,}",
        "last hour": f"{_last_hour(account)} submits",
        "next submit": when if when == "now" else f"{when}, at {account['next_submit_at']}",
        "created": f"{account['created_at']} ({age(account['created_at'])} ago)",
    }


@app.command("list")
def list_accounts(
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 100,
    after: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only names after this one: the next page."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List accounts by name."""
    accounts = call_engine(lambda engine: engine.accounts.list(limit=limit, after=after))
    none = "No accounts yet: the first submit for one creates it, or `penstock account create`."
    answer(accounts, listing(COLUMNS, none if after is None else "No more."), as_json=as_json)


@app.command()
def ledger(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The account's name.")],
    *,
    limit: Annotated[int, typer.Option(min=1, max=PAGE, help="How many at most.")] = 20,
    whole: Annotated[bool, typer.Option("--all", help="All lines, the oldest first.")] = False,
    form: Annotated[
        Format, typer.Option("--format", help="csv has the oldest line first.")
    ] = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Show the ledger of an account, the newest line first."""
    if as_json:
        form = Format.JSON

    async def print_pages(engine: CommandEngine) -> None:
        newest = _newest(engine, name, limit, oldest_first=form is Format.CSV)
        pages = books(engine.accounts, name, page=PAGE) if whole else newest
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
        none = "The ledger has no lines yet."
        print_lines(table(_LEDGER_COLUMNS, lines, none=none, width=terminal_width())[first:])
        first = 1  # the titles are printed above the first page only


async def _print_json(pages: AsyncIterator[Lines]) -> None:
    """Print one JSON array on one line, page by page."""
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
        out.writerows(titles)  # here, so that an unknown account prints nothing but its error
        titles = []
        for line in lines:
            cells = [line[field] for field in FIELDS]
            # Control characters in a reason must not move the cursor of a terminal.
            out.writerow(
                [cell if cell is None else clean(cell) for cell in cells] if is_seen else cells
            )


_PRINTERS = {Format.TABLE: _print_table, Format.JSON: _print_json, Format.CSV: _print_csv}


def erase(
    account: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether you are sure.")] = False,
    as_json: Json = False,
) -> None:
    """Remove an account's jobs, uploads and name; this cannot be undone.

    Waiting jobs are cancelled and refunded, running ones are asked to stop. The ledger is kept,
    under a number.
    """
    if not yes:
        current = call_engine(lambda engine: engine.accounts.show(account))
        live = count(current["running"] + current["queued"], "live job")
        question = f"Remove everything of account {account}, and cancel {live}?"
        typer.confirm(question, abort=True, err=True)
    receipt = call_engine(lambda engine: _erase(engine, account))
    answer(receipt, lambda receipt: _erased(account, receipt), as_json=as_json)


async def _erase(engine: CommandEngine, account: str) -> dict[str, Any]:
    """Erase the account when its running jobs have finished; give up after a time limit."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return await engine.erasure.erase(account)
        except Conflict as error:
            if error.code != "account_busy" or time.monotonic() > deadline:
                raise
            await asyncio.sleep(_POLL_SECONDS)


def _erased(account: str, receipt: dict[str, Any]) -> str:
    kept = receipt["kept"]
    return (
        f"Account {account} is erased: {count(receipt['jobs'], 'job')},"
        f" {count(receipt['uploads'], 'upload')}, {count(receipt['webhooks'], 'webhook message')},"
        f" {count(receipt['keys'], 'key')} revoked.\n"
        f"In the ledger it is now {receipt['pseudonym']}: {count(kept['ledger_lines'], 'line')},"
        f" {kept['with_words']:,} of them with the reference or reason that they were given."
    )


def _moved(move: dict[str, Any], change: str, name: str) -> str:
    """Say what a change of credits did, or that it was made before."""
    if move["replayed"]:
        return (
            f"This was done before under ref {move['ref']}: nothing changed;"
            f" the balance is {move['balance']:,}."
        )
    amount, direction = abs(move["amount"]), "from" if move["amount"] < 0 else "to"
    return f"{change} {_credits(amount)} {direction} {name}; the balance is {move['balance']:,}."


def _credits(amount: int) -> str:
    return count(amount, "credit")
