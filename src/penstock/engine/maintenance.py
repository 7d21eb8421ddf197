"""Upkeep, in bounded steps that any process may run at any time."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from penstock.engine.statements import Statements, as_row
from penstock.engine.states import STATUSES, JobStatus

# The steps of one call if there is more to add up: an hour each, after upkeep did not run. Few,
# since the caller has other work, too.
_STEPS = 10


@dataclass(frozen=True, slots=True)
class Recovered:
    """An attempt that no worker finished, and what became of its job."""

    job_id: UUID
    outcome: str
    verdict: str
    status: JobStatus | None


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of an invariant of lifecycle.sql: there should never be any."""

    invariant: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class Repair:
    """A counter that was wrong: its value before and after."""

    what: str
    subject: str
    was: str
    now: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """A partition that was dropped (`rows` is None), or rows that were deleted."""

    what: str
    rows: int | None


class Upkeep(Statements):
    async def recover(
        self,
        *,
        limit: int = 500,
        grace: timedelta = timedelta(0),
        alone: bool = False,
        judge: bool = True,
    ) -> list[Recovered]:
        """Recover attempts whose worker is lost, whose time is over, or that make no progress.

        A session younger than `grace` recovers nothing. With `alone`, nothing is done while another
        session recovers. Without `judge`, no further worker is declared lost.
        """
        rows = await self._rows(
            as_row,
            "select job_id, outcome, verdict, status::text"
            " from penstock.recover_jobs($1, $2, $3, $4)",
            *(limit, grace, alone, judge),
        )
        return [
            Recovered(job, outcome, verdict, STATUSES.get(status))
            for job, outcome, verdict, status in rows
        ]

    async def any_lease_expired(self) -> bool:
        """Whether some worker's lease has expired; for sessions that may not yet recover."""
        return await self._value(bool, "select penstock.any_lease_expired()")

    async def server_time(self) -> datetime:
        """The time of the server's clock."""
        now: datetime
        [now] = await self._values("select penstock.server_time()")
        return now

    async def clock_went_back(self) -> None:
        """The server's clock was set back: measure again what has a time in the future."""
        await self._fetch("select penstock.clock_went_back()", ())

    async def make_partitions(self) -> int:
        """Make partitions of history for the coming days; return how many were missing."""
        return await self._value(int, "select penstock.make_partitions()")

    async def prune(self) -> list[Pruned]:
        """Delete what is older than its retention."""
        rows = await self._fetch("select what, rows from penstock.prune_history()", ())
        return [Pruned(row["what"], row["rows"]) for row in rows]

    async def sweep_uploads(self) -> int:
        """Remove files that no job used, or that were last used long ago; return how many."""
        return await self._value(int, "select penstock.sweep_uploads()")

    async def measure_waits(self) -> bool:
        """Measure the data for positions and ETAs; False if another session just did."""
        return await self._value(bool, "select penstock.measure_waits()")

    async def roll_up(self, *, steps: int = _STEPS) -> bool:
        """Add up, by the hour, jobs that finished since the last time; whether there is more to do.

        It does nothing if another session is doing it.
        """
        for _ in range(steps):
            if not await self._value(bool, "select penstock.roll_up()"):
                return False
        return True

    async def check(self) -> list[Violation]:
        """Search for violations of every invariant."""
        rows = await self._fetch("select invariant, subject, detail from penstock.check()", ())
        return [Violation(row["invariant"], row["subject"], row["detail"]) for row in rows]

    async def reconcile(self) -> list[Repair]:
        """Repair counters from the rows that they count; a sound system needs no repair."""
        rows = await self._fetch("select what, subject, was, now from penstock.reconcile()", ())
        return [Repair(row["what"], row["subject"], row["was"], row["now"]) for row in rows]
