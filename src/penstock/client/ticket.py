"""A ticket: what a submit gives at once, and by which the job is found again."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from penstock.base.settings import duration
from penstock.client.config.options import Duration
from penstock.engine.jobs.info import JobInfo
from penstock.engine.states import FINISHED, JobStatus
from penstock.errors import Invalid, JobCancelled, JobFailed

if TYPE_CHECKING:
    from penstock.client.app import Penstock

FIRST_POLL_SECONDS = 0.02
LAST_POLL_SECONDS = 0.5
_GROWTH = 1.5

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
        engine = await self.app.engine()
        return await engine.jobs.read(self.id)

    async def result(self, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109  # the contract
        """Wait for the end and give the result; JobFailed or JobCancelled where there is none.

        Without a time-out it waits as long as it takes. The job goes on whether one waits or not.
        """
        return result_of(await until_ended(self.status, f"job {self.id}", timeout))

    async def cancel(self) -> JobInfo:
        """Cancel it if it waits, ask it to stop if it runs; the job as it is then."""
        engine = await self.app.engine()
        return await engine.jobs.cancel(self.id)


async def until_ended(
    status: Callable[[], Awaitable[_T]],
    what: str,
    timeout: Duration | None,  # noqa: ASYNC109  # the contract
) -> _T:
    """What `status` answers when that has ended."""
    limit = math.inf
    if timeout is not None:
        limit = duration(timeout, field="timeout").total_seconds()
    deadline, pause = time.monotonic() + limit, FIRST_POLL_SECONDS
    while (found := await status())["status"] not in FINISHED:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"{what} has not ended within {limit:g} s; it goes on: ask again later, or "
                "cancel it"
            )
        await asyncio.sleep(min(pause, left))
        pause = min(pause * _GROWTH, LAST_POLL_SECONDS)
    return found


def read_id(value: UUID | str, what: str) -> UUID:
    """An id that was kept, of a job or a batch."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise Invalid(f"id must be the id of a {what}", code="invalid_id", field="id") from None


def result_of(job: JobInfo) -> Any:
    """The result of a job that has ended; JobFailed or JobCancelled where there is none."""
    if job.status == JobStatus.SUCCEEDED:
        return job.result
    error = job.error or {}
    named = f"job {job.id} ({job.kind})"
    if job.status == JobStatus.CANCELLED:
        raise JobCancelled(f"{named} was cancelled", job_id=job.id)
    said = [error.get(part) for part in ("class", "reason", "message")]
    raise JobFailed(
        f"{named} failed: {': '.join(word for word in said if word)}",
        job_id=job.id,
        error_class=error.get("class"),
        reason=error.get("reason"),
    )
