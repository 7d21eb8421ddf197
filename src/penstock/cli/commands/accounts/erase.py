"""`penstock erase`: remove a person, and keep the books."""

import asyncio
import time
from typing import Annotated, Any

import typer

from penstock.base.wording import count
from penstock.cli.commands.accounts.account import Name
from penstock.cli.output.console import Calls, Json, print_json, with_calls
from penstock.engine.accounts.accounts import Erasure
from penstock.errors import Conflict

# A worker that is asked to stop a job does so at once, or upkeep ends it after ten seconds.
WAIT_SECONDS = 30.0
_LOOK_SECONDS = 0.5


def erase(
    account: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether you are sure.")] = False,
    as_json: Json = False,
) -> None:
    """Remove an account's jobs, uploads and name; there is no way back.

    What waits is cancelled and refunded, what runs is asked to stop. The ledger is kept, under a
    number.
    """
    if not yes:
        found = with_calls(lambda calls: calls.accounts.show(account))
        live = found["running"] + found["queued"]
        typer.confirm(
            f"Remove all of account {account}, and end {count(live, 'live job')}?",
            abort=True,
            err=True,
        )
    receipt = with_calls(lambda calls: _erase(calls, account))
    if as_json:
        print_json(receipt)
        return
    removed = ", ".join(
        (
            count(receipt["jobs"], "job"),
            count(receipt["uploads"], "upload"),
            count(receipt["webhooks"], "webhook message"),
            f"{count(receipt['keys'], 'key')} revoked",
        )
    )
    typer.echo(f"Account {account} is erased: {removed}.")
    kept = receipt["kept"]
    typer.echo(
        f"In the books it is {receipt['pseudonym']} now: {count(kept['ledger_lines'], 'line')},"
        f" {kept['with_words']:,} of them with a reference or reason that was given then."
    )


async def _erase(calls: Calls, account: str) -> dict[str, Any]:
    """Until what runs has ended, or does not seem to."""
    deadline = time.monotonic() + WAIT_SECONDS
    erasure = Erasure(calls.fetch)
    while True:
        try:
            return await erasure.erase(account)
        except Conflict as error:
            if error.code != "account_busy" or time.monotonic() > deadline:
                raise
            await asyncio.sleep(_LOOK_SECONDS)
