"""Tickets: what a submit returns at once, for access to the job or the batch of jobs later."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from penstock.base.settings import duration
from penstock.client.config.declared import Duration
from penstock.engine.jobs.info import JobInfo
from penstock.engine.states import FINISHED, JobStatus
from penstock.errors import Invalid, JobCancelled, JobFailed, NotFound

if TYPE_CHECKING:
    from penstock.client.app import Penstock

FIRST_POLL_SECONDS = 0.02
LAST_POLL_SECONDS = 0.5
_GROWTH = 1.5
# How many of its jobs a batch lists (batches.sql).
_SHOWN = 1_000

_T = TypeVar("_T", bound=Mapping[str, Any])


# Not frozen: creating a frozen one took three times as long, 5 % of a bulk submit (2026-11).
@dataclass(slots=True)
class Ticket:
    """A submitted job. `id` is its own or, if `deduplicated`, that of the live job with its key."""

    id: UUID
    kind: str | None = None
    """None if the ticket was made from an id."""
    deduplicated: bool = False
    replayed: bool = False
    """Whether this answers a repeated submit with the same idempotency key."""
    position: int | None = None
    """Its position when it was submitted; 1 is next to start. None if it does not wait, was
    submitted with many others, or is so deep in the queue that its position is not counted yet."""
    eta_seconds: float | None = None
    """The expected time until its start, at the time of the submit. None if that is unknown: no job
    has run yet, there is no worker, the queue is paused or its provider unavailable."""
    balance: int | None = None
    """The account's credits after the submit; None without an account."""
    batch: UUID | None = None
    """The batch of jobs that were submitted together: `app.batch(id)`."""
    app: "Penstock" = field(kw_only=True, repr=False, compare=False)

    def __hash__(self) -> int:
        return hash(self.id)

    async def status(self) -> JobInfo:
        """Return the job."""
        return await (await self.app.engine()).jobs.read(self.id)

    async def result(self, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109  # the contract
        """Wait until the job has finished; return its result or raise JobFailed or JobCancelled.

        Without a timeout it waits as long as it takes. After a timeout the job goes on.
        """
        return _result_of(await until_finished(self.status, f"job {self.id}", timeout))

    async def cancel(self) -> JobInfo:
        """Cancel a waiting job, or ask a running one to stop; return the job."""
        return await (await self.app.engine()).jobs.cancel(self.id)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch by its id: `app.batch(id)`."""

    id: UUID
    app: "Penstock" = field(kw_only=True, repr=False, compare=False)

    async def status(self) -> dict[str, Any]:
        """Return the batch, with the progress of its jobs."""
        return await (await self.app.engine()).jobs.read_batch(self.id)

    async def result(self, timeout: Duration | None = None) -> list[Any]:  # noqa: ASYNC109  # as Ticket
        """Wait until all jobs have finished; return their results in order, None if one has none.

        Raises JobFailed or JobCancelled if none of them succeeded.
        """
        # Before the wait, and again after it, when some jobs may have been pruned.
        self._refuse_parts(await self.status())
        batch = await until_finished(self.status, f"batch {self.id}", timeout)
        self._refuse_parts(batch)
        return _results_of(batch, [JobInfo.from_json(job) for job in batch["items"]])

    def _refuse_parts(self, batch: dict[str, Any]) -> None:
        if batch["total"] > len(batch["items"]):
            raise NotFound(
                f"batch {self.id} has {batch['total']} jobs, but returns the results of at most "
                f"{_SHOWN}, while they are kept: ask each ticket for its own",
                code="too_many_results",
                field="id",
            )

    async def cancel(self) -> dict[str, Any]:
        """Cancel the waiting jobs, and ask the running ones to stop; return the batch."""
        return await (await self.app.engine()).jobs.cancel_batch(self.id)


@dataclass(slots=True)
class BatchTicket(Ticket):
    """The ticket of a kind with `split`: `id` is the first job's, `batch` that of all."""

    tickets: tuple[Ticket, ...] = ()
    """One ticket for each job, in order."""

    __hash__ = Ticket.__hash__

    async def status(self) -> dict[str, Any]:  # type: ignore[override]  # of a batch
        """Return the batch, with the progress of its jobs."""
        return await self._all.status()

    async def result(self, timeout: Duration | None = None) -> list[Any]:  # noqa: ASYNC109  # as Ticket
        """Wait until all jobs have finished; return their results in order, None if one has none.

        Raises JobFailed or JobCancelled if none of them succeeded.
        """
        batch = await until_finished(self.status, f"batch {self.batch}", timeout)
        items = {UUID(job["id"]): JobInfo.from_json(job) for job in batch["items"]}
        jobs = [items.get(ticket.id) or await ticket.status() for ticket in self.tickets]
        return _results_of(batch, jobs)

    async def cancel(self) -> dict[str, Any]:  # type: ignore[override]  # of a batch
        """Cancel the waiting jobs, and ask the running ones to stop; return the batch."""
        return await self._all.cancel()

    @property
    def _all(self) -> Batch:
        assert self.batch is not None  # noqa: S101  # a kind with `split` makes batches only
        return Batch(self.batch, app=self.app)


async def until_finished(
    status: Callable[[], Awaitable[_T]],
    what: str,
    timeout: Duration | None,  # noqa: ASYNC109  # the contract
) -> _T:
    """Poll `status` until the job or batch has finished; return its last answer."""
    length = None if timeout is None else duration(timeout, field="timeout")
    limit = math.inf if length is None else length.total_seconds()
    deadline, pause = time.monotonic() + limit, FIRST_POLL_SECONDS
    while (answer := await status())["status"] not in FINISHED:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"{what} has not finished within {limit:g} s; it goes on: ask again later, or "
                "cancel it"
            )
        await asyncio.sleep(min(pause, left))
        pause = min(pause * _GROWTH, LAST_POLL_SECONDS)
    return answer


def read_id(value: UUID | str, what: str) -> UUID:
    """Read the id of a job or a batch."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise Invalid(f"id must be the id of a {what}", code="invalid_id", field="id") from None


def _result_of(job: JobInfo) -> Any:
    """Return the result of a finished job; raise JobFailed or JobCancelled if there is none."""
    if job.status == JobStatus.SUCCEEDED:
        return job.result
    error = job.error or {}
    named = f"job {job.id} ({job.kind})"
    if job.status == JobStatus.CANCELLED:
        raise JobCancelled(f"{named} was cancelled", job_id=job.id)
    parts = [error.get(part) for part in ("class", "reason", "message")]
    raise JobFailed(
        f"{named} failed: {': '.join(part for part in parts if part)}",
        job_id=job.id,
        error_class=error.get("class"),
        reason=error.get("reason"),
    )


def _results_of(batch: dict[str, Any], jobs: Sequence[JobInfo]) -> list[Any]:
    """Return the results of a finished batch; raise if none of its jobs succeeded."""
    if not batch["succeeded"]:
        failed = next((job for job in jobs if job.status == JobStatus.FAILED), None)
        if failed is not None:
            _result_of(failed)
        raise JobCancelled(f"batch {batch['id']} was cancelled", job_id=jobs[0].id)
    return [job.result for job in jobs]
