"""`penstock jobs`, `show`, `retry`, `cancel`: list jobs, and retry or cancel one."""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from penstock.base.wording import age, between, count, number, queue_position
from penstock.cli.output.console import CommandEngine, Json, answer, call_engine
from penstock.cli.output.render import Column, clean, facts, listing, table, terminal_width
from penstock.engine.jobs.info import JobInfo
from penstock.engine.queries.lists import JobFilter
from penstock.engine.states import JobStatus
from penstock.errors import NotFound


def stage(job: Mapping[str, Any]) -> str | None:
    """Return the stage of a running job, by its label if the handler gave one."""
    if job["status"] in (JobStatus.QUEUED, JobStatus.SCHEDULED):
        return None  # it is the stage of a settled attempt
    label: str | None = job.get("stage_label") or job["stage"]
    return label


def why(error: dict[str, Any], status: str | None = None) -> str:
    """Return an error in one line, without its class if that is the status beside it."""
    parts = dict.fromkeys(error.get(part) for part in ("class", "reason", "message"))
    words = [word for word in parts if word]
    return ": ".join(words[1:] if len(words) > 1 and words[0] == status else words)


def _took(job: Mapping[str, Any]) -> str | None:
    is_running = job["status"] in (JobStatus.RUNNING, JobStatus.AWAITING)
    until_now = age(job["started_at"]) if is_running else None
    return between(job["started_at"], job["finished_at"]) or until_now


def _note(job: Mapping[str, Any]) -> str | None:
    if job["error"] and job["status"] not in (JobStatus.RUNNING, JobStatus.SUCCEEDED):
        return why(job["error"], job["status"])
    return stage(job) if job["finished_at"] is None else None


def _attempt_error(attempt: Mapping[str, Any]) -> str:
    return why({**attempt, "class": attempt["error_class"]}, attempt["outcome"])


COLUMNS = (
    Column("ID", "id"),
    Column("STATUS", "status"),
    Column("KIND", "kind", least=8),
    Column("QUEUE", "queue", least=8, drop=5),
    Column("ACCOUNT", "account", least=8, drop=4),
    Column("TOPIC", "topic", least=8, drop=6),
    Column("ATTEMPTS", "attempt", right=True, drop=3),
    Column("AGE", lambda job: age(job["created_at"]), right=True, drop=1),
    Column("TOOK", _took, right=True, drop=2),
    Column("NOTE", _note, least=16),
)
_ATTEMPTS = (
    Column("ATTEMPT", "attempt", right=True),
    Column("OUTCOME", "outcome"),
    Column("TOOK", lambda attempt: between(attempt["started_at"], attempt["ended_at"]), right=True),
    Column("WORKER", "worker", least=10, drop=1),
    Column("ERROR", _attempt_error, least=20),
)
# What a job waits for, in words for people.
WAITS_FOR = {
    "queue_limit": "a free slot of its queue",
    "account_limit": "a free slot of its account",
    "rate_limit": "the rate of its queue, or of the provider: see `penstock queues`",
    "circuit_open": "the provider, which is unavailable: see `penstock queues`",
    "paused": "its queue, which is paused: see `penstock queues`",
    "no_worker": "a worker: none is alive that serves its queue",
    "no_handler": "a worker that has a handler for its kind",
    "backoff": "its next attempt, after a failure",
    "callback": "the callback of the function that has it",
}


def _id(text: str, option: str | None = None) -> UUID:
    # No abbreviated ids: the first half is the time of the submit, which jobs that were submitted
    # together have in common.
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no job's id; an id is like 0199f0a4-6c1e-7d3a-9b52-2f6d8a7c1e05.",
            param_hint=option,
        ) from None


JobId = Annotated[
    UUID,
    typer.Argument(metavar="ID", parser=_id, help="The job's id, as `penstock submit` printed it."),
]


