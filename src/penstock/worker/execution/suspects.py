"""Attempts that must not run beside others: of jobs that may kill workers, or block their loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.models.handlers.exceptions import Snooze
from penstock.worker.attempts.attempt import Attempt, until_available
from penstock.worker.attempts.slots import Slots

# Lost so often in company that it may be what kills workers: it runs as the only one of its sort.
SUSPECT_LOSSES = 2
# How long it waits for its turn here, and how long it waits in the queue when that did not come.
SUSPECT_SECONDS = 2.0
_SUSPECT_PAUSE = "5s"
# Longer: another suspect that waits for its turn holds a slot of the loop, and must give up first.
WHOLE_LOOP_SECONDS = 3.0
MOST_PAUSES = 20
_POLL_SECONDS = 0.01


class Suspects:
    """Has suspect jobs run one after the other, and those that block loops alone in the loop."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def isolated(self, attempt: Attempt) -> AsyncIterator[None]:
        async with self._suspect_turn(attempt), self._whole_loop(attempt):
            yield

    @asynccontextmanager
    async def _whole_loop(self, attempt: Attempt) -> AsyncIterator[None]:
        """For a job that has blocked a loop: take all slots of the loop, and so run alone there.

        After MOST_PAUSES, two to three minutes, it starts beside the others all the same: a worker
        that is never idle must not keep it for ever.
        """
        mode = attempt.handler.mode
        workers = attempt.progress.engine.workers
        if mode != "async" or not await until_available(
            lambda: workers.blocks_loops(attempt.claimed.id)
        ):
            yield
            return
        loop = asyncio.get_running_loop()
        # Its own time runs meanwhile, and must not be over before it has begun.
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
            self._slots.give(mode, taken)

    @asynccontextmanager
    async def _suspect_turn(self, attempt: Attempt) -> AsyncIterator[None]:
        """One suspect after the other; behind a long one, the others pause."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SUSPECT_SECONDS
        try:
            async with asyncio.timeout_at(until):
                await self._turn.acquire()
        except TimeoutError:
            raise Snooze(_SUSPECT_PAUSE) from None
        try:
            claimed, workers = attempt.claimed, attempt.progress.engine.workers
            # The one before has ended here, but the database may not know yet.
            while not await until_available(
                lambda: workers.mark_only_suspect(attempt.worker, claimed.id, claimed.attempt)
            ):
                if loop.time() >= until:
                    raise Snooze(_SUSPECT_PAUSE)
                await asyncio.sleep(_POLL_SECONDS)
            yield
        finally:
            self._turn.release()
