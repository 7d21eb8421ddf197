"""Claiming: a loop for each queue asks for as many jobs as there are free slots."""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol
from uuid import UUID

from penstock.base.error_location import error_location
from penstock.db.connections.listener import DATABASE_UNAVAILABLE, wait_before_reconnect
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Claimed
from penstock.errors import Conflict
from penstock.models.handlers.handler import Handler, Mode
from penstock.worker.attempts.open_attempts import OpenAttempts
from penstock.worker.attempts.slots import Slots
from penstock.worker.execution.runner import Runner
from penstock.worker.membership.registration import Registration

# Jobs per claim: 200 to 500 are quickest; 1,000 take so long that nothing overlaps any more.
BATCH = 250
# If this many outcomes wait to be written, the worker claims no more.
BACKLOG = 2_000
_FREE_SECONDS = 0.1

_log = logging.getLogger("penstock.worker")

StopReason = Literal["stopped", "max_jobs", "recycle"]


class Bounds(Protocol):
    """Limits which jobs may start: see bounded_run.py."""

    async def allowance(self, queue: str) -> int:
        """How many jobs of this queue a claim may ask for now."""


@dataclass(frozen=True, slots=True)
class _ClaimResult:
    """The jobs of one claim. `more`: it filled all free slots, or there was no free slot."""

    jobs: list[Claimed]
    worker: int
    more: bool


