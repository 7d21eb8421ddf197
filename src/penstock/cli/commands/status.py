"""`penstock status`, `top`, `metrics`: totals, queues and workers, once, live, and by the hour."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.base.wording import age, ahead, seconds
from penstock.cli.commands import jobs, queues
from penstock.cli.output.console import CommandEngine, Json, answer, call_engine
from penstock.cli.output.render import Column, stdout, table, terminal_width
from penstock.engine.queries.lists import MOST_HOURS, JobFilter
from penstock.engine.states import JobStatus

REFRESH_SECONDS = 1.0
SHOWN = 50


def _hour(line: dict[str, Any]) -> str:
    """Return the hour like `2026-11-16 09:00`."""
    return str(line["hour"])[:16].replace("T", " ")


def _average(line: dict[str, Any]) -> str | None:
    return seconds(line["total_duration_ms"] / line["count"] / 1000)


_FINISHED = (
    Column("HOUR (UTC)", _hour),
    Column("QUEUE", "queue", least=8),
    Column("KIND", "kind", least=8),
    Column("OUTCOME", "outcome"),
    Column("COUNT", "count", right=True),
    Column("AVERAGE", _average, right=True),
)
_FAILED = (
    Column("HOUR (UTC)", _hour),
    Column("CLASS", "class"),
    Column("COUNT", "count", right=True),
    Column("AVERAGE", _average, right=True),
)


def metrics(
    *,
    hours: Annotated[int, typer.Option(min=1, max=MOST_HOURS, help="How far back.")] = 24,
    as_json: Json = False,
) -> None:
    """Show by the hour: finished jobs, how long they took, and failures by class."""
    answer(call_engine(lambda engine: engine.hourly.metrics(hours)), _by_hour, as_json=as_json)


def _by_hour(metrics: dict[str, Any]) -> list[Text]:
    none, width = "No job has finished in that time.", terminal_width()
    lines = table(_FINISHED, metrics["throughput"], none=none, width=width)
    if metrics["timeouts"]:
        lines += [_EMPTY, *table(_FAILED, metrics["timeouts"], width=width)]
    return lines


def status(*, as_json: Json = False) -> None:
    """Show totals, queues and workers."""
    current = call_engine(lambda engine: engine.lists.status())
    answer(current, lambda current: screen(current, width=terminal_width()), as_json=as_json)


_EMPTY = Text(end="")


def screen(status: dict[str, Any], *, width: int | None) -> list[Text]:
    """Return the status as lines: totals, troubles of providers, queues, workers."""
    troubles = [
        Text(line, "red", end="")
        for queue in status["queues"]
        for line in _troubles(queue["circuit"], width=width)
    ]
    return [
        _totals(status),
        _EMPTY,
        *([*troubles, _EMPTY] if troubles else []),
        *table(queues.COLUMNS, status["queues"], none="No queues yet.", width=width),
        _EMPTY,
        *table(queues.WORKER_COLUMNS, status["workers"], none=queues.NO_WORKERS, width=width),
    ]


def _troubles(circuit: dict[str, Any], *, width: int | None) -> list[str]:
    """Return what keeps a queue's jobs from starting and what to do, wrapped to the width."""
    if not queues.is_troubled(circuit):
        return []
    next_at = circuit["next_probe_at"]
    next_probe = "" if next_at is None else f"; next probe {ahead(next_at)}"
    message = f"! {circuit['message']} (since {age(circuit['since'])}{next_probe})"
    return textwrap.wrap(message, width) if width else [message]


def _totals(status: dict[str, Any]) -> Text:
    average = seconds(status["avg_processing_seconds"])
    shown = (
        ("pending", "queued", "cyan"),
        ("processing", "running", "yellow"),
        ("scheduled", "scheduled", "blue"),
        ("failed_today", "failed today", "red"),
    )
    totals = [
        (f"{status[key]:,} {words}", style if status[key] else "dim") for key, words, style in shown
    ]
    mean = "no job has succeeded yet" if average is None else f"a job takes {average} on average"
    return Text(" · ", end="").join([*(Text(*total) for total in totals), Text(mean)])


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Watch totals, queues, workers and running jobs; q or Ctrl-C quits."""
    if as_json or once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        current = call_engine(_read)
        answer(current, lambda current: _picture(current, terminal_width()), as_json=as_json)
    else:
        call_engine(_watch)


async def _read(engine: CommandEngine) -> dict[str, Any]:
    running = JobFilter(status=JobStatus.RUNNING)
    jobs = await engine.lists.jobs(running, limit=SHOWN)
    return {**await engine.lists.status(), "jobs": jobs}


def _picture(current: dict[str, Any], width: int | None) -> list[Text]:
    lines = screen(current, width=width)
    if current["jobs"]:
        lines += [_EMPTY, *table(jobs.COLUMNS, current["jobs"], width=width)]
    return lines


async def _watch(engine: CommandEngine) -> None:
    console = stdout()
    leaving = asyncio.Event()
    from rich.live import Live  # imported here, since it takes long and only this command needs it

    with _keys(leaving), Live(console=console, screen=True, auto_refresh=False) as live:
        while not leaving.is_set():
            lines = _picture(await _read(engine), console.width)
            live.update(_frame(lines, console.height), refresh=True)
            try:
                await asyncio.wait_for(leaving.wait(), REFRESH_SECONDS)
            except TimeoutError:
                continue


def _frame(lines: list[Text], height: int) -> Text:
    """Return as many lines as the terminal has, the first with the time of day."""
    head = Text(f"penstock top  {datetime.now().astimezone():%H:%M:%S}  q quits", style="dim")
    return Text("\n", no_wrap=True, overflow="crop").join([head, *lines][:height])


@contextmanager
def _keys(leaving: asyncio.Event) -> Iterator[None]:
    """Set `leaving` at q or Ctrl-C, with the terminal in a mode that sends each key at once."""
    import termios
    import tty

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def on_key() -> None:
        if os.read(keyboard, 64)[:1] in (b"q", b"Q", b""):
            leaving.set()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, on_key)
    loop.add_signal_handler(signal.SIGINT, leaving.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
