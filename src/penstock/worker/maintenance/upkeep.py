"""Upkeep, in every worker: there is no leader to lose. By a try-lock, one at a time does it."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

import asyncpg

from penstock.base.error_location import error_location
from penstock.db.connections.driver_errors import fetching
from penstock.db.connections.listener import open_session, wait_before_reconnect
from penstock.db.connections.pool import close_in_background
from penstock.engine.engine import Engine
from penstock.engine.maintenance import Upkeep
from penstock.engine.states import JobStatus
from penstock.errors import PenstockError
from penstock.worker.attempts.open_attempts import OpenAttempts
from penstock.worker.membership.clocks import GRACE_SECONDS, ServerClock
from penstock.worker.membership.registration import Registration

T = TypeVar("T")

PASS_SECONDS = 0.5
GRACE = timedelta(seconds=GRACE_SECONDS)
# A little more than the database's minimum between two measurements; otherwise every second call
# would come too soon.
MEASURE_SECONDS = 1.25
ROLL_UP_SECONDS = 10.0
TIDY_SECONDS = 300.0
RECONCILE_SECONDS = 3_600.0
RECOVER_LIMIT = 500
_ANSWER_SECONDS = 30.0
# How many passes run without a pause while there is more to do.
_PASSES_AT_ONCE = 100

_log = logging.getLogger("penstock.upkeep")


class UpkeepLoop:
    """Does upkeep on its own session, since it expires no leases on a new one."""

    def __init__(
        self,
        dsn: str,
        engine: Engine,
        queues: Collection[str],
        registration: Registration | None = None,
        attempts: OpenAttempts | None = None,
    ) -> None:
        """`queues`: the app's. `registration`, `attempts`: those of a worker that does upkeep."""
        self._dsn = dsn
        self._engine = engine
        self._queues = queues
        self._registration = registration
        self._attempts = attempts
        self._clock = ServerClock(self.postpone)
        self._due = {"reconcile": _after(RECONCILE_SECONDS)}
        self._tries = 0

    async def run(self) -> None:
        """Run for ever, also through outages."""
        while True:
            conn: asyncpg.Connection | None = None
            try:
                conn = await open_session(self._dsn, name="penstock upkeep")
                await self._keep(conn)
            except (PenstockError, TimeoutError, OSError, asyncpg.PostgresError) as error:
                _log.info("upkeep waits for the database: %s", error_location(error))
                if conn is not None and isinstance(error, TimeoutError):
                    close_in_background(conn)
                    conn = None
                self._tries += 1
                await wait_before_reconnect(self._tries)
            finally:
                if conn is not None:
                    conn.terminate()

    async def _keep(self, conn: asyncpg.Connection) -> None:
        """Do upkeep on this session: recover often, tidy now and then, reconcile rarely."""
        upkeep = Upkeep(fetching(conn))
        passes: Sequence[tuple[str, float, Callable[[Upkeep], Awaitable[bool | None]]]] = (
            ("measure", MEASURE_SECONDS, Upkeep.measure_waits),
            ("roll up", ROLL_UP_SECONDS, partial(Upkeep.roll_up, steps=1)),
            ("tidy", TIDY_SECONDS, tidy),
            ("reconcile", RECONCILE_SECONDS, _reconcile),
        )
        self._clock.begin_session()
        while True:
            if self._registration is not None:
                await self._registration.hold(conn)
            # If the server hangs and was replaced, leave this session.
            async with asyncio.timeout(_ANSWER_SECONDS):
                may_judge = await self._clock.may_judge(upkeep)
            if may_judge:
                await self.recover(upkeep, grace=timedelta(0))
            for what, seconds, work in passes:
                more = await _on(conn, work(upkeep)) if self._is_due(what, seconds) else None
                if more and what == "roll up":
                    # One step at a time: a long backlog must not delay a recovery.
                    self._due[what] = 0.0
            self._tries = 0
            await asyncio.sleep(_after(PASS_SECONDS) - time.monotonic())

    def _is_due(self, what: str, every_seconds: float) -> bool:
        if time.monotonic() < self._due.get(what, 0.0):
            return False
        self._due[what] = _after(every_seconds)
        return True

    async def recover(self, upkeep: Upkeep, *, grace: timedelta = GRACE, judge: bool = True) -> int:
        """Settle attempts that no worker finished; how many."""
        settled = 0
        for _ in range(_PASSES_AT_ONCE):
            async with asyncio.timeout(_ANSWER_SECONDS):
                recovered = await upkeep.recover(
                    limit=RECOVER_LIMIT, grace=grace, alone=True, judge=judge
                )
            done = [job for job in recovered if job.verdict == "done"]
            settled += len(done)
            for job in done:
                _log.info("recovered", extra={"job": job.job_id, "outcome": job.outcome})
            lost = sum(job.outcome in ("lost", "lost_with_others") for job in done)
            if lost:
                _log.warning("a worker was lost: %d of its jobs were settled", lost)
            if any(job.status == JobStatus.QUEUED for job in done):
                await self._wake()
            if len(done) < len(recovered) or len(recovered) < RECOVER_LIMIT:
                break
        return settled

    async def postpone(self, by: timedelta, before: datetime) -> None:
        """Postpone the deadlines of attempts that began before the server's clock was set.

        By that clock they look older than they are.
        """
        worker = None if self._registration is None else self._registration.worker
        await self._engine.workers.postpone(worker, by=by, before=before)

    async def _wake(self) -> None:
        """Jobs were returned to the queue: wake this worker and all others."""
        if self._attempts is not None:
            self._attempts.wake()
        await self._engine.jobs.wake(list(self._queues))


async def _on(conn: asyncpg.Connection, work: Awaitable[T]) -> T | None:
    """Do other work than recovery; its failure must not end the session, which has to grow old."""
    try:
        return await work
    except (PenstockError, asyncpg.PostgresError) as error:
        if conn.is_closed():
            raise
        _log.info("upkeep goes on without: %s", error_location(error))
        return None


async def tidy(upkeep: Upkeep) -> None:
    """Make partitions for the coming days, add up figures by the hour, and prune history."""
    await upkeep.make_partitions()
    await upkeep.roll_up()
    await upkeep.prune()
    await upkeep.sweep_uploads()


async def _reconcile(upkeep: Upkeep) -> None:
    """Repair counters. It reads every live job, which takes a second per million: run it rarely."""
    for repair in await upkeep.reconcile():
        _log.error("a counter was wrong and was repaired: %s", repair)


def _after(seconds: float) -> float:
    """The next due time; it is random, so that workers do not act at the same moment."""
    return time.monotonic() + seconds * random.uniform(0.8, 1.2)  # noqa: S311  # no secret
