"""Bounded runs: workers that leave when time is up, no job may start, or one job has run."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Literal
from uuid import UUID

from penstock.base.error_location import error_location
from penstock.db.connections.listener import DATABASE_UNAVAILABLE, wait_before_reconnect
from penstock.engine.engine import Engine
from penstock.engine.states import JobStatus
from penstock.models.handlers.handler import Handler
from penstock.worker.attempts.open_attempts import OpenAttempts
from penstock.worker.claiming.claims import BATCH, Claims
from penstock.worker.maintenance.upkeep import GRACE, UpkeepLoop

# A job that takes longer than any run may start only at the beginning of a run.
BEGINNING = 0.9
# If no job of a kind has finished yet, only its time-out is known. At least this share of the run
# has to be left for its first job.
UNKNOWN = 0.5
# How often to ask again how long jobs take.
MEASURE_SECONDS = 2.0
REST_SECONDS = 0.5
# Jobs that may start within this time are waited for: no other worker may come for them.
SOON_SECONDS = 10.0

# How long the caller of an inline job waits until its job may start; then a worker has to run it.
TURN_SECONDS = 30.0
_IDLE_SECONDS = 0.2
_TURN_POLL_SECONDS = 0.05
_STOPPED = ("circuit_open", "paused")

_log = logging.getLogger("penstock.worker")

End = Literal["idle", "held", "time"]


class BoundedRun:
    """A worker that runs for a limited time, as a call of a serverless host does.

    It starts no job that it could not finish, waits for jobs that may start soon, and leaves when
    no job is due. Attempts that still run when its time is over are released, free of charge.
    """

    def __init__(self, length: timedelta, engine: Engine, handlers: Mapping[str, Handler]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = length.total_seconds()
        self._ends = self._loop.time() + self._seconds
        self._engine = engine
        self._handlers = handlers
        self._expected: dict[str, float] = {}
        self._measured = float("-inf")
        self._full = False
        self._begun = False

    @property
    def left(self) -> float:
        """Seconds until running attempts are released."""
        return max(0.0, self._ends - self._loop.time())

    async def allowance(self, queue: str) -> int:
        """How many jobs a claim may ask for, so that they will probably finish in the time left."""
        if self.left <= 0:
            self._full = True
            return 0
        await self._measure(queue)
        fits = {
            handler.kind: self._fits(handler.kind)
            for handler in self._handlers.values()
            if handler.queue == queue
        }
        if not all(fits.values()):
            next_kind = self._engine.drive.next_kind
            # One at a time, and only if the next kind is one that fits: no job is overtaken.
            kind = await next_kind(queue, list(self._handlers)) if any(fits.values()) else ""
            # None: the next job has waited for its time, and only the claim will see it.
            self._full = kind is not None and not fits.get(kind, False)
            return 0 if self._full else 1
        self._full = False
        return BATCH

    async def run(self, claims: Claims, attempts: OpenAttempts) -> End:
        """Run until no job is due, no job can start before others act, or the time is over."""
        [queue] = claims.queues
        wake_up = attempts.wake_up(queue)
        tries = 0
        while not claims.stopped and self.left > 0:
            wake_up.clear()
            begun = attempts.seen
            try:
                more = await claims.claim(queue)
                self._begun = self._begun or attempts.seen > 0
                if more or attempts.seen > begun:
                    tries = 0
                    continue
                if not attempts and (end := await self._end(queue)):
                    return end
                tries = 0
            except DATABASE_UNAVAILABLE as error:
                _log.info("no claim: %s", error_location(error))
                tries += 1
                await wait_before_reconnect(tries)
                continue
            await wake_up.wait(min(REST_SECONDS, self.left))
        return "time"

    async def _end(self, queue: str) -> End | None:
        """Return why to leave, when a claim has brought no jobs and nothing runs here."""
        state = await self._engine.drive.state(queue, list(self._handlers))
        if state.due == 0 and state.soon is not None and state.soon <= min(SOON_SECONDS, self.left):
            return None
        if state.due == 0:
            # A worker that died may have left jobs to recover: upkeep, which runs beside, does so
            # soon.
            return None if await self._engine.upkeep.any_lease_expired() else "idle"
        if state.held:
            return "held"
        return "time" if self._full else None

    async def _measure(self, queue: str) -> None:
        if self._loop.time() - self._measured < MEASURE_SECONDS:
            return
        self._measured = self._loop.time()
        kinds = await self._engine.drive.expected(queue)
        if any(kind.seconds is None for kind in kinds):
            self._measured = float("-inf")  # as soon as something has finished, more is known
        self._expected = {
            kind.kind: min(kind.timeout, UNKNOWN * self._seconds)
            if kind.seconds is None
            else kind.seconds
            for kind in kinds
        }

    def _fits(self, kind: str) -> bool:
        left = self.left
        # A run that has not started any job may still start one: it only took a while to get there.
        beginning = BEGINNING if self._begun else UNKNOWN
        if left >= beginning * self._seconds or self._handlers[kind].hands_over:
            return True
        return self._expected.get(kind, UNKNOWN * self._seconds) <= left


async def run_until_idle(
    engine: Engine, claims: Claims, attempts: OpenAttempts, keeper: UpkeepLoop
) -> None:
    """Run due jobs, and the jobs that become due by that, until there are none."""
    upkeep = engine.upkeep
    judged, tries = False, 0
    while not claims.stopped:
        try:
            if await _anything_due(claims, attempts):
                continue
            if judged or not await upkeep.any_lease_expired():
                break
            await asyncio.sleep(GRACE.total_seconds())
            await keeper.recover(upkeep)
            judged = True
        except DATABASE_UNAVAILABLE as error:
            _log.info("no claim: %s", error_location(error))
            tries += 1
            await wait_before_reconnect(tries)


async def _anything_due(claims: Claims, attempts: OpenAttempts) -> bool:
    """Start due jobs; False when there were none and nothing runs."""
    attempts.settled.clear()
    # Read before the claims: a job that finishes during them may have submitted another one.
    idle = not attempts
    begun = attempts.seen
    for queue in claims.queues:
        while await claims.claim(queue) and not claims.stopped:
            pass
    if attempts.seen == begun and not idle:
        with suppress(TimeoutError):
            await asyncio.wait_for(attempts.settled.wait(), _IDLE_SECONDS)
    return attempts.seen > begun or not idle


async def run_only(engine: Engine, claims: Claims, attempts: OpenAttempts, job: UUID) -> None:
    """Run one job as soon as its limits allow; return also when another worker runs it."""
    [queue] = claims.queues
    loop = asyncio.get_running_loop()
    ends = loop.time() + TURN_SECONDS
    while not claims.stopped and loop.time() < ends:
        try:
            await claims.claim(queue, job)
            if attempts or attempts.processed:
                break
            seen = await engine.jobs.read(job)
            # The caller does not wait for a provider to come back either: a worker runs the job
            # then.
            if seen.status != JobStatus.QUEUED or seen.waiting_for in _STOPPED:
                break
        except DATABASE_UNAVAILABLE as error:
            _log.info("no claim: %s", error_location(error))
        await asyncio.sleep(_TURN_POLL_SECONDS)
