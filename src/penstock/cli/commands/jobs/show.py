"""`penstock show`: one job, or a batch of them, with all there is to know."""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import typer

from penstock.base.wording import age, between, number, place
from penstock.cli.commands.jobs.jobs import COLUMNS, JobId, job_or_batch, row, stage, why
from penstock.cli.output.console import Json, print_json, with_calls
from penstock.cli.output.render import STYLES, Column, clean, fact, print_lines, room, table
from penstock.engine.jobs.info import JobInfo
from penstock.engine.states import JobStatus

_ATTEMPTS = (
    Column("START", right=True),
    Column("OUTCOME"),
    Column("TOOK", right=True),
    Column("WORKER", least=10, drop=1),
    Column("ERROR", least=20),
)
# What a job waits for, to people.
WAITS_FOR = {
    "queue_limit": "a free slot of its queue",
    "account_limit": "a free slot of its account",
    "rate_limit": "the rate of its queue, or of the provider: see `penstock queues`",
    "circuit_open": "the provider, which is away: see `penstock queues`",
    "paused": "its queue, which is paused: see `penstock queues`",
    "no_worker": "a worker: none is alive that serves its queue",
    "no_handler": "a worker that has a handler for its kind",
    "backoff": "its next try",
    "callback": "the answer to its call",
}


def show(job_id: JobId, *, as_json: Json = False) -> None:
    """Show one job with its starts, its result or its error; or a batch with its jobs."""
    told = with_calls(lambda calls: job_or_batch(job_id, calls.jobs.read, calls.jobs.read_batch))
    if as_json:
        print_json(told)
        return
    batch = "items" in told
    print_lines(
        [
            fact(name, value, STYLES[value] if name == "status" else "not bold")
            for name, value in (_batch_facts(told) if batch else _facts(told))
            if value is not None
        ]
    )
    if rows := [row(JobInfo.from_json(job)) for job in told["items"]] if batch else _starts(told):
        typer.echo()
        print_lines(table(COLUMNS if batch else _ATTEMPTS, rows, width=room()))
    if not batch:
        for line in _frames(told):
            typer.echo(line)


def _starts(job: Mapping[str, Any]) -> list[list[Any]]:
    return [
        [
            start["attempt"],
            start["outcome"],
            between(start["started_at"], start["ended_at"]),
            start["worker"],
            why({"class": start["error_class"], "message": start["message"]}, start["outcome"])
            or None,
        ]
        for start in job["attempts"]
    ]


def _frames(job: Mapping[str, Any]) -> Iterator[str]:
    """Where each start failed; said once where several starts failed at the same lines."""
    failed = [start for start in job["attempts"] if start["frames"]]
    for frames, starts in groupby(failed, key=itemgetter("frames")):
        numbers = [str(start["attempt"]) for start in starts]
        yield ""
        yield f"Start{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} failed at"
        yield from (f"  {clean(frame)}" for frame in frames)


def _batch_facts(batch: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "batch", batch["id"]
    yield "status", batch["status"]
    yield "account", batch["account"]
    yield "jobs", _parts(batch)
    yield "credits", _credits(batch["credits"])
    for name in ("created", "finished"):
        yield name, _moment(batch[f"{name}_at"])
    yield "place", place(batch["position"], batch["eta_seconds"])
    yield "progress", _progress(batch["progress"])


def _parts(batch: Mapping[str, Any]) -> str:
    states = ("succeeded", "failed", "cancelled", "running", "queued")
    parts = ", ".join(f"{batch[state]:,} {state}" for state in states if batch[state])
    return f"{batch['total']:,}{': ' if parts else ''}{parts}"


def _facts(job: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "job", job["id"]
    yield "status", job["status"]
    yield "kind", job["kind"]
    yield "queue", job["queue"]
    yield "account", _account(job)
    for name in ("topic", "batch"):
        yield name, job[name]
    yield "priority", _priority(job)
    yield "credits", _credits(job["credits"])
    yield "starts", f"{job['attempt']}, {job['failures']} of {job['max_attempts']} failures used"
    for name in ("created", "started", "finished"):
        yield name, _moment(job[f"{name}_at"])
    if job["status"] == JobStatus.SCHEDULED:
        yield "runs at", job["run_at"]
    yield "place", place(job["position"], job["eta_seconds"])
    yield "waits for", WAITS_FOR.get(job["waiting_for"], job["waiting_for"])
    yield "took", between(job["started_at"], job["finished_at"])
    yield "stage", stage(job)
    yield "progress", _progress(job["progress"])
    if job["staleness"]:
        yield "stale", job["staleness"]["message"]
    if job.get("cancel_requested"):
        yield "cancel", "asked for"
    for name in ("retry_of", "retried_by"):
        yield name.replace("_", " "), job[name]
    yield "metadata", _json(job["metadata"])
    yield "usage", _json(job.get("usage"))
    yield "result", _json(job["result"])
    if job["error"]:
        yield "error", why(job["error"], job["status"])


def _account(job: Mapping[str, Any]) -> str | None:
    if job["account"] is None or job["plan"] is None:
        account: str | None = job["account"]
        return account
    return f"{job['account']} (plan {job['plan']})"


def _priority(job: Mapping[str, Any]) -> str:
    return f"{job['priority']}{' (first job of its account)' if job['first_job'] else ''}"


def _credits(told: dict[str, Any] | None) -> str | None:
    """What was taken for it and what came back; None of a job without a price."""
    if told is None:
        return None
    taken = f"{told['reserved']:,} reserved"
    if not told["charged"] and not told["refunded"]:
        return taken  # until it ends
    return f"{taken}, {told['charged']:,} charged, {told['refunded']:,} refunded"


def _moment(moment: str | None) -> str | None:
    return None if moment is None else f"{moment} ({age(moment)} ago)"


def _progress(progress: dict[str, Any] | None) -> str | None:
    if not progress or progress.get("done") is None:
        return None
    done, total = number(progress["done"]), progress.get("total")
    return done if total is None else f"{done} of {number(total)}"


def _json(value: Any) -> str | None:
    return json.dumps(value, ensure_ascii=False) if value not in (None, {}) else None
