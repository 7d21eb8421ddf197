"""`penstock webhooks`: show and resend messages about finished jobs, and print their secrets."""

from typing import Annotated
from uuid import UUID

import typer

from penstock.base.wording import age
from penstock.cli.output.console import Json, answer, call_engine, database
from penstock.cli.output.render import Column, listing
from penstock.errors import Invalid
from penstock.security.roots import read_roots
from penstock.security.signature import of_functions, of_webhooks

app = typer.Typer(
    name="webhooks", help="Show messages about finished jobs.", invoke_without_command=True
)

COLUMNS = (
    Column("ID", "id"),
    Column("STATUS", "status"),
    Column("TYPE", "type", least=8, drop=2),
    Column("URL", "url", least=16),
    Column("TRIES", "tries", right=True),
    Column("ANSWER", "last_status", right=True, drop=3),
    Column("AGE", lambda webhook: age(webhook["created_at"]), right=True, drop=1),
    Column("NOTE", "last_error", least=16, drop=4),
)


@app.callback()
def webhooks(context: typer.Context, *, as_json: Json = False) -> None:
    """Show messages about finished jobs, the newest first."""
    if context.invoked_subcommand is None:
        show(as_json=as_json)


@app.command("list")
def show(
    *,
    status: Annotated[
        str | None,
        typer.Option(help="Only messages in this state: pending, delivered or given_up."),
    ] = None,
    job: Annotated[
        UUID | None, typer.Option(metavar="ID", help="Only messages of this job.")
    ] = None,
    account: Annotated[
        str | None, typer.Option(help="Only messages of this account's jobs.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    as_json: Json = False,
) -> None:
    """List messages about finished jobs, the newest first."""
    messages = call_engine(
        lambda engine: engine.webhooks.list(owner=account, job=job, status=status, limit=limit)
    )
    answer(messages, listing(COLUMNS, "No webhooks."), as_json=as_json)


@app.command()
def replay(
    webhook: Annotated[UUID, typer.Argument(metavar="ID", help="The message's id.")],
    *,
    as_json: Json = False,
) -> None:
    """Send a message again, under the same id."""
    answer(
        call_engine(lambda engine: engine.webhooks.replay(webhook)),
        lambda message: f"Webhook {webhook} will be sent to {message['url']} again.",
        as_json=as_json,
    )


@app.command()
def secret(
    *,
    account: Annotated[
        str | None, typer.Option(help="For the addresses that this account's jobs name.")
    ] = None,
    functions: Annotated[
        bool, typer.Option("--functions", help="For calls to functions, and their callbacks.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the secret with which a receiver checks signatures.

    By default that of `webhook =` of kinds. Give it to that receiver only. While PENSTOCK_SECRET is
    being replaced there are two, the new one first; messages carry a signature by each.
    """
    if functions and account is not None:
        raise Invalid("give --account or --functions", code="invalid_option", field="functions")
    roots = read_roots(database())
    signer = (
        of_functions(roots) if functions else of_webhooks(roots, account, trusted=account is None)
    )
    answer(signer.written, "\n".join, as_json=as_json)
