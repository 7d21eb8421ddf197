"""`penstock jobs`, `show`, `retry`, `cancel`: look at jobs, and say what shall become of one."""

import json
from collections.abc import Iterator
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from penstock.cli.console import Calls, Json, print_json, with_calls
from penstock.cli.render import (
    STYLES,
    Column,
    age,
    between,
    clean,
    number,
    place,
    print_lines,
    print_table,
    room,
    table,
)
from penstock.engine.lists import JobFilter
from penstock.states import JobStatus

COLUMNS = (
    Column("ID"),
    Column("STATUS"),
    Column("KIND", least=8),
    Column("QUEUE", least=8, drop=5),
    Column("ACCOUNT", least=8, drop=4),
    Column("TOPIC", least=8, drop=6),
    Column("STARTS", right=True, drop=3),
    Column("AGE", right=True, drop=1),
    Column("TOOK", right=True, drop=2),
    Column("NOTE", least=16),
)
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
    "no_worker": "a worker: none is alive",
    "backoff": "its next try",
    "callback": "the answer to its call",
}


def _id(text: str, option: str | None = None) -> UUID:
    # Whole ids only: the first half of one is the time of its submit, and jobs that were submitted
    # together have it in common.
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no job's id; they look like 0199f0a4-6c1e-7d3a-9b52-2f6d8a7c1e05.",
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
    found = with_calls(lambda calls: calls.lists.jobs(wanted, limit=limit, before=last))
    if as_json:
        print_json(found)
        return
    print_table(COLUMNS, [row(job) for job in found], none="No jobs.")


def row(job: dict[str, Any]) -> list[Any]:
    """A job of a list as a row of COLUMNS."""
    return [
        job["id"],
        job["status"],
        job["kind"],
        job["queue"],
        job["account"],
        job["topic"],
        job["attempt"],
        age(job["created_at"]),
        between(job["started_at"], job["finished_at"]) or _running_for(job),
        _note(job),
    ]


def _running_for(job: dict[str, Any]) -> str | None:
    running = job["status"] in (JobStatus.RUNNING, JobStatus.AWAITING)
    return age(job["started_at"]) if running else None


def _note(job: dict[str, Any]) -> str | None:
    if job["error"] and job["status"] not in (JobStatus.RUNNING, JobStatus.SUCCEEDED):
        return why(job["error"], job["status"])
    return stage(job) if job["finished_at"] is None else None


def stage(job: dict[str, Any]) -> str | None:
    """What it does now, in the words for people if its handler gave some."""
    if job["status"] in (JobStatus.QUEUED, JobStatus.SCHEDULED):
        return None  # of a start that has ended
    said: str | None = job.get("stage_label") or job["stage"]
    return said


def why(error: dict[str, Any], status: str | None = None) -> str:
    """An error in one line, without the word that the status beside it says already."""
    words = [error.get(part) for part in ("class", "reason", "message")]
    told = [word for n, word in enumerate(words) if word and word not in words[:n]]
    if len(told) > 1 and told[0] == status:
        del told[0]
    return ": ".join(told)


def show(job_id: JobId, *, as_json: Json = False) -> None:
    """Show one job with its starts, its result or its error."""
    job = with_calls(lambda calls: calls.jobs.read(job_id))
    if as_json:
        print_json(job)
        return
    print_lines([_fact(name, value) for name, value in _facts(job) if value is not None])
    if job["attempts"]:
        typer.echo()
        starts = [
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
        print_lines(table(_ATTEMPTS, starts, width=room()))


def _facts(job: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "job", job["id"]
    yield "status", job["status"]
    yield "kind", job["kind"]
    yield "queue", job["queue"]
    yield "account", _account(job)
    for name in ("topic", "batch"):
        yield name, job[name]
    yield "priority", job["priority"]
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


def _fact(name: str, value: Any) -> Text:
    text = clean(value)
    line = Text(f"{name:<12}", style="bold", end="")
    line.append(text, STYLES.get(text, "not bold") if name == "status" else "not bold")
    return line


def _account(job: dict[str, Any]) -> str | None:
    if job["account"] is None or job["plan"] is None:
        account: str | None = job["account"]
        return account
    return f"{job['account']} (plan {job['plan']})"


def _moment(moment: str | None) -> str | None:
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

    async def ask(calls: Calls) -> dict[str, Any]:
        job = await calls.jobs.retry(job_id)
        await calls.jobs.wake([job["queue"]])
        return job

    job = with_calls(ask)
    if as_json:
        print_json(job)
    elif job["id"] == str(job_id):
        typer.echo(f"Job {job_id} is due now.")
    elif job["deduplicated"]:
        typer.echo(f"Job {job['id']} does the same already; nothing new was submitted.")
    else:
        typer.echo(f"Submitted job {job['id']}, which tries {job_id} again.")


def cancel(job_id: JobId, *, as_json: Json = False) -> None:
    """Cancel a job that waits, ask a running one to stop; a finished one stays as it is."""
    job = with_calls(lambda calls: calls.jobs.cancel(job_id))
    if as_json:
        print_json(job)
        return
    match job["status"]:
        case JobStatus.CANCELLED:
            typer.echo(f"Job {job_id} is cancelled.")
        case JobStatus.RUNNING | JobStatus.AWAITING:
            typer.echo(f"Job {job_id} is asked to stop.")
        case status:
            typer.echo(f"Job {job_id} {status} {age(job['finished_at'])} ago; nothing changed.")