class Claims:
    def __init__(  # noqa: PLR0913  # the parts of a worker that it uses
        self,
        engine: Engine,
        registration: Registration,
        attempts: OpenAttempts,
        runner: Runner,
        *,
        slots: Slots,
        handlers: Mapping[str, Handler],
        modes: Mapping[str, tuple[Mode, ...]],
        max_jobs: int | None,
        recycle_after: int | None,
        bounds: Bounds | None = None,
    ) -> None:
        """`modes`: the handlers' modes of each queue."""
        self._engine = engine
        self._registration = registration
        self._attempts = attempts
        self._runner = runner
        self._outcomes = runner.outcomes
        self._slots = slots
        self._handlers = handlers
        self._modes = modes
        self._bounds = bounds
        self._stopped = asyncio.Event()
        self._next_claims: dict[str, asyncio.Task[_ClaimResult]] = {}
        self._claim_began: dict[str, float] = {}
        self._release = False
        self._limit_reason: StopReason = "recycle" if max_jobs is None else "max_jobs"
        self.left = recycle_after if max_jobs is None else max_jobs
        """How many jobs may still start; None: no limit."""
        self.reason: StopReason | None = None
        """Why the worker claims no more."""
        self.released = 0
        """How many attempts were returned to the queue as soon as they were claimed."""

    @property
    def queues(self) -> list[str]:
        return list(self._modes)

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def accepting(self) -> list[str]:
        """Queues of which one more job would be accepted now. May be read from another thread.

        A claim under way occupies the slots that it asks for; here they count as free.
        """
        if (
            self.stopped
            or self.left == 0
            or self._bounds is not None
            or self._outcomes.backlog >= BACKLOG
        ):
            return []
        return [
            queue
            for queue, modes in self._modes.items()
            if queue in self._claim_began or self._slots.least_free(modes) > 0
        ]

    def stop(self, reason: StopReason = "stopped") -> None:
        """Claim no more. The first reason counts.

        Claims under way are finished first, since their jobs must not be forgotten. If `reason` is
        `stopped`, those jobs are released at once; otherwise they run.
        """
        self._release = self._release or reason == "stopped"
        self.reason = self.reason or reason
        self._stopped.set()
        self._attempts.wake()

    @property
    def waited(self) -> float:
        """For how many seconds the longest claim under way has waited for its answer."""
        now = asyncio.get_running_loop().time()
        return max((now - began for began in self._claim_began.values()), default=0.0)

    async def serve(self, poll: timedelta) -> None:
        """Claim until stopped."""
        await asyncio.gather(*(self._serve(queue, poll.total_seconds()) for queue in self._modes))

    async def _serve(self, queue: str, poll_seconds: float) -> None:
        wake_up = self._attempts.wake_up(queue)
        tries = 0
        while not self.stopped:
            wake_up.clear()
            try:
                more = await self.claim(queue)
                tries = 0
            except DATABASE_UNAVAILABLE as error:
                _log.info("no claim from queue %s: %s", queue, error_location(error))
                tries += 1
                await wait_before_reconnect(tries)
                continue
            except Exception as error:  # noqa: BLE001  # whatever the error is, the worker goes on
                _log.warning("no claim from queue %s: %s", queue, error_location(error))
                more = False
            if not more:
                await wake_up.wait(poll_seconds * random.uniform(0.8, 1.2))  # noqa: S311  # no secret

    async def claim(self, queue: str, job: UUID | None = None) -> bool:
        """Start due jobs in the free slots; whether there may be more."""
        next_claim = self._next_claims.pop(queue, None)
        result = await (next_claim or self._take(queue, job))
        if result.more and job is None and not self.stopped:
            # The next claim is under way while these jobs start. It takes two turns of the loop: in
            # the first its task runs, and at the end of that its query is sent.
            self._next_claims[queue] = asyncio.create_task(self._take(queue))
            for _ in range(2):
                await asyncio.sleep(0)
        self._attempts.claimed(queue, len(result.jobs))
        self._begin(result)
        return result.more

    def _begin(self, result: _ClaimResult) -> None:
        for job in result.jobs:
            release = self._release or self._registration.worker != result.worker
            self.released += release
            self._runner.begin(job, result.worker, release=release)
        # Not while another claim is under way, which may return a part of the number it took.
        if result.jobs and self.left == 0 and not self._claim_began:
            self.stop(self._limit_reason)

    async def finish(self) -> None:
        """Start the jobs of the claims under way; a worker that was stopped releases them."""
        claims, self._next_claims = self._next_claims, {}
        for result in await asyncio.gather(*claims.values(), return_exceptions=True):
            if isinstance(result, _ClaimResult):
                self._begin(result)
            else:
                _log.info("a last claim failed: %s", error_location(result))

    async def _take(self, queue: str, job: UUID | None = None) -> _ClaimResult:
        modes = self._modes[queue]
        most = BATCH if self.left is None else min(BATCH, self.left)
        if self._bounds is not None and most:
            most = min(most, await self._bounds.allowance(queue))
            if most == 0:
                return _ClaimResult([], 0, more=False)
        free = self._slots.take(modes, most) if self._outcomes.backlog < BACKLOG else 0
        if free == 0:
            if self.left != 0:
                await self._free_slot()
            return _ClaimResult([], 0, more=self.left != 0)
        # Before the await: the loops of several queues share the number.
        self._count(-free)
        jobs: list[Claimed] = []
        worker = 0
        loop = asyncio.get_running_loop()
        self._claim_began[queue] = loop.time()
        try:
            worker = await self._registration.identity(unless=self._stopped)
            if worker == 0:
                return _ClaimResult([], 0, more=False)
            jobs = await self._engine.jobs.claim(worker, queue, free, job=job)
        except Conflict as error:
            if error.code != "worker_lost":
                raise
            self._registration.lose(worker)
        finally:
            self._claim_began.pop(queue, None)
            self._return_unused(modes, free, jobs)
            self._count(free - len(jobs))
        return _ClaimResult(jobs, worker, more=len(jobs) == free)

    def _count(self, n: int) -> None:
        if self.left is not None:
            self.left += n

    def _return_unused(self, modes: Sequence[Mode], taken: int, jobs: Sequence[Claimed]) -> None:
        """Release unused slots. They were taken in every mode; a job uses one, in its own mode."""
        used = dict.fromkeys(modes, 0)
        for job in jobs:
            mode = self._handlers[job.kind].mode
            if mode in used:
                used[mode] += 1
            else:
                # Its kind was formerly declared in this queue: no slot was taken in its mode.
                self._slots.overdraw(mode)
        for mode in modes:
            self._slots.release(mode, taken - used[mode])

    async def _free_slot(self) -> None:
        """Wait for a free slot, or for outcomes to be written; briefly, so that it can stop."""
        try:
            await asyncio.wait_for(self._slots.freed(), _FREE_SECONDS)
        except TimeoutError:
            return
