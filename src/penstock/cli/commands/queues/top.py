"""`penstock top`: how things stand, live."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.cli.commands.jobs import jobs
from penstock.cli.commands.queues.status import screen
from penstock.cli.output.console import Calls, Json, print_json, with_calls
from penstock.cli.output.render import print_lines, room, stdout, table
from penstock.engine.jobs.info import JobInfo
from penstock.engine.queries.lists import JobFilter
from penstock.engine.states import JobStatus

REFRESH_SECONDS = 1.0
SHOWN = 50


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Watch totals, queues, workers and running jobs; q or Ctrl-C ends it."""
    if as_json:
        status, running = with_calls(_look)
        print_json({**status, "jobs": running})
    elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        print_lines(_picture(*with_calls(_look), width=room()))
    else:
        with_calls(_watch)


Seen = tuple[dict[str, Any], list[JobInfo]]


async def _look(calls: Calls) -> Seen:
    running = JobFilter(status=JobStatus.RUNNING)
    return await calls.lists.status(), await calls.lists.jobs(running, limit=SHOWN)


def _picture(status: dict[str, Any], running: list[JobInfo], *, width: int | None) -> list[Text]:
    lines = screen(status, width=width)
    if running:
        lines += [
            Text("", end=""),
            *table(jobs.COLUMNS, [jobs.row(j) for j in running], width=width),
        ]
    return lines


async def _watch(calls: Calls) -> None:
    console = stdout()
    enough = asyncio.Event()
    from rich.live import Live  # takes long to load, for this alone

    with _keys(enough), Live(console=console, screen=True, auto_refresh=False) as live:
        while not enough.is_set():
            lines = _picture(*await _look(calls), width=console.width)
            live.update(_frame(lines, console.height), refresh=True)
            try:
                await asyncio.wait_for(enough.wait(), REFRESH_SECONDS)
            except TimeoutError:
                continue


def _frame(lines: list[Text], height: int) -> Text:
    """As many lines as the terminal has, the first with the time of day."""
    head = Text(f"penstock top  {datetime.now().astimezone():%H:%M:%S}  q ends it", style="dim")
    return Text("\n", no_wrap=True, overflow="crop").join([head, *lines][:height])


@contextmanager
def _keys(enough: asyncio.Event) -> Iterator[None]:
    """Hear q and Ctrl-C while the terminal gives each key at once."""
    import termios
    import tty

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def hear() -> None:
        if os.read(keyboard, 64)[:1] in (b"q", b"Q", b""):
            enough.set()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, hear)
    loop.add_signal_handler(signal.SIGINT, enough.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
