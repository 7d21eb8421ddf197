"""Waiting for a job, with a bar for who looks at it."""

import asyncio
import sys
from typing import Any
from uuid import UUID

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.cli.render import clean
from penstock.engine.jobs import Jobs
from penstock.states import FINISHED

FIRST_SECONDS, LAST_SECONDS, GROWTH = 0.05, 0.5, 1.3


async def until_finished(jobs: Jobs, job_id: UUID) -> dict[str, Any]:
    """The job as it ended. Who stops waiting does not stop the job, and is told so."""
    # On the other stream than the result: a pipe gets the result alone.
    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    try:
        with bar:
            task = bar.add_task("queued", total=None, done="")
            pause = FIRST_SECONDS
            while (job := await jobs.read(job_id))["status"] not in FINISHED:
                bar.update(task, **_shown(job))
                await asyncio.sleep(pause)
                pause = min(pause * GROWTH, LAST_SECONDS)
    except asyncio.CancelledError:
        typer.echo(f"The job goes on: `penstock show {job_id}`.", err=True)
        raise
    return job


def _shown(job: dict[str, Any]) -> dict[str, Any]:
    """What the bar says of it: the stage, and how much is done where that is known."""
    progress = job["progress"] or {}
    done, total = progress.get("done"), progress.get("total")
    return {
        "description": clean(job.get("stage_label") or job["stage"] or job["status"]),
        "completed": done or 0,
        "total": total,
        "done": "" if done is None else f"{done}" if total is None else f"{done}/{total}",
    }
