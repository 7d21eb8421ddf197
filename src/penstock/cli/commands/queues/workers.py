"""`penstock workers`: who works, and who was lost."""

from typing import Any

from penstock.base.wording import age
from penstock.cli.output.console import Json, print_json, with_calls
from penstock.cli.output.render import Column, print_table

COLUMNS = (
    Column("WORKER", least=12),
    Column("STATE"),
    Column("RUNNING", right=True),
    Column("LAST BEAT", right=True),
    Column("STARTED", right=True, drop=1),
)
NONE = "No workers: `penstock worker APP` starts one."


def workers(*, as_json: Json = False) -> None:
    """Show the workers: alive, blocked, silent, or lost within the last day."""
    found = with_calls(lambda calls: calls.lists.workers())
    if as_json:
        print_json(found)
    else:
        print_table(COLUMNS, [row(worker) for worker in found], none=NONE)


def row(worker: dict[str, Any]) -> list[Any]:
    """A worker as a row of COLUMNS."""
    state = (
        "blocked"
        if worker["blocked_since"]
        else "alive"
        if worker["alive"]
        else "lost"
        if worker["lost_at"]
        else "silent"
    )
    return [
        worker["worker_id"],
        state,
        worker["running"],
        age(worker["last_heartbeat"]),
        age(worker["started_at"]),
    ]
