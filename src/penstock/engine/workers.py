"""Workers and their leases."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from penstock.engine.statements import Statements, as_row

LEASE = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Blocker:
    """What is on the stack of a blocked loop: file and line; job and attempt, where it is one's."""

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
        """A new identity, good for one boot; `name` is for people.

        It claims jobs of these queues and kinds only; None: of any.
        """
        return await self._value(
            int,
            "select penstock.register_worker($1, $2, $3, $4)",
            *(name, lease),
            *(None if names is None else list(names) for names in (queues, kinds)),
        )

    async def beat(self, worker: int, accepting: Sequence[str] = ()) -> bool:
        """Renew the lease. False: it was lost, and everything the worker runs with it.

        `accepting`: queues of which the worker would take one more job now.
        """
        return await self._value(
            bool, "select penstock.beat_worker($1, $2)", worker, list(accepting)
        )

    async def lock(self, worker: int) -> bool:
        """Hold the worker's key on this session; False: it was lost before.

        No standby need know: there it would be another session, and a standby that hangs must not
        keep anybody from holding it.
        """
        [row] = await self._fetch(
            "select penstock.lock_worker($1) as alive,"
            " set_config('synchronous_commit', 'local', true)",
            (worker,),
        )
        alive: bool = row["alive"]
        return alive

    async def cancels(self, worker: int) -> list[tuple[UUID, int]]:
        """Which of its attempts (job, attempt) are asked to stop."""
        sql = "select job_id, attempt from penstock.read_cancels($1)"
        return await self._rows(as_row, sql, worker)

    async def running(self, worker: int, *, older: timedelta) -> list[tuple[UUID, int, int | None]]:
        """What it is taken to be running for longer than that: job, attempt, slot's account."""
        sql = "select job_id, attempt, slot_account from penstock.read_running_attempts($1, $2)"
        return await self._rows(as_row, sql, worker, older)

    async def postpone(self, worker: int | None, *, by: timedelta, before: datetime) -> int:
        """Give what it has been running since before that moment so much more time; how many.

        And what awaits a callback, where nobody else has done so.
        """
        return await self._value(
            int, "select penstock.postpone_deadlines($1, $2, $3)", worker, by, before
        )

    async def mark_only_suspect(self, worker: int, job_id: UUID, attempt: int) -> bool:
        """Begin a suspect job; False while the worker runs another one."""
        return await self._value(
            bool, "select penstock.mark_only_suspect($1, $2, $3)", worker, job_id, attempt
        )

    async def blocks_loops(self, job_id: UUID) -> bool:
        """Whether an attempt of this job has blocked its worker's event loop for long."""
        return await self._value(bool, "select penstock.blocks_loops($1)", job_id)

    async def report_blocked_loop(
        self, worker: int, number: int, seconds: float, blocker: Blocker, *, over: bool
    ) -> frozenset[tuple[UUID, int]]:
        """Say that the worker's event loop stands still, or (`over`) that it did.

        Answers which attempts it owns: others were released meanwhile.
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
        """Unregister; the next recovery releases what still runs."""
        await self._fetch("select penstock.stop_worker($1)", (worker,))
