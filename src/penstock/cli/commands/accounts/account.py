"""`penstock account`: who may use how much, what they have left, and every move of it."""

import re
from typing import Annotated, Any

import typer

from penstock.base.wording import age, ahead, count
from penstock.cli.commands.accounts import ledger
from penstock.cli.output.console import Calls, Json, print_json, with_calls
from penstock.cli.output.render import Column, fact, print_lines, print_table
from penstock.engine.encoding.encode import CREDITS_MAX

app = typer.Typer(help="Accounts: plan, balance, credits, ledger.", no_args_is_help=True)

COLUMNS = (
    Column("ACCOUNT", least=10),
    Column("PLAN", least=6),
    Column("BALANCE", right=True),
    Column("RUNNING", right=True),
    Column("QUEUED", right=True),
    Column("LAST HOUR", right=True, drop=2),
    Column("AGE", right=True, drop=1),
)
# What SQL takes for one move.


def _amount(text: str) -> int:
    amount = int(text[:20]) if re.fullmatch(r"\+?[0-9]+", text) else 0
    if not 1 <= amount <= CREDITS_MAX:
        raise typer.BadParameter(
            f"must be a whole number from 1 to {CREDITS_MAX:,}, not {text[:40]!r}."
        )
    return amount


def _name(text: str) -> str:
    """No account of that name by mistake: such a word is an option that was mistyped."""
    if text.startswith("-"):
        raise typer.BadParameter(f"there is no option {text[:40]!r}; names begin otherwise.")
    return text


Name = Annotated[str, typer.Argument(metavar="NAME", parser=_name, help="The account's name.")]
Amount = Annotated[
    int, typer.Argument(metavar="AMOUNT", parser=_amount, help="Credits, a whole number.")
]
Reason = Annotated[str | None, typer.Option(help="Why, for those who read the ledger.")]
_REF = typer.Option(metavar="REF", help="Your own name for this move; it happens once for each.")
Ref = Annotated[str, _REF]
# Without it, -5 would be taken for an option that nobody knows.
_NEGATIVE = {"ignore_unknown_options": True}


@app.command()
def create(
    name: Name,
    *,
    plan: Annotated[str | None, typer.Option(help="Its plan; the default one if not said.")] = None,
    as_json: Json = False,
) -> None:
    """Make an account."""

    async def ask(calls: Calls) -> dict[str, Any]:
        await calls.accounts.create(name, plan=plan)
        return await calls.accounts.show(name)

    made = with_calls(ask)
    if as_json:
        print_json(made)
    else:
        has = f"plan {made['plan']}" if made["plan"] else "no plan"
        typer.echo(f"Account {name} is there, with {has} and {_credits(made['balance'])}.")


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
    done = with_calls(lambda calls: calls.accounts.grant(name, amount, reason=reason, ref=ref))
    _tell(done, f"Granted {_credits(amount)} to {name}", as_json=as_json)


@app.command(context_settings=_NEGATIVE)
def deduct(
    name: Name, amount: Amount, *, ref: Ref, reason: Reason = None, as_json: Json = False
) -> None:
    """Take credits for something that is no job; never more than there are."""
    done = with_calls(lambda calls: calls.accounts.deduct(name, amount, ref=ref, reason=reason))
    _tell(done, f"Deducted {_credits(amount)} from {name}", as_json=as_json)


@app.command()
def refund(name: Name, *, ref: Ref, reason: Reason = None, as_json: Json = False) -> None:
    """Give back what was deducted under a ref."""
    done = with_calls(lambda calls: calls.accounts.refund(name, ref=ref, reason=reason))
    _tell(done, f"Refunded {_credits(abs(done['amount']))} to {name}", as_json=as_json)


@app.command("plan")
def set_plan(
    name: Name,
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="The plan it shall have.")],
    *,
    as_json: Json = False,
) -> None:
    """Change an account's plan; its limits apply at once to what waits."""

    async def ask(calls: Calls) -> dict[str, Any]:
        await calls.accounts.set_plan(name, plan)
        return await calls.accounts.show(name)

    after = with_calls(ask)
    if as_json:
        print_json(after)
    else:
        typer.echo(f"Account {name} has plan {after['plan']} now.")


@app.command()
def show(name: Name, *, as_json: Json = False) -> None:
    """Show one account: plan, balance, what runs and waits, when it may submit again."""
    account = with_calls(lambda calls: calls.accounts.show(name))
    if as_json:
        print_json(account)
        return
    told = (
        ("account", account["id"]),
        ("plan", account["plan"]),
        ("balance", _credits(account["balance"])),
        ("running", _of(account["running"], account["concurrency"])),
        ("queued", f"{account['queued']:,}"),
        ("last hour", f"{_of(account['submitted_last_hour'], account['per_hour'])} submits"),
        ("next submit", _next_submit(account["next_submit_at"])),
        ("created", f"{account['created_at']} ({age(account['created_at'])} ago)"),
    )
    print_lines([fact(what, value) for what, value in told])


@app.command("list")
def list_accounts(
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 100,
    after: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only names that come after this one: the next page."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List accounts by name."""
    found = with_calls(lambda calls: calls.accounts.list(limit=limit, after=after))
    if as_json:
        print_json(found)
    else:
        none = "No accounts yet: the first submit for one makes it, or `penstock account create`."
        print_table(
            COLUMNS, [row(account) for account in found], none=none if after is None else "No more."
        )


def row(account: dict[str, Any]) -> list[Any]:
    """An account as a row of COLUMNS."""
    return [
        account["id"],
        account["plan"],
        f"{account['balance']:,}",
        _of(account["running"], account["concurrency"]),
        account["queued"],
        _of(account["submitted_last_hour"], account["per_hour"]),
        age(account["created_at"]),
    ]


app.command("ledger")(ledger.ledger)


def _tell(done: dict[str, Any], what: str, *, as_json: bool) -> None:
    """What a move did, or that it was made before."""
    if as_json:
        print_json(done)
    elif done["replayed"]:
        typer.echo(
            f"This was done before under ref {done['ref']}: nothing moved;"
            f" the balance is {done['balance']:,}."
        )
    else:
        typer.echo(f"{what}; the balance is {done['balance']:,}.")


def _credits(amount: int) -> str:
    return count(amount, "credit")


def _of(used: int, limit: int | None) -> str:
    return f"{used:,}" if limit is None else f"{used:,} of {limit:,}"


def _next_submit(moment: str | None) -> str:
    when = ahead(moment)
    return when if when == "now" else f"{when}, at {moment}"
