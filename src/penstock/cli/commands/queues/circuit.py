"""`penstock circuit open|close`: stop a queue because its provider is away, or let it go on."""

from typing import Annotated

import typer

from penstock.base.wording import count
from penstock.cli.commands.queues.queues import Queue, state
from penstock.cli.output.console import Calls, Json, print_json, with_calls

app = typer.Typer(
    help="Open or close a queue's circuit by hand; by itself it follows the provider.",
    no_args_is_help=True,
)


@app.command("open")
def open_circuit(
    queue: Queue,
    *,
    reason: Annotated[str | None, typer.Option(help="Why, for those who see it.")] = None,
    as_json: Json = False,
) -> None:
    """Start nothing more until it is closed by hand; what runs goes on."""

    async def ask(calls: Calls) -> dict[str, object]:
        await calls.circuits.open(queue, reason=reason)
        [after] = await calls.lists.queues(queue)
        return after

    after = with_calls(ask)
    if as_json:
        print_json(after)
    else:
        typer.echo(
            f"Queue {queue} is stopped: {after['queued']:,} queued."
            f" `penstock circuit close {queue}` lets it go on."
        )


@app.command("close")
def close_circuit(queue: Queue, *, as_json: Json = False) -> None:
    """The provider is there again: jobs start at once, as the queue's limits allow."""

    async def ask(calls: Calls) -> tuple[str, dict[str, object]]:
        [before] = await calls.lists.queues(queue)
        await calls.circuits.close(queue)
        [after] = await calls.lists.queues(queue)
        return before["circuit"]["state"], after

    before, after = with_calls(ask)
    if as_json:
        print_json(after)
    elif before == "closed":
        typer.echo(f"The circuit of queue {queue} was not open; the queue is {state(after)}.")
    else:
        typer.echo(f"Queue {queue} goes on: {count(int(str(after['queued'])), 'job')} queued.")