def jobs(  # noqa: PLR0913  # one per filter
    *,
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs in this state.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only jobs of this kind.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    account: Annotated[str | None, typer.Option(help="Only this account's jobs.")] = None,
    topic: Annotated[str | None, typer.Option(help="Only jobs of this topic.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    before: Annotated[
        str | None, typer.Option(metavar="ID", help="Only jobs older than this one: the next page.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List jobs, the newest first."""
    wanted = JobFilter(status=status, kind=kind, queue=queue, account=account, topic=topic)
    last = None if before is None else _id(before, "--before")
    rows = call_engine(lambda engine: engine.lists.jobs(wanted, limit=limit, before=last))
    answer(rows, listing(COLUMNS, "No jobs."), as_json=as_json)


def show(job_id: JobId, *, as_json: Json = False) -> None:
    """Show one job with its attempts, its result or its error; or a batch with its jobs."""
    job = call_engine(lambda engine: job_or_batch(job_id, engine.jobs.read, engine.jobs.read_batch))
    answer(job, _sheet, as_json=as_json)


def _sheet(job: Mapping[str, Any]) -> list[Text]:
    """Return all facts of a job, or of a batch, which has `items`."""
    is_batch = "items" in job
    about = _batch_facts(job) if is_batch else _facts(job)
    lines = facts((name, value) for name, value in about.items() if value is not None)
    if rows := job["items"] if is_batch else job["attempts"]:
        columns = COLUMNS if is_batch else _ATTEMPTS
        lines += [Text(end=""), *table(columns, rows, width=terminal_width())]
    return lines if is_batch else [*lines, *(Text(line, end="") for line in _frames(job))]


def _frames(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield where attempts failed; those in a row that failed at the same lines share one entry."""
    failed = [attempt for attempt in job["attempts"] if attempt["frames"]]
    for frames, attempts in groupby(failed, key=itemgetter("frames")):
        numbers = [str(attempt["attempt"]) for attempt in attempts]
        yield ""
        yield f"Attempt{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} failed at"
        yield from (f"  {clean(frame)}" for frame in frames)


def _batch_facts(batch: Mapping[str, Any]) -> dict[str, Any]:
    states = ("succeeded", "failed", "cancelled", "running", "queued")
    parts = ", ".join(f"{batch[state]:,} {state}" for state in states if batch[state])
    return {
        "batch": batch["id"],
        "status": batch["status"],
        "account": batch["account"],
        "jobs": f"{batch['total']:,}{': ' if parts else ''}{parts}",
        "credits": _credits(batch["credits"]),
        "created": _with_age(batch["created_at"]),
        "finished": _with_age(batch["finished_at"]),
        "position": queue_position(batch["position"], batch["eta_seconds"]),
        "progress": _progress(batch["progress"]),
    }


def _facts(job: Mapping[str, Any]) -> dict[str, Any]:
    plan = f" (plan {job['plan']})" if job["plan"] is not None else ""
    first = " (first job of its account)" if job["first_job"] else ""
    return {
        "job": job["id"],
        "status": job["status"],
        "kind": job["kind"],
        "queue": job["queue"],
        "account": None if job["account"] is None else f"{job['account']}{plan}",
        "topic": job["topic"],
        "batch": job["batch"],
        "priority": f"{job['priority']}{first}",
        "credits": _credits(job["credits"]),
        "attempts": f"{job['attempt']}, failed {job['failures']} of {job['max_attempts']} times",
        "created": _with_age(job["created_at"]),
        "started": _with_age(job["started_at"]),
        "finished": _with_age(job["finished_at"]),
        "runs at": job["run_at"] if job["status"] == JobStatus.SCHEDULED else None,
        "position": queue_position(job["position"], job["eta_seconds"]),
        "waits for": WAITS_FOR.get(job["waiting_for"], job["waiting_for"]),
        "took": between(job["started_at"], job["finished_at"]),
        "stage": stage(job),
        "progress": _progress(job["progress"]),
        "stale": job["staleness"]["message"] if job["staleness"] else None,
        "cancel": "requested" if job.get("cancel_requested") else None,
        "retry of": job["retry_of"],
        "retried by": job["retried_by"],
        "metadata": _json(job["metadata"]),
        "usage": _json(job.get("usage")),
        "result": _json(job["result"]),
        "error": why(job["error"], job["status"]) if job["error"] else None,
    }


def _credits(price: dict[str, Any] | None) -> str | None:
    """Return the credits reserved, charged and refunded; None for a job without a price."""
    if price is None:
        return None
    reserved = f"{price['reserved']:,} reserved"
    if not price["charged"] and not price["refunded"]:
        return reserved  # it is not finished
    return f"{reserved}, {price['charged']:,} charged, {price['refunded']:,} refunded"


def _with_age(moment: str | None) -> str | None:
    return None if moment is None else f"{moment} ({age(moment)} ago)"


def _progress(progress: dict[str, Any] | None) -> str | None:
    if not progress or progress.get("done") is None:
        return None
    done, total = number(progress["done"]), progress.get("total")
    return done if total is None else f"{done} of {number(total)}"


def _json(value: Any) -> str | None:
    return json.dumps(value, ensure_ascii=False) if value not in (None, {}) else None


def retry(job_id: JobId, *, as_json: Json = False) -> None:
    """Run a finished job again as a new one; a scheduled one runs now."""

    async def retry_and_wake(engine: CommandEngine) -> JobInfo:
        job = await engine.jobs.retry(job_id)
        await engine.jobs.wake([job["queue"]])
        return job

    answer(call_engine(retry_and_wake), lambda job: _retried(job_id, job), as_json=as_json)


def _retried(job_id: UUID, job: JobInfo) -> str:
    if job.id == job_id:
        return f"Job {job_id} is due now."
    if job["deduplicated"]:
        return f"Job {job.id} already does the same; nothing new was submitted."
    return f"Submitted job {job.id}, which repeats {job_id}."


def cancel(job_id: JobId, *, as_json: Json = False) -> None:
    """Cancel a waiting job, or ask a running one to stop; a finished one stays as it is.

    The id of a batch cancels all of its jobs.
    """
    cancelled = call_engine(
        lambda engine: job_or_batch(job_id, engine.jobs.cancel, engine.jobs.cancel_batch)
    )
    answer(cancelled, _cancelled, as_json=as_json)


def _cancelled(job: Mapping[str, Any]) -> str:
    if "items" in job:
        stopping = f", {job['running']:,} asked to stop" if job["running"] else ""
        return (
            f"Batch {job['id']} of {count(job['total'], 'job')}:"
            f" {job['cancelled']:,} cancelled{stopping}."
        )
    match job["status"]:
        case JobStatus.CANCELLED:
            return f"Job {job['id']} is cancelled."
        case JobStatus.RUNNING | JobStatus.AWAITING:
            return f"Job {job['id']} was asked to stop."
        case status:
            return f"Job {job['id']} {status} {age(job['finished_at'])} ago; nothing changed."


async def job_or_batch(
    its_id: UUID,
    job: Callable[[UUID], Awaitable[JobInfo]],
    batch: Callable[[UUID], Awaitable[dict[str, Any]]],
) -> Mapping[str, Any]:
    """Return what `job` returns for the id, or what `batch` does if it is a batch's (`items`)."""
    try:
        return await job(its_id)
    except NotFound as error:
        try:
            return await batch(its_id)
        except NotFound:
            raise error from None
