"""Wait for a job, with a progress bar at a terminal, and say why it does not start."""

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.base.wording import count, number, queue_position
from penstock.cli.commands.jobs import stage
from penstock.cli.output.render import clean
from penstock.engine.queries.eta import settled
from penstock.engine.queries.lists import Lists
from penstock.engine.states import FINISHED, JobStatus

FIRST_SECONDS, LAST_SECONDS, GROWTH = 0.05, 0.5, 1.3
# An idle worker has started the job by then.
EXPLAIN_SECONDS = 3.0

Reads = Callable[[UUID], Awaitable[Mapping[str, Any]]]


async def until_finished(
    read: Reads,
    lists: Lists,
    its_id: UUID,
    limit: timedelta | None = None,
) -> Mapping[str, Any]:
    """Wait until a job or batch has finished or the limit is over; return it as it is then.

    The job goes on after that. After Ctrl-C, a line says how to follow it.
    """
    # The bar is on standard error, so that a pipe gets the result alone.
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
            begun, pause, is_explained, was_stale = time.monotonic(), FIRST_SECONDS, False, False
            eta: float | None = None
            most = math.inf if limit is None else limit.total_seconds()
            while (answer := await read(its_id))["status"] not in FINISHED:
                job = _as_one(answer) if "items" in answer else answer
                waited = time.monotonic() - begun
                if waited >= most:
                    break
                eta = settled(eta, job["eta_seconds"])
                bar.update(task, **_shown(job, eta))
                notes = []
                if waited >= EXPLAIN_SECONDS and not is_explained:
                    is_explained = True
                    notes.append(await _why_queued(lists, job))
                if job["staleness"] and not was_stale:
                    notes.append(clean(job["staleness"]["message"]))
                was_stale = job["staleness"] is not None
                for note in filter(None, notes):
                    # By the bar's console, since both write to the same stream.
                    console.print(note, highlight=False, markup=False, soft_wrap=True)
                await asyncio.sleep(min(pause, most - waited))
                pause = min(pause * GROWTH, LAST_SECONDS)
    except asyncio.CancelledError:
        typer.echo(f"It goes on: `penstock show {its_id}`.", err=True)
        raise
    return answer


def _as_one(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch in the form of a job: its first live job stands for the others."""
    live = [job for job in batch["items"] if job["status"] not in FINISHED]
    stale = [job["staleness"] for job in live if job["staleness"]]
    own = {name: batch[name] for name in ("status", "position", "eta_seconds", "progress")}
    return {**(live or batch["items"])[0], "staleness": stale[0] if stale else None, **own}


async def _why_queued(lists: Lists, job: Mapping[str, Any]) -> str | None:
    """Say what keeps a job from starting, or how long it will wait, if that is known."""
    match job["waiting_for"]:
        case "paused" | "circuit_open" | "rate_limit":
            return await _why_stopped(lists, job)
        case "no_worker":
            return "No worker is alive: start one with `penstock worker APP`."
        case "no_handler":
            return (
                f"No live worker has a handler for kind {job['kind']}: start a worker with an app"
                " that declares it."
            )
        case "backoff":
            why = clean((job["error"] or {}).get("message") or "it failed")
            times = f"{job['failures']} of {job['max_attempts']} times"
            attempts = count(job["attempt"], "attempt")
            return (
                f"Its last attempt failed ({why}): failed {times}, in {attempts}; the next is at"
                f" {job['run_at']}."
            )
    has_eta = job["status"] == JobStatus.QUEUED and job["eta_seconds"]
    return f"{queue_position(job['position'], job['eta_seconds'])}." if has_eta else None


async def _why_stopped(lists: Lists, job: Mapping[str, Any]) -> str | None:
    [queue] = await lists.queues(job["queue"])
    if message := queue["circuit"]["message"]:
        return f"{message[0].upper()}{message[1:]}."
    if not queue["paused"]:
        return None
    reason = f" ({clean(queue['paused_reason'])})" if queue["paused_reason"] else ""
    return f"Queue {queue['name']} is paused{reason}: `penstock resume {queue['name']}` resumes it."


def _shown(job: Mapping[str, Any], eta: float | None = None) -> dict[str, Any]:
    """Return the bar's texts: position or stage, and how much is done if that is known."""
    progress = job["progress"] or {}
    done, total = progress.get("done"), progress.get("total")
    of_total = "" if total is None else f"/{number(total)}"
    return {
        "description": clean(queue_position(job["position"], eta) or stage(job) or job["status"]),
        "completed": done or 0,
        "total": total,
        "done": "" if done is None else f"{number(done)}{of_total}",
    }
