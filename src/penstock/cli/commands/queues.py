"""`penstock queues`, `pause`, `resume`, `circuit`, `workers`: which jobs may start, and workers."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.base.wording import age, count
from penstock.cli.commands.plans import was_reset
from penstock.cli.output.console import CommandEngine, Json, answer, call_engine
from penstock.cli.output.render import Column, listing

app = typer.Typer(
    name="queues",
    help="Show every queue: limits, queued and running jobs.",
    invoke_without_command=True,
)
circuit = typer.Typer(
    name="circuit",
    help="Open or close a queue's circuit by hand; otherwise it follows the provider.",
    no_args_is_help=True,
)

# Refused calls are shown to operators from this share of all calls.
NOTEWORTHY = 0.05


def is_troubled(circuit: dict[str, Any]) -> bool:
    """Whether the provider is unavailable, or refuses a part of the calls."""
    refused: float = circuit["refused"]
    return circuit["state"] == "open" or (circuit["state"] == "ramping" and refused >= NOTEWORTHY)


def state(queue: dict[str, Any]) -> str:
    """Say in a word or two whether jobs of the queue may start."""
    circuit = queue["circuit"]
    if queue["paused"]:
        return f"paused: {queue['paused_reason']}" if queue["paused_reason"] else "paused"
    match circuit["state"]:
        case "open" if circuit["class"] is None:
            return "stopped by hand"
        case "open":
            return f"circuit open: {circuit['class']}"
        case "ramping" if is_troubled(circuit):
            return f"refuses calls: {circuit['refused']:.0%}"
        case "ramping":
            return "circuit ramping"
        case _ if queue["drive"] == "worker" and not queue["workers"]:
            return "no worker"
        case _:
            return "ready"


def _worker_state(worker: dict[str, Any]) -> str:
    if worker["blocked_since"]:
        return "blocked"
    if worker["alive"]:
        return "alive"
    return "lost" if worker["lost_at"] else "silent"


COLUMNS = (
    Column("QUEUE", "name", least=10),
    Column("STATE", state, least=8),
    Column("QUEUED", "queued", right=True),
    Column("RUNNING", "running", right=True),
    Column("AWAITING", "awaiting", right=True, drop=3),
    Column("SCHEDULED", "scheduled", right=True, drop=2),
    Column("LIMIT", "concurrency", right=True),
    Column("RATE", "rate", right=True, drop=1),
    Column("OLDEST", lambda queue: age(queue["oldest_queued_at"]), right=True),
    Column("OVERRIDDEN", lambda queue: ", ".join(queue["overrides"]), least=10, drop=4),
)
WORKER_COLUMNS = (
    Column("WORKER", "worker_id", least=12),
    Column("STATE", _worker_state),
    Column("RUNNING", "running", right=True),
    Column("HEARTBEAT", lambda worker: age(worker["last_heartbeat"]), right=True),
    Column("STARTED", lambda worker: age(worker["started_at"]), right=True, drop=1),
)
NO_WORKERS = "No workers: `penstock worker APP` starts one."

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
Reason = Annotated[str | None, typer.Option(help="Why; it is shown with the queue.")]


@app.callback()
def queues(context: typer.Context, *, as_json: Json = False) -> None:
    """Show every queue: limits, queued and running jobs."""
    if context.invoked_subcommand is None:
        none = "No queues yet: an app declares them, or SQL does (penstock.declare_queue)."
        rows = call_engine(lambda engine: engine.lists.queues())
        circuits = [queue["circuit"] for queue in rows]
        troubles = [Text(f"! {each['message']}", end="") for each in circuits if is_troubled(each)]
        answer(rows, lambda rows: [*listing(COLUMNS, none)(rows), *troubles], as_json=as_json)


@app.command()
def reset(queue: Queue, *, as_json: Json = False) -> None:
    """Remove what was changed at run time, and let the next app that starts declare it again."""
    before, after = _change(queue, lambda engine: engine.queues.reset(queue))
    answer(after, lambda _: was_reset("Queue", before, "it and its kinds"), as_json=as_json)


def pause(queue: Queue, *, reason: Reason = None, as_json: Json = False) -> None:
    """Pause a queue: no more jobs start; running ones go on, and submits are accepted."""
    _, after = _change(queue, lambda engine: engine.queues.pause(queue, reason=reason))
    answer(
        after,
        lambda _: (
            f"Queue {queue} is paused: {after['queued']:,} queued,"
            f" {after['running'] + after['awaiting']:,} still running."
            f" `penstock resume {queue}` resumes it."
        ),
        as_json=as_json,
    )


def resume(queue: Queue, *, as_json: Json = False) -> None:
    """Resume a paused queue: its jobs may start again."""

    async def resume_and_wake(engine: CommandEngine) -> None:
        await engine.queues.resume(queue)
        await engine.jobs.wake([queue])

    before, after = _change(queue, resume_and_wake)
    answer(after, lambda _: _resumed(before, after), as_json=as_json)


def _resumed(before: dict[str, Any], after: dict[str, Any]) -> str:
    if before["paused"] or before["circuit"]["class"] in ("auth", "quota", "config"):
        return f"Queue {after['name']} is resumed: {count(after['queued'], 'job')} queued."
    is_open = after["circuit"]["state"] == "open"
    why = f": {after['circuit']['message']}" if is_open else ""
    return f"Queue {after['name']} was not paused{why}."


@circuit.command("open")
def open_circuit(queue: Queue, *, reason: Reason = None, as_json: Json = False) -> None:
    """Open the circuit: no more jobs start until it is closed by hand; running ones go on."""
    _, after = _change(queue, lambda engine: engine.circuits.open(queue, reason=reason))
    answer(
        after,
        lambda _: (
            f"Queue {queue} is stopped: {after['queued']:,} queued."
            f" `penstock circuit close {queue}` lets jobs start again."
        ),
        as_json=as_json,
    )


@circuit.command("close")
def close_circuit(queue: Queue, *, as_json: Json = False) -> None:
    """Close the circuit: jobs start at once, as the queue's limits allow."""
    before, after = _change(queue, lambda engine: engine.circuits.close(queue))
    answer(
        after,
        lambda _: (
            f"The circuit of queue {queue} was not open; the queue is {state(after)}."
            if before["circuit"]["state"] == "closed"
            else f"Queue {queue} is resumed: {count(after['queued'], 'job')} queued."
        ),
        as_json=as_json,
    )


def _change(
    queue: str, change: Callable[[CommandEngine], Awaitable[object]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Change a queue; return it as it was before, and as it is now."""

    async def read_and_change(engine: CommandEngine) -> tuple[dict[str, Any], dict[str, Any]]:
        [before] = await engine.lists.queues(queue)
        await change(engine)
        [after] = await engine.lists.queues(queue)
        return before, after

    return call_engine(read_and_change)


def workers(*, as_json: Json = False) -> None:
    """Show the workers: alive, blocked, silent, or lost within the last day."""
    rows = call_engine(lambda engine: engine.lists.workers())
    answer(rows, listing(WORKER_COLUMNS, NO_WORKERS), as_json=as_json)
