"""`penstock key`: the keys to the HTTP API."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.base.settings import duration
from penstock.base.wording import age, ahead
from penstock.cli.output.console import Json, answer, call_engine, print_json
from penstock.cli.output.render import Column, listing

app = typer.Typer(
    name="key", help="Keys to the HTTP API: create, list, rotate, revoke.", no_args_is_help=True
)


def _state(key: dict[str, Any]) -> str:
    if key["revoked_at"] is not None:
        return "revoked"
    if key["expires_at"] is None:
        return "good"
    is_over = datetime.fromisoformat(key["expires_at"]) <= datetime.now(UTC)
    return "expired" if is_over else f"expires {ahead(key['expires_at'])}"


COLUMNS = (
    Column("ID", "id"),
    Column("KIND", "kind"),
    Column("ACCOUNT", "account", least=8),
    Column("NAME", "name", least=6, drop=1),
    Column("AGE", lambda key: age(key["created_at"]), right=True, drop=2),
    Column("USED", lambda key: age(key["last_used_at"]), right=True, drop=3),
    Column("STATE", _state),
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
            " drives queues. By default account if --account is given, otherwise app."
        ),
    ] = None,
    account: Annotated[str | None, typer.Option(help="The account that it opens.")] = None,
    name: Annotated[str | None, typer.Option(help="A name for lists.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Like 30d; by default it never expires.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a key; it is printed only once."""
    wanted = kind or (Kind.APP if account is None else Kind.ACCOUNT)
    if (wanted is Kind.ACCOUNT) != (account is not None):
        raise typer.BadParameter(
            "a key of kind account is for one account: name it"
            if account is None
            else f"a key of kind {wanted} is for no account: leave it out, or use --kind account",
            param_hint="--account",
        )
    length = None if expires is None else duration(expires, field="--expires")
    key, stored = call_engine(
        lambda engine: engine.keys.create(wanted, account=account, name=name, expires=length)
    )
    _print_key(key, stored, as_json=as_json)


@app.command("list")
def list_keys(
    *,
    account: Annotated[str | None, typer.Option(help="Only keys of this account.")] = None,
    as_json: Json = False,
) -> None:
    """Show all keys, newest first, without their secrets."""
    keys = call_engine(lambda engine: engine.keys.list(account=account))
    answer(
        keys, listing(COLUMNS, "No keys yet: `penstock key create` creates one."), as_json=as_json
    )


@app.command()
def revoke(key_id: Id, *, as_json: Json = False) -> None:
    """Revoke a key: servers refuse it from now on."""
    answer(
        call_engine(lambda engine: engine.keys.revoke(key_id)),
        lambda key: f"Key {key['id']} is revoked; every server refuses it within a second.",
        as_json=as_json,
    )


@app.command()
def rotate(
    key_id: Id,
    *,
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="How long the old key still works.")
    ] = "1d",
    as_json: Json = False,
) -> None:
    """Replace a key by a new one; the old one works for a while longer."""
    length = duration(overlap, field="--overlap")
    key, stored = call_engine(lambda engine: engine.keys.rotate(key_id, overlap=length))
    _print_key(key, stored, as_json=as_json)


def _print_key(key: str, stored: dict[str, Any], *, as_json: bool) -> None:
    """Print only the key to standard output, for `KEY=$(penstock key create)`."""
    if as_json:
        print_json({"key": key, **stored})
        return
    typer.echo(key)
    whose = f" of account {stored['account']}" if stored["account"] else ""
    until = "" if stored["expires_at"] is None else f", valid until {stored['expires_at']}"
    typer.echo(f"A key of kind {stored['kind']}{whose}{until}. It cannot be shown again.", err=True)
