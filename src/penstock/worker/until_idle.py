"""Workers that leave by themselves: nothing is due, or the one job they are for is done."""

import asyncio
import logging
from contextlib import suppress
from uuid import UUID

from penstock.base.error_place import error_place
from penstock.db.connections.listener import AWAY, back_soon
from penstock.engine.engine import Engine
from penstock.engine.states import JobStatus
from penstock.worker.attempts.open_attempts import OpenAttempts
from penstock.worker.claiming.claims import Claims
from penstock.worker.maintenance.upkeep import GRACE, Keeper

# How long the caller of an inline job waits for its turn; then a worker has to run it.
TURN_SECONDS = 30.0
_IDLE_SECONDS = 0.2
_TURN_LOOK_SECONDS = 0.05
_AWAY = ("circuit_open", "paused")

_log = logging.getLogger("penstock.worker")


async def run_until_idle(
    engine: Engine, claims: Claims, attempts: OpenAttempts, keeper: Keeper
) -> None:
    """Run what is due, and what becomes due by that, until there is nothing."""
    upkeep = engine.upkeep
    judged, tries = False, 0
    while not claims.stopped:
        try:
            if await _anything_due(claims, attempts):
                continue
            if judged or not await upkeep.anyone_silent():
                break
            await asyncio.sleep(GRACE.total_seconds())
            await keeper.recover(upkeep)
            judged = True
        except AWAY as error:
            _log.info("no claim: %s", error_place(error))
            tries += 1
            await back_soon(tries)


async def _anything_due(claims: Claims, attempts: OpenAttempts) -> bool:
    """Begin what is due; False when nothing was and nothing runs."""
    attempts.settled.clear()
    # As it is before the claims: a job that ends meanwhile may have submitted another one.
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
    """Run one job as soon as its limits allow; if somebody else does, that is well too."""
    [queue] = claims.queues
    loop = asyncio.get_running_loop()
    ends = loop.time() + TURN_SECONDS
    while not claims.stopped and loop.time() < ends:
        try:
            await claims.claim(queue, job)
            if attempts or attempts.processed:
                break
            seen = await engine.jobs.read(job)
            # Nor does the caller wait for a provider to come back: a worker runs it then.
            if seen.status != JobStatus.QUEUED or seen.waiting_for in _AWAY:
                break
        except AWAY as error:
            _log.info("no claim: %s", error_place(error))
        await asyncio.sleep(_TURN_LOOK_SECONDS)
