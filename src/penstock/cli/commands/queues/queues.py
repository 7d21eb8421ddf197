"""`penstock queues`, `pause`, `resume`: what waits where, and whether it may start."""

from typing import Annotated, Any

import typer

from penstock.base.wording import age, count
from penstock.cli.output.console import Calls, Json, print_json, with_calls
from penstock.cli.output.render import Column, print_table

app = typer.Typer(
    help="Show every queue: limits, what waits, what runs.", invoke_without_command=True
)

COLUMNS = (
    Column("QUEUE", least=10),
    Column("STATE", least=8),
    Column("QUEUED", right=True),
    Column("RUNNING", right=True),
    Column("AWAITING", right=True, drop=3),
    Column("SCHEDULED", right=True, drop=2),
    Column("LIMIT", right=True),
    Column("RATE", right=True, drop=1),
    Column("OLDEST", right=True),
    Column("OVERRIDDEN", least=10, drop=4),
)

# From which share of refused calls on operators are told of it.
NOTEWORTHY = 0.05

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]


@app.callback()
def queues(context: typer.Context, *, as_json: Json = False) -> None:
    """Show every queue: limits, what waits, what runs."""
    if context.invoked_subcommand is not None:
        return
    found = with_calls(lambda calls: calls.lists.queues())
    if as_json:
        print_json(found)
    else:
        none = "No queues yet: an app declares them, or SQL does (penstock.declare_queue)."
        print_table(COLUMNS, [row(queue) for queue in found], none=none)
        for queue in found:
            if is_troubled(queue["circuit"]):
                typer.echo(f"! {queue['circuit']['message']}")


def row(queue: dict[str, Any]) -> list[Any]:
    """A queue as a row of COLUMNS."""
    return [
        queue["name"],
        state(queue),
        queue["queued"],
        queue["running"],
        queue["awaiting"],
        queue["scheduled"],
        queue["concurrency"],
        queue["rate"],
        age(queue["oldest_queued_at"]),
        ", ".join(queue["overrides"]),
    ]


def is_troubled(circuit: dict[str, Any]) -> bool:
    """Whether its provider is away, or refuses a part of its calls."""
    refused: float = circuit["refused"]
    return circuit["state"] == "open" or (circuit["state"] == "ramping" and refused >= NOTEWORTHY)


def state(queue: dict[str, Any]) -> str:
    """Whether its jobs may start, in a word or two."""
    circuit = queue["circuit"]
    if queue["paused"]:
        return f"paused: {queue['paused_reason']}" if queue["paused_reason"] else "paused"
    match circuit["state"]:
        case "open" if circuit["class"] is None:
            return "stopped by hand"
        case "open":
            return f"away: {circuit['class']}"
        case "ramping" if is_troubled(circuit):
            return f"refuses calls: {circuit['refused']:.0%}"
        case "ramping":
            return "coming back"
        case _ if queue["drive"] == "worker" and not queue["workers"]:
            return "no worker"
        case _:
            return "ready"


@app.command()
def reset(queue: Queue, *, as_json: Json = False) -> None:
    """Drop what was changed at run time, and let the next app that starts declare it anew."""

    async def ask(calls: Calls) -> tuple[dict[str, Any], dict[str, Any]]:
        [before] = await calls.lists.queues(queue)
        await calls.queues.reset(queue)
        [after] = await calls.lists.queues(queue)
        return before, after

    before, after = with_calls(ask)
    if as_json:
        print_json(after)
        return
    if before["overrides"]:
        dropped = ", ".join(before["overrides"])
        typer.echo(f"Queue {queue} is as declared again; dropped {dropped}.")
    else:
        typer.echo(f"Queue {queue} had nothing overridden: its limits are as declared.")
    by = f" (so far {before['declared_by']} did)" if before["declared_by"] else ""
    typer.echo(f"The next app that starts may declare it and its kinds anew{by}.")


def pause(
    queue: Queue,
    *,
    reason: Annotated[str | None, typer.Option(help="Why, for those who see it.")] = None,
    as_json: Json = False,
) -> None:
    """Start nothing more from a queue; what runs goes on, and submits are accepted."""

    async def ask(calls: Calls) -> dict[str, Any]:
        await calls.queues.pause(queue, reason=reason)
        [after] = await calls.lists.queues(queue)
        return after

    after = with_calls(ask)
    if as_json:
        print_json(after)
    else:
        typer.echo(
            f"Queue {queue} is paused: {after['queued']:,} queued,"
            f" {after['running'] + after['awaiting']:,} still running."
            f" `penstock resume {queue}` lets it go on."
        )


def resume(queue: Queue, *, as_json: Json = False) -> None:
    """Let a paused queue go on."""

    async def ask(calls: Calls) -> tuple[dict[str, Any], dict[str, Any]]:
        [before] = await calls.lists.queues(queue)
        await calls.queues.resume(queue)
        await calls.jobs.wake([queue])
        [after] = await calls.lists.queues(queue)
        return before, after

    before, after = with_calls(ask)
    if as_json:
        print_json(after)
    elif before["paused"] or before["circuit"]["class"] in ("auth", "quota", "config"):
        typer.echo(f"Queue {queue} goes on: {count(after['queued'], 'job')} queued.")
    elif after["circuit"]["state"] == "open":
        typer.echo(f"Queue {queue} was not paused: {after['circuit']['message']}.")
    else:
        typer.echo(f"Queue {queue} was not paused.")
