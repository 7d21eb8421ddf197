"""Workers and their leases."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from penstock.db.adapters.caller_connection import Fetch

LEASE = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Blocker:
    """What is on the stack of a blocked loop: file and line; job and attempt, where it is one's."""

    place: str | None
    key: tuple[UUID, int] | None = None
    kind: str | None = None


class Workers:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

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
        [row] = await self._fetch(
            "select penstock.register_worker($1, $2, $3, $4) as id",
            (
                name,
                lease,
                None if queues is None else list(queues),
                None if kinds is None else list(kinds),
            ),
        )
        worker: int = row["id"]
        return worker

    async def beat(self, worker: int, accepting: Sequence[str] = ()) -> bool:
        """Renew the lease. False: it was lost, and everything the worker runs with it.

        `accepting`: queues of which the worker would take one more job now.
        """
        [row] = await self._fetch(
            "select penstock.beat_worker($1, $2) as alive", (worker, list(accepting))
        )
        alive: bool = row["alive"]
        return alive

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
        """Which of its starts (job, attempt) are asked to end."""
        rows = await self._fetch("select job_id, attempt from penstock.read_cancels($1)", (worker,))
        return [(row["job_id"], row["attempt"]) for row in rows]

    async def starts(self, worker: int, *, older: timedelta) -> list[tuple[UUID, int, int | None]]:
        """What it is taken to be running for longer than that: job, attempt, slot's account."""
        rows = await self._fetch(
            "select job_id, attempt, slot_account from penstock.read_starts($1, $2)",
            (worker, older),
        )
        return [(row["job_id"], row["attempt"], row["slot_account"]) for row in rows]

    async def postpone(self, worker: int | None, *, by: timedelta, before: datetime) -> int:
        """Give what it has been running since before that moment so much more time; how many.

        And what awaits a callback, where nobody else has done so.
        """
        [row] = await self._fetch(
            "select penstock.postpone_starts($1, $2, $3) as n", (worker, by, before)
        )
        postponed: int = row["n"]
        return postponed

    async def begin_alone(self, worker: int, job_id: UUID, attempt: int) -> bool:
        """Begin a suspect; False while the worker runs another one."""
        [row] = await self._fetch(
            "select penstock.begin_alone($1, $2, $3) as may", (worker, job_id, attempt)
        )
        may: bool = row["may"]
        return may

    async def blocks_loops(self, job_id: UUID) -> bool:
        """Whether an attempt of this job has blocked its worker's event loop for long."""
        [row] = await self._fetch("select penstock.blocks_loops($1) as blocks", (job_id,))
        blocks: bool = row["blocks"]
        return blocks

    async def report_blocked_loop(
        self, worker: int, number: int, seconds: float, blocker: Blocker, *, over: bool
    ) -> frozenset[tuple[UUID, int]]:
        """Say that the worker's event loop stands still, or (`over`) that it did.

        Answers which attempts it owns: others were released meanwhile.
        """
        job_id, attempt = blocker.key or (None, None)
        rows = await self._fetch(
            "select job_id, attempt"
            " from penstock.report_blocked_loop($1, $2, $3, $4, $5, $6, $7, $8)",
            (worker, number, seconds, over, job_id, attempt, blocker.kind, blocker.place),
        )
        return frozenset((row["job_id"], row["attempt"]) for row in rows)

    async def stop(self, worker: int) -> None:
        """Leave in good order; what is still held is given back by the next recovery."""
        await self._fetch("select penstock.stop_worker($1)", (worker,))
