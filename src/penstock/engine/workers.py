"""Workers and their leases."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from penstock.engine.statements import Statements, as_row

LEASE = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Blocker:
    """The stack of a blocked loop: file and line; job and attempt, if an attempt blocks it."""

    location: str | None
    key: tuple[UUID, int] | None = None
    kind: str | None = None


class Workers(Statements):
    async def register(
        self,
        name: str,
        *,
        lease: timedelta = LEASE,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
    ) -> int:
        """Make a new identity, valid until the process exits; `name` is for people.

        It claims only jobs of these queues and kinds; None: of any.
        """
        return await self._value(
            int,
            "select penstock.register_worker($1, $2, $3, $4)",
            *(name, lease),
            *(None if names is None else list(names) for names in (queues, kinds)),
        )

    async def beat(self, worker: int, accepting: Sequence[str] = ()) -> bool:
        """Renew the lease. False: it was lost, with all attempts of the worker.

        `accepting`: queues of which the worker would start one more job now.
        """
        return await self._value(
            bool, "select penstock.beat_worker($1, $2)", worker, list(accepting)
        )

    async def lock(self, worker: int) -> bool:
        """Lock the worker's key on this session; False: the worker was already lost.

        The commit waits for no standby. On a standby it would be another session, and a standby
        that hangs must not prevent the locking.
        """
        [row] = await self._fetch(
            "select penstock.lock_worker($1) as alive,"
            " set_config('synchronous_commit', 'local', true)",
            (worker,),
        )
        alive: bool = row["alive"]
        return alive

    async def cancels(self, worker: int) -> list[tuple[UUID, int]]:
        """Which of its attempts (job, attempt) are to be cancelled."""
        sql = "select job_id, attempt from penstock.read_cancels($1)"
        return await self._rows(as_row, sql, worker)

    async def running(self, worker: int, *, older: timedelta) -> list[tuple[UUID, int, int | None]]:
        """Attempts listed as running there for longer than that: job, attempt, slot's account."""
        sql = "select job_id, attempt, slot_account from penstock.read_running_attempts($1, $2)"
        return await self._rows(as_row, sql, worker, older)

    async def postpone(self, worker: int | None, *, by: timedelta, before: datetime) -> int:
        """Extend the deadlines of attempts that began before that time; return how many.

        Also of dispatched attempts, if no other worker has extended them.
        """
        return await self._value(
            int, "select penstock.postpone_deadlines($1, $2, $3)", worker, by, before
        )

    async def mark_only_suspect(self, worker: int, job_id: UUID, attempt: int) -> bool:
        """Begin a suspect job; False while the worker runs another suspect."""
        return await self._value(
            bool, "select penstock.mark_only_suspect($1, $2, $3)", worker, job_id, attempt
        )

    async def blocks_loops(self, job_id: UUID) -> bool:
        """Whether an attempt of this job has blocked its worker's event loop for long."""
        return await self._value(bool, "select penstock.blocks_loops($1)", job_id)

    async def report_blocked_loop(
        self, worker: int, number: int, seconds: float, blocker: Blocker, *, over: bool
    ) -> frozenset[tuple[UUID, int]]:
        """Report that the worker's event loop stands still, or (`over`) that it did.

        Returns which attempts the worker still owns: others were released.
        """
        job_id, attempt = blocker.key or (None, None)
        attempts = await self._rows(
            as_row,
            "select job_id, attempt"
            " from penstock.report_blocked_loop($1, $2, $3, $4, $5, $6, $7, $8)",
            *(worker, number, seconds, over, job_id, attempt, blocker.kind, blocker.location),
        )
        return frozenset(attempts)

    async def stop(self, worker: int) -> None:
        """Unregister; the next recovery releases attempts that still run."""
        await self._fetch("select penstock.stop_worker($1)", (worker,))
