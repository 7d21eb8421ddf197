"""Attempts that must not run beside others: jobs that may kill workers, or block their loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.models.handlers.exceptions import Snooze
from penstock.worker.attempts.attempt import Attempt, until_available
from penstock.worker.attempts.slots import Slots

# After this many losses together with other jobs, a job may be what kills workers: it runs as the
# only suspect.
SUSPECT_LOSSES = 2
# How long a suspect waits here, and how long it then waits in the queue if it could not start.
SUSPECT_SECONDS = 2.0
_SUSPECT_PAUSE = "5s"
# Longer: another suspect that waits here has a slot of the loop, and must give up first.
WHOLE_LOOP_SECONDS = 3.0
MOST_PAUSES = 20
_POLL_SECONDS = 0.01


class Suspects:
    """Runs suspect jobs one after the other, and those that block loops alone in the loop."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def isolated(self, attempt: Attempt) -> AsyncIterator[None]:
        async with self._suspect_turn(attempt), self._whole_loop(attempt):
            yield

    @asynccontextmanager
    async def _whole_loop(self, attempt: Attempt) -> AsyncIterator[None]:
        """For a job that has blocked a loop: take all slots of the loop, so that it runs alone.

        After MOST_PAUSES, two to three minutes, it starts beside others anyway: a worker that is
        never idle must not delay it for ever.
        """
        mode = attempt.handler.mode
        workers = attempt.progress.engine.workers
        if mode != "async" or not await until_available(
            lambda: workers.blocks_loops(attempt.claimed.id)
        ):
            yield
            return
        loop = asyncio.get_running_loop()
        # Its own time-out runs already, and must not be over before the handler starts.
        until = loop.time() + min(WHOLE_LOOP_SECONDS, attempt.claimed.timeout_seconds / 2)
        taken, others = 0, self._slots.total(mode) - 1
        try:
            while (taken := taken + self._slots.take([mode], others - taken)) < others:
                if loop.time() >= until:
                    if attempt.claimed.attempt - attempt.claimed.failures <= MOST_PAUSES:
                        raise Snooze(_SUSPECT_PAUSE)
                    break
                await asyncio.sleep(_POLL_SECONDS)
            yield
        finally:
            self._slots.release(mode, taken)

    @asynccontextmanager
    async def _suspect_turn(self, attempt: Attempt) -> AsyncIterator[None]:
        """Run one suspect after the other; behind a long one, the others go back to the queue."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SUSPECT_SECONDS
        try:
            async with asyncio.timeout_at(until):
                await self._turn.acquire()
        except TimeoutError:
            raise Snooze(_SUSPECT_PAUSE) from None
        try:
            claimed, workers = attempt.claimed, attempt.progress.engine.workers
            # The one before has returned here, but the database may not know yet.
            while not await until_available(
                lambda: workers.mark_only_suspect(attempt.worker, claimed.id, claimed.attempt)
            ):
                if loop.time() >= until:
                    raise Snooze(_SUSPECT_PAUSE)
                await asyncio.sleep(_POLL_SECONDS)
            yield
        finally:
            self._turn.release()
