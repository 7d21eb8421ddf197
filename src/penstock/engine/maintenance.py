"""What keeps the house in order, in bounded steps that any process may run at any time."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from penstock.engine.statements import Statements, as_row
from penstock.engine.states import STATUSES, JobStatus

# Steps of one call while there is more to add up: an hour each, where upkeep has been away. Few,
# since who does it has other things to see to.
_STEPS = 10


@dataclass(frozen=True, slots=True)
class Recovered:
    """A start that nobody ended, and what became of its job."""

    job_id: UUID
    outcome: str
    verdict: str
    status: JobStatus | None


@dataclass(frozen=True, slots=True)
class Violation:
    """A breach of an invariant of lifecycle.sql: there should be none, ever."""

    invariant: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class Repair:
    """A counter that was wrong: what it said, what it says now."""

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
        """End starts whose worker is lost, whose time is over, or that make no progress.

        Nothing in a session younger than `grace`; with `alone`, nothing while another is at it;
        without `judge`, no worker is given up that was not before.
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
        """Whether there is a worker to be given up, for who may not judge yet."""
        return await self._value(bool, "select penstock.any_lease_expired()")

    async def server_time(self) -> datetime:
        """What the server's own clock says."""
        now: datetime
        [now] = await self._values("select penstock.server_time()")
        return now

    async def clock_went_back(self) -> None:
        """The server's clock was set back: measure anew what was dated in the future."""
        await self._fetch("select penstock.clock_went_back()", ())

    async def make_partitions(self) -> int:
        """Partitions of history for the coming days; how many were missing."""
        return await self._value(int, "select penstock.make_partitions()")

    async def prune(self) -> list[Pruned]:
        """Drop what retention no longer keeps."""
        rows = await self._fetch("select what, rows from penstock.prune_history()", ())
        return [Pruned(row["what"], row["rows"]) for row in rows]

    async def sweep_uploads(self) -> int:
        """Remove files that no job took, or took too long ago; how many."""
        return await self._value(int, "select penstock.sweep_uploads()")

    async def measure_waits(self) -> bool:
        """Measure what places and waits are told by; False where another just did."""
        return await self._value(bool, "select penstock.measure_waits()")

    async def roll_up(self, *, steps: int = _STEPS) -> bool:
        """Add up by the hour what has ended since the last time; whether there is more to do.

        Nothing where another is at it.
        """
        for _ in range(steps):
            if not await self._value(bool, "select penstock.roll_up()"):
                return False
        return True

    async def check(self) -> list[Violation]:
        """Look for a breach of every invariant."""
        rows = await self._fetch("select invariant, subject, detail from penstock.check()", ())
        return [Violation(row["invariant"], row["subject"], row["detail"]) for row in rows]

    async def reconcile(self) -> list[Repair]:
        """Repair counters from what they count; nothing to do on a sound system."""
        rows = await self._fetch("select what, subject, was, now from penstock.reconcile()", ())
        return [Repair(row["what"], row["subject"], row["was"], row["now"]) for row in rows]
