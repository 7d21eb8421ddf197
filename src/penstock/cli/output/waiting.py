"""Waiting for a job, with a bar for who looks at it, and a word where nothing moves."""

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

from penstock.base.wording import number, place
from penstock.cli.commands.jobs import stage
from penstock.cli.output.render import clean
from penstock.engine.queries.eta import settled
from penstock.engine.queries.lists import Lists
from penstock.engine.states import FINISHED, JobStatus

FIRST_SECONDS, LAST_SECONDS, GROWTH = 0.05, 0.5, 1.3
# A worker that is there has begun by then, unless it has other work.
EXPLAIN_SECONDS = 3.0

Reads = Callable[[UUID], Awaitable[Mapping[str, Any]]]


async def until_finished(
    read: Reads,
    lists: Lists,
    its_id: UUID,
    limit: timedelta | None = None,
) -> Mapping[str, Any]:
    """The job (or the batch) as it ended, or as it is when the limit is over.

    Who stops waiting does not stop the job, and is told so.
    """
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
            begun, pause, explained, stale = time.monotonic(), FIRST_SECONDS, False, False
            wait: float | None = None
            most = math.inf if limit is None else limit.total_seconds()
            while (told := await read(its_id))["status"] not in FINISHED:
                job = _as_one(told) if "items" in told else told
                waited = time.monotonic() - begun
                if waited >= most:
                    break
                wait = settled(wait, job["eta_seconds"])
                bar.update(task, **_shown(job, wait))
                if waited >= EXPLAIN_SECONDS and not explained:
                    explained = True
                    if why := await _why_queued(lists, job):
                        # Through the bar, which is on the same stream.
                        console.print(why, highlight=False, markup=False, soft_wrap=True)
                if job["staleness"] and not stale:
                    late = clean(job["staleness"]["message"])
                    console.print(late, highlight=False, markup=False, soft_wrap=True)
                stale = job["staleness"] is not None
                await asyncio.sleep(min(pause, most - waited))
                pause = min(pause * GROWTH, LAST_SECONDS)
    except asyncio.CancelledError:
        typer.echo(f"It goes on: `penstock show {its_id}`.", err=True)
        raise
    return told


def _as_one(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch as if it were a job: the first that lives speaks for all of them."""
    live = [job for job in batch["items"] if job["status"] not in FINISHED]
    stale = [job["staleness"] for job in live if job["staleness"]]
    own = {name: batch[name] for name in ("status", "position", "eta_seconds", "progress")}
    return {**(live or batch["items"])[0], "staleness": stale[0] if stale else None, **own}


async def _why_queued(lists: Lists, job: Mapping[str, Any]) -> str | None:
    """What keeps it from being started, or how long it has to wait, where that is known."""
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
            used = f"{job['failures']} of {job['max_attempts']} attempts are used"
            return f"Its last start failed ({why}): {used}, the next is at {job['run_at']}."
    if job["status"] != JobStatus.QUEUED:
        return None
    if job["eta_seconds"]:
        return f"{place(job['position'], job['eta_seconds'])}."
    return None


async def _why_stopped(lists: Lists, job: Mapping[str, Any]) -> str | None:
    [queue] = await lists.queues(job["queue"])
    if message := queue["circuit"]["message"]:
        return f"{message[0].upper()}{message[1:]}."
    if not queue["paused"]:
        return None
    reason = f" ({clean(queue['paused_reason'])})" if queue["paused_reason"] else ""
    return (
        f"Queue {queue['name']} is paused{reason}: `penstock resume {queue['name']}` lets it go on."
    )


def _shown(job: Mapping[str, Any], wait: float | None = None) -> dict[str, Any]:
    """What the bar says of it: place or stage, and how much is done where that is known."""
    progress = job["progress"] or {}
    done, total = progress.get("done"), progress.get("total")
    return {
        "description": clean(place(job["position"], wait) or stage(job) or job["status"]),
        "completed": done or 0,
        "total": total,
        "done": "" if done is None else _share(done, total),
    }


def _share(done: float, total: float | None) -> str:
    return number(done) if total is None else f"{number(done)}/{number(total)}"
