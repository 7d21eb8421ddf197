"""`penstock webhooks`: messages about ended jobs, once more, and what they are signed with."""

from typing import Annotated, Any
from uuid import UUID

import typer

from penstock.base.wording import age
from penstock.cli.output.console import Json, database, print_json, with_calls
from penstock.cli.output.render import Column, print_table
from penstock.engine.webhooks import Webhooks
from penstock.errors import Invalid
from penstock.security.roots import read_roots
from penstock.security.signature import of_functions, of_webhooks

app = typer.Typer(help="Show messages about ended jobs.", invoke_without_command=True)

COLUMNS = (
    Column("ID"),
    Column("STATUS"),
    Column("TYPE", least=8, drop=2),
    Column("URL", least=16),
    Column("TRIES", right=True),
    Column("ANSWER", right=True, drop=3),
    Column("AGE", right=True, drop=1),
    Column("NOTE", least=16, drop=4),
)

Status = Annotated[str | None, typer.Option(help="Only those pending, delivered or given_up.")]
Job = Annotated[UUID | None, typer.Option(metavar="ID", help="Only those of this job.")]
Account = Annotated[str | None, typer.Option(help="Only those of this account's jobs.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")]


@app.callback()
def webhooks(context: typer.Context, *, as_json: Json = False) -> None:
    """Show messages about ended jobs, the newest first."""
    if context.invoked_subcommand is None:
        show(as_json=as_json)


@app.command("list")
def show(
    *,
    status: Status = None,
    job: Job = None,
    account: Account = None,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """List messages about ended jobs, the newest first."""
    found = with_calls(
        lambda calls: Webhooks(calls.fetch).list(owner=account, job=job, status=status, limit=limit)
    )
    if as_json:
        print_json(found)
    else:
        print_table(COLUMNS, [row(one) for one in found], none="No webhooks.")


def row(webhook: dict[str, Any]) -> list[Any]:
    """A message as a row of COLUMNS."""
    return [
        webhook["id"],
        webhook["status"],
        webhook["type"],
        webhook["url"],
        webhook["tries"],
        webhook["last_status"],
        age(webhook["created_at"]),
        webhook["last_error"],
    ]


@app.command()
def replay(
    webhook: Annotated[UUID, typer.Argument(metavar="ID", help="The message's id.")],
    *,
    as_json: Json = False,
) -> None:
    """Send a message once more, under the same id."""
    after = with_calls(lambda calls: Webhooks(calls.fetch).replay(webhook))
    if as_json:
        print_json(after)
    else:
        typer.echo(f"Webhook {webhook} will be sent to {after['url']} again.")


@app.command()
def secret(
    *,
    account: Annotated[
        str | None, typer.Option(help="Of the addresses that this account's jobs name.")
    ] = None,
    functions: Annotated[
        bool, typer.Option("--functions", help="Of calls to functions, and of their callbacks.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print what a receiver checks signatures with: `webhook =` of a kind, unless said otherwise.

    Give it to that receiver only. While PENSTOCK_SECRET is exchanged there are two, the new one
    first; messages carry a signature by each.
    """
    if functions and account is not None:
        raise Invalid("give --account or --functions", code="invalid_option", field="functions")
    roots = read_roots(database())
    signer = (
        of_functions(roots) if functions else of_webhooks(roots, account, trusted=account is None)
    )
    if as_json:
        print_json(signer.written)
    else:
        typer.echo("\n".join(signer.written))
