"""Tickets: what a submit gives at once, by which a job or a batch of jobs is found again."""

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
# As many of its jobs a batch shows (batches.sql).
_SHOWN = 1_000

_T = TypeVar("_T", bound=Mapping[str, Any])


# Not frozen: to make one that is took three times as long, a twentieth of a bulk submit (2026-11).
@dataclass(slots=True)
class Ticket:
    """A job that was accepted: `id` is its own, or its live twin's when `deduplicated`."""

    id: UUID
    kind: str | None = None
    """None where the ticket was made from an id."""
    deduplicated: bool = False
    replayed: bool = False
    """Whether this answers a repeated submit with the same idempotency key."""
    position: int | None = None
    """Its place when it was submitted, 1 for the next to start. None where it does not wait, was
    submitted with many, or stands so deep that nobody has looked yet."""
    eta_seconds: float | None = None
    """How long it would probably wait until its start, as seen then; None while that cannot be
    known: nothing has run yet, nobody works, the queue is paused or its provider away."""
    balance: int | None = None
    """The account's credits after the submit; None of a job of nobody's."""
    batch: UUID | None = None
    """Of what was submitted together: `app.batch(id)`."""
    app: "Penstock" = field(kw_only=True, repr=False, compare=False)

    def __hash__(self) -> int:
        return hash(self.id)

    async def status(self) -> JobInfo:
        """The job as every reader sees it."""
        return await (await self.app.engine()).jobs.read(self.id)

    async def result(self, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109  # the contract
        """Wait for the end and give the result; JobFailed or JobCancelled where there is none.

        Without a time-out it waits as long as it takes. The job goes on whether one waits or not.
        """
        return _result_of(await until_finished(self.status, f"job {self.id}", timeout))

    async def cancel(self) -> JobInfo:
        """Cancel it if it waits, ask it to stop if it runs; the job as it is then."""
        return await (await self.app.engine()).jobs.cancel(self.id)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch whose id was kept: `app.batch(id)`."""

    id: UUID
    app: "Penstock" = field(kw_only=True, repr=False, compare=False)

    async def status(self) -> dict[str, Any]:
        """How far its jobs are, as every surface shows it."""
        return await (await self.app.engine()).jobs.read_batch(self.id)

    async def result(self, timeout: Duration | None = None) -> list[Any]:  # noqa: ASYNC109  # as Ticket
        """Wait for the end of all and give their results in order, None for one that has none.

        JobFailed or JobCancelled where not one has succeeded.
        """
        # Before the wait as after it, when some may be kept no longer.
        self._refuse_parts(await self.status())
        batch = await until_finished(self.status, f"batch {self.id}", timeout)
        self._refuse_parts(batch)
        return _results_of(batch, [JobInfo.from_json(job) for job in batch["items"]])

    def _refuse_parts(self, batch: dict[str, Any]) -> None:
        if batch["total"] > len(batch["items"]):
            raise NotFound(
                f"batch {self.id} has {batch['total']} jobs, and answers with the results of at "
                f"most {_SHOWN}, while they are kept: ask each ticket for its own",
                code="too_many_results",
                field="id",
            )

    async def cancel(self) -> dict[str, Any]:
        """Cancel those that wait, ask those that run to stop; the batch as it is then."""
        return await (await self.app.engine()).jobs.cancel_batch(self.id)


@dataclass(slots=True)
class BatchTicket(Ticket):
    """What a submit of a kind with `split` gives: `id` is the first job's, `batch` that of all."""

    tickets: tuple[Ticket, ...] = ()
    """One for each job, in order."""

    __hash__ = Ticket.__hash__

    async def status(self) -> dict[str, Any]:  # type: ignore[override]  # of a batch
        """How far its jobs are, as every surface shows it."""
        return await self._all.status()

    async def result(self, timeout: Duration | None = None) -> list[Any]:  # noqa: ASYNC109  # as Ticket
        """Wait for the end of all and give their results in order, None for one that has none.

        JobFailed or JobCancelled where not one has succeeded.
        """
        batch = await until_finished(self.status, f"batch {self.batch}", timeout)
        items = {UUID(job["id"]): JobInfo.from_json(job) for job in batch["items"]}
        jobs = [items.get(ticket.id) or await ticket.status() for ticket in self.tickets]
        return _results_of(batch, jobs)

    async def cancel(self) -> dict[str, Any]:  # type: ignore[override]  # of a batch
        """Cancel those that wait, ask those that run to stop; the batch as it is then."""
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
    """What `status` answers when that has ended."""
    length = None if timeout is None else duration(timeout, field="timeout")
    limit = math.inf if length is None else length.total_seconds()
    deadline, pause = time.monotonic() + limit, FIRST_POLL_SECONDS
    while (answer := await status())["status"] not in FINISHED:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"{what} has not ended within {limit:g} s; it goes on: ask again later, or "
                "cancel it"
            )
        await asyncio.sleep(min(pause, left))
        pause = min(pause * _GROWTH, LAST_POLL_SECONDS)
    return answer


def read_id(value: UUID | str, what: str) -> UUID:
    """An id that was kept, of a job or a batch."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise Invalid(f"id must be the id of a {what}", code="invalid_id", field="id") from None


def _result_of(job: JobInfo) -> Any:
    """The result of a job that has ended; JobFailed or JobCancelled where there is none."""
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
    """Of a batch that has ended; JobFailed or JobCancelled where not one has succeeded."""
    if not batch["succeeded"]:
        failed = next((job for job in jobs if job.status == JobStatus.FAILED), None)
        if failed is not None:
            _result_of(failed)
        raise JobCancelled(f"batch {batch['id']} was cancelled", job_id=jobs[0].id)
    return [job.result for job in jobs]
