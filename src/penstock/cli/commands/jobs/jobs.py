"""`penstock jobs`, `retry`, `cancel`: look at jobs, and say what shall become of one."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any
from uuid import UUID

import typer

from penstock.base.wording import age, between, count
from penstock.cli.output.console import Calls, Json, print_json, with_calls
from penstock.cli.output.render import Column, print_table
from penstock.engine.jobs.info import JobInfo
from penstock.engine.queries.lists import JobFilter
from penstock.engine.states import JobStatus
from penstock.errors import NotFound

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


def row(job: JobInfo) -> list[Any]:
    """A job of a list as a row of COLUMNS."""
    return [
        job.id,
        job.status,
        job.kind,
        job.queue,
        job.account,
        job.topic,
        job.attempt,
        age(job.created_at),
        between(job.started_at, job.finished_at) or _running_for(job),
        _note(job),
    ]


def _running_for(job: JobInfo) -> str | None:
    running = job.status in (JobStatus.RUNNING, JobStatus.AWAITING)
    return age(job.started_at) if running else None


def _note(job: JobInfo) -> str | None:
    if job.error and job.status not in (JobStatus.RUNNING, JobStatus.SUCCEEDED):
        return why(job.error, job.status)
    return stage(job) if job.finished_at is None else None


def stage(job: Mapping[str, Any]) -> str | None:
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


def retry(job_id: JobId, *, as_json: Json = False) -> None:
    """Run a finished job again as a new one; a scheduled one runs now."""

    async def ask(calls: Calls) -> JobInfo:
        job = await calls.jobs.retry(job_id)
        await calls.jobs.wake([job["queue"]])
        return job

    job = with_calls(ask)
    if as_json:
        print_json(job)
    elif job.id == job_id:
        typer.echo(f"Job {job_id} is due now.")
    elif job["deduplicated"]:
        typer.echo(f"Job {job.id} does the same already; nothing new was submitted.")
    else:
        typer.echo(f"Submitted job {job.id}, which tries {job_id} again.")


def cancel(job_id: JobId, *, as_json: Json = False) -> None:
    """Cancel a job that waits, ask a running one to stop; a finished one stays as it is.

    The id of a batch does so to each of its jobs.
    """
    told = with_calls(
        lambda calls: job_or_batch(job_id, calls.jobs.cancel, calls.jobs.cancel_batch)
    )
    if as_json:
        print_json(told)
    elif "items" in told:
        stopping = f", {told['running']:,} asked to stop" if told["running"] else ""
        typer.echo(
            f"Batch {job_id} of {count(told['total'], 'job')}:"
            f" {told['cancelled']:,} cancelled{stopping}."
        )
    else:
        typer.echo(_cancelled(told))


def _cancelled(job: Mapping[str, Any]) -> str:
    match job["status"]:
        case JobStatus.CANCELLED:
            return f"Job {job['id']} is cancelled."
        case JobStatus.RUNNING | JobStatus.AWAITING:
            return f"Job {job['id']} is asked to stop."
        case status:
            return f"Job {job['id']} {status} {age(job['finished_at'])} ago; nothing changed."


async def job_or_batch(
    its_id: UUID,
    job: Callable[[UUID], Awaitable[JobInfo]],
    batch: Callable[[UUID], Awaitable[dict[str, Any]]],
) -> Mapping[str, Any]:
    """What `job` says of that id, or `batch` where it is the id of one (it has `items`)."""
    try:
        return await job(its_id)
    except NotFound as error:
        try:
            return await batch(its_id)
        except NotFound:
            raise error from None
