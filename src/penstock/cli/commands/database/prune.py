"""`penstock prune`: remove what retention no longer keeps, now."""

from typing import Any

import typer

from penstock.base.wording import count
from penstock.cli.output.console import Calls, Json, print_json, with_calls

# Each pass drops one partition of each kind at most; this is decades of them.
PASSES = 10_000


def prune(*, as_json: Json = False) -> None:
    """Remove finished jobs that are older than their queue's retention.

    Workers do the same in the background; this is for those who do not want to wait.
    """
    found = with_calls(_prune)
    if as_json:
        print_json(found)
        return
    rows, partitions = found["rows"], found["partitions"]
    if not rows and not partitions:
        typer.echo("Nothing is older than its retention.")
        return
    typer.echo(
        f"Removed {count(len(partitions), 'partition')} of history and {count(rows, 'row')}."
    )


async def _prune(calls: Calls) -> dict[str, Any]:
    partitions: list[str] = []
    rows = 0
    for _ in range(PASSES):
        gone = await calls.upkeep.prune()
        partitions += [one.what for one in gone if one.rows is None]
        rows += sum(one.rows or 0 for one in gone)
        if not gone:
            break
    return {"partitions": partitions, "rows": rows}
