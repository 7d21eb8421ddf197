"""Jobs that were submitted together, as one: how far they are, their results, and their end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.client.config.options import Duration
from penstock.client.ticket import Ticket, result_of, until_ended
from penstock.engine.jobs.info import JobInfo
from penstock.engine.states import JobStatus
from penstock.errors import JobCancelled, NotFound

if TYPE_CHECKING:
    from penstock.client.app import Penstock

# As many of its jobs a batch shows (batches.sql).
_SHOWN = 1_000


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch whose id was kept: `app.batch(id)`."""

    id: UUID
    app: "Penstock" = field(kw_only=True, repr=False, compare=False)

    async def status(self) -> dict[str, Any]:
        """How far its jobs are, as every surface shows it."""
        engine = await self.app.engine()
        return await engine.jobs.read_batch(self.id)

    async def result(self, timeout: Duration | None = None) -> list[Any]:  # noqa: ASYNC109  # as Ticket
        """Wait for the end of all and give their results in order, None for one that has none.

        JobFailed or JobCancelled where not one has succeeded.
        """
        # Before the wait as after it, when some may be kept no longer.
        self._refuse_parts(await self.status())
        batch = await until_ended(self.status, f"batch {self.id}", timeout)
        self._refuse_parts(batch)
        return results_of(batch, [JobInfo.from_json(job) for job in batch["items"]])

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
        engine = await self.app.engine()
        return await engine.jobs.cancel_batch(self.id)


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
        batch = await until_ended(self.status, f"batch {self.batch}", timeout)
        items = {UUID(job["id"]): JobInfo.from_json(job) for job in batch["items"]}
        jobs = [items.get(one.id) or await one.status() for one in self.tickets]
        return results_of(batch, jobs)

    async def cancel(self) -> dict[str, Any]:  # type: ignore[override]  # of a batch
        """Cancel those that wait, ask those that run to stop; the batch as it is then."""
        return await self._all.cancel()

    @property
    def _all(self) -> Batch:
        assert self.batch is not None  # noqa: S101  # a kind with `split` makes batches only
        return Batch(self.batch, app=self.app)


def results_of(batch: dict[str, Any], jobs: Sequence[JobInfo]) -> list[Any]:
    """Of a batch that has ended; JobFailed or JobCancelled where not one has succeeded."""
    if not batch["succeeded"]:
        failed = next((job for job in jobs if job.status == JobStatus.FAILED), None)
        if failed is not None:
            result_of(failed)
        raise JobCancelled(f"batch {batch['id']} was cancelled", job_id=jobs[0].id)
    return [job.result for job in jobs]
