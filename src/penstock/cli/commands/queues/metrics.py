"""`penstock metrics`: what ended by the hour, and what went wrong."""

from typing import Annotated, Any

import typer

from penstock.base.wording import seconds
from penstock.cli.output.console import Json, print_json, with_calls
from penstock.cli.output.render import Column, print_table
from penstock.engine.queries.lists import MOST_HOURS, Hourly

ENDED = (
    Column("HOUR (UTC)"),
    Column("QUEUE", least=8),
    Column("KIND", least=8),
    Column("OUTCOME"),
    Column("COUNT", right=True),
    Column("AVERAGE", right=True),
)
FAILED = (
    Column("HOUR (UTC)"),
    Column("CLASS"),
    Column("COUNT", right=True),
    Column("AVERAGE", right=True),
)


def metrics(
    *,
    hours: Annotated[int, typer.Option(min=1, max=MOST_HOURS, help="How far back.")] = 24,
    as_json: Json = False,
) -> None:
    """Show by the hour what ended, how long it took, and failures by class."""
    found = with_calls(lambda calls: Hourly(calls.fetch).metrics(hours))
    if as_json:
        print_json(found)
        return
    ended = [
        [_hour(one), one["queue"], one["kind"], one["outcome"], one["count"], _average(one)]
        for one in found["throughput"]
    ]
    print_table(ENDED, ended, none="Nothing has ended in that time.")
    if found["timeouts"]:
        typer.echo("")
        failed = [
            [_hour(one), one["class"], one["count"], _average(one)] for one in found["timeouts"]
        ]
        print_table(FAILED, failed, none="")


def _hour(line: dict[str, Any]) -> str:
    """`2026-11-16 09:00`."""
    hour: str = line["hour"]
    return f"{hour[:10]} {hour[11:16]}"


def _average(line: dict[str, Any]) -> str | None:
    return seconds(line["total_duration_ms"] / line["count"] / 1000)
