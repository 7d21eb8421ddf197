"""Upkeep, in every worker: there is no leader to lose. One at a time does it, by a try-lock."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg

from penstock.db.call import fetching
from penstock.db.listen import back_soon, open_session
from penstock.engine.upkeep import Upkeep
from penstock.errors import PenstockError
from penstock.states import JobStatus
from penstock.worker.outcomes import whereabouts

PASS_SECONDS = 0.5
# A server that has just come back: workers that live need a moment to be back too.
GRACE = timedelta(seconds=3)
# A little more than the database asks for between two, or every second one would come too soon.
MEASURE_SECONDS = 1.25
ROLL_UP_SECONDS = 10.0
TIDY_SECONDS = 300.0
RECONCILE_SECONDS = 3_600.0
RECOVER_LIMIT = 500
_ANSWER_SECONDS = 30.0
# Passes without a rest while there is more to do.
_PASSES_AT_ONCE = 100

_log = logging.getLogger("penstock.upkeep")


class Keeper:
    """One session of its own, since it judges nobody from a young one."""

    def __init__(self, dsn: str, on_recovered: Callable[[], Awaitable[None]]) -> None:
        self._dsn = dsn
        self._on_recovered = on_recovered

    async def run(self) -> None:
        """For ever, over outages: recover often, tidy now and then, reconcile rarely."""
        tries = 0
        measure_at = roll_up_at = tidy_at = 0.0
        reconcile_at = _after(RECONCILE_SECONDS)
        while True:
            conn: asyncpg.Connection | None = None
            try:
                conn = await open_session(self._dsn, name="penstock upkeep")
                upkeep = Upkeep(fetching(conn))
                while True:
                    await self.recover(upkeep)
                    if time.monotonic() >= measure_at:
                        measure_at = _after(MEASURE_SECONDS)
                        await upkeep.measure_waits()
                    if time.monotonic() >= roll_up_at:
                        # A step at a time: what was missed for long must not delay a recovery.
                        more = await upkeep.roll_up(steps=1)
                        roll_up_at = 0.0 if more else _after(ROLL_UP_SECONDS)
                    if time.monotonic() >= tidy_at:
                        tidy_at = _after(TIDY_SECONDS)
                        await tidy(upkeep)
                    if time.monotonic() >= reconcile_at:
                        reconcile_at = _after(RECONCILE_SECONDS)
                        await _reconcile(upkeep)
                    tries = 0
                    await asyncio.sleep(_after(PASS_SECONDS) - time.monotonic())
            except (PenstockError, TimeoutError, OSError, asyncpg.PostgresError) as error:
                _log.info("upkeep rests: %s", whereabouts(error))
                tries += 1
                await back_soon(tries)
            finally:
                if conn is not None:
                    conn.terminate()

    async def recover(self, upkeep: Upkeep, *, grace: timedelta = GRACE, judge: bool = True) -> int:
        """Settle what nobody ends; how many jobs that were."""
        settled = 0
        for _ in range(_PASSES_AT_ONCE):
            async with asyncio.timeout(_ANSWER_SECONDS):
                found = await upkeep.recover(
                    limit=RECOVER_LIMIT, grace=grace, alone=True, judge=judge
                )
            done = [one for one in found if one.verdict == "done"]
            settled += len(done)
            for one in done:
                _log.info("recovered", extra={"job": one.job_id, "outcome": one.outcome})
            lost = sum(one.outcome in ("lost", "lost_with_others") for one in done)
            if lost:
                _log.warning("a worker was lost: %d of its jobs were settled", lost)
            if any(one.status == JobStatus.QUEUED for one in done):
                await self._on_recovered()
            if len(done) < len(found) or len(found) < RECOVER_LIMIT:
                break
        return settled


async def tidy(upkeep: Upkeep) -> None:
    """Partitions for the coming days, figures by the hour, what retention no longer keeps."""
    await upkeep.make_partitions()
    await upkeep.roll_up()
    await upkeep.prune()
    await upkeep.sweep_uploads()


async def _reconcile(upkeep: Upkeep) -> None:
    """Reads every live job: a second at a million, so once in a while."""
    for repair in await upkeep.reconcile():
        _log.error("a counter was wrong and was repaired: %s", repair)


def _after(seconds: float) -> float:
    """When it is due next; never all workers at the same moment."""
    return time.monotonic() + seconds * random.uniform(0.8, 1.2)  # noqa: S311  # no secret
