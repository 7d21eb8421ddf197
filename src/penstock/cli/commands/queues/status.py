"""`penstock status`: how things stand, on one screen."""

import textwrap
from typing import Any

from rich.text import Text

from penstock.base.wording import age, ahead, seconds
from penstock.cli.commands.queues import queues, workers
from penstock.cli.output.console import Json, print_json, with_calls
from penstock.cli.output.render import print_lines, room, table


def status(*, as_json: Json = False) -> None:
    """Show totals, queues and workers."""
    found = with_calls(lambda calls: calls.lists.status())
    if as_json:
        print_json(found)
        return
    print_lines(screen(found, width=room()))


def screen(status: dict[str, Any], *, width: int | None) -> list[Text]:
    """The status as lines: totals, what an operator has to know, queues, workers."""
    lines = [totals(status), Text("", end="")]
    lines += [
        Text(line, "red", end="") for queue in status["queues"] for line in news(queue, width=width)
    ]
    if len(lines) > 2:  # noqa: PLR2004  # there is something to know
        lines.append(Text("", end=""))
    if status["queues"]:
        lines += table(queues.COLUMNS, [queues.row(q) for q in status["queues"]], width=width)
    else:
        lines.append(Text("No queues yet.", end=""))
    lines.append(Text("", end=""))
    if status["workers"]:
        lines += table(workers.COLUMNS, [workers.row(w) for w in status["workers"]], width=width)
    else:
        lines.append(Text(workers.NONE, end=""))
    return lines


def news(queue: dict[str, Any], *, width: int | None) -> list[str]:
    """What keeps a queue's jobs from starting and what to do, on lines that fit."""
    circuit = queue["circuit"]
    if not queues.is_troubled(circuit):
        return []
    told = f"! {circuit['message']} (since {age(circuit['since'])}"
    if (next_at := circuit["next_probe_at"]) is not None:
        told += f"; next try {ahead(next_at)}"
    return textwrap.wrap(f"{told})", width) if width else [f"{told})"]


def totals(status: dict[str, Any]) -> Text:
    average = seconds(status["avg_processing_seconds"])
    parts = [
        (status["pending"], "pending", "cyan"),
        (status["processing"], "processing", "yellow"),
        (status["scheduled"], "scheduled", "blue"),
        (status["failed_today"], "failed today", "red"),
    ]
    line = Text(end="")
    for number, what, style in parts:
        line.append(f"{number:,} {what}", style if number else "dim")
        line.append(" · ")
    line.append(
        "no job has succeeded yet" if average is None else f"a job takes {average} on average"
    )
    return line
