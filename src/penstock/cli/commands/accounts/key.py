"""`penstock key`: who may call the HTTP API."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.base.settings import duration
from penstock.base.wording import age, ahead
from penstock.cli.output.console import Json, print_json, with_calls
from penstock.cli.output.render import Column, print_table
from penstock.engine.accounts.keys import Keys

app = typer.Typer(help="Keys to the HTTP API: make, list, exchange, revoke.", no_args_is_help=True)

COLUMNS = (
    Column("ID"),
    Column("KIND"),
    Column("ACCOUNT", least=8),
    Column("NAME", least=6, drop=1),
    Column("AGE", right=True, drop=2),
    Column("USED", right=True, drop=3),
    Column("STATE"),
)


class Kind(StrEnum):
    ADMIN = "admin"
    PROCESS = "process"
    APP = "app"
    ACCOUNT = "account"


Id = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The part of the key before its secret; `key list` shows it."
    ),
]


@app.command()
def create(
    *,
    kind: Annotated[
        Kind | None,
        typer.Option(
            help="admin: operators; app: a backend, for any account; account: one account; process:"
            " drives queues. app if not said, account where one is named."
        ),
    ] = None,
    account: Annotated[str | None, typer.Option(help="Whose key it is.")] = None,
    name: Annotated[str | None, typer.Option(help="To tell it from others.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Like 30d; for ever if not said.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key; it is printed this once."""
    wanted = kind or (Kind.APP if account is None else Kind.ACCOUNT)
    if (wanted is Kind.ACCOUNT) != (account is not None):
        raise typer.BadParameter(
            "a key of kind account is for one account: say which"
            if account is None
            else f"a key of kind {wanted} is for no account: leave it out, or --kind account",
            param_hint="--account",
        )
    length = None if expires is None else duration(expires, field="--expires")
    key, kept = with_calls(
        lambda calls: Keys(calls.fetch).create(wanted, account=account, name=name, expires=length)
    )
    _tell(key, kept, as_json=as_json)


@app.command("list")
def list_keys(
    *,
    account: Annotated[str | None, typer.Option(help="Only those of this account.")] = None,
    as_json: Json = False,
) -> None:
    """Show every key, newest first; never its secret."""
    found = with_calls(lambda calls: Keys(calls.fetch).list(account=account))
    if as_json:
        print_json(found)
    else:
        none = "No keys yet: `penstock key create` makes one."
        print_table(COLUMNS, [row(key) for key in found], none=none)


@app.command()
def revoke(key_id: Id, *, as_json: Json = False) -> None:
    """Let a key open nothing any more."""
    kept = with_calls(lambda calls: Keys(calls.fetch).revoke(key_id))
    if as_json:
        print_json(kept)
    else:
        typer.echo(f"Key {kept['id']} is revoked; every server refuses it within a second.")


@app.command()
def rotate(
    key_id: Id,
    *,
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="For how long the old one still opens.")
    ] = "1d",
    as_json: Json = False,
) -> None:
    """Make a key in the place of another, which opens for a while more."""
    length = duration(overlap, field="--overlap")
    key, kept = with_calls(lambda calls: Keys(calls.fetch).rotate(key_id, overlap=length))
    _tell(key, kept, as_json=as_json)


def row(key: dict[str, Any]) -> list[Any]:
    """A key as a row of COLUMNS."""
    return [
        key["id"],
        key["kind"],
        key["account"],
        key["name"],
        age(key["created_at"]),
        age(key["last_used_at"]),
        _state(key),
    ]


def _state(key: dict[str, Any]) -> str:
    if key["revoked_at"] is not None:
        return "revoked"
    if key["expires_at"] is None:
        return "good"
    over = datetime.fromisoformat(key["expires_at"]) <= datetime.now(UTC)
    return "expired" if over else f"ends {ahead(key['expires_at'])}"


def _tell(key: str, kept: dict[str, Any], *, as_json: bool) -> None:
    """The key alone to standard output, so that `KEY=$(penstock key create)` has it."""
    if as_json:
        print_json({"key": key, **kept})
        return
    typer.echo(key)
    whose = f" of account {kept['account']}" if kept["account"] else ""
    until = "" if kept["expires_at"] is None else f", good until {kept['expires_at']}"
    typer.echo(f"A key of kind {kept['kind']}{whose}{until}. Nobody can show it again.", err=True)
