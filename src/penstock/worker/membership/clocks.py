"""The server's clock beside one that nobody can set.

Leases and deadlines are moments of the server's clock. Where that is set, or stood still with its
machine, all of them would be over at once, or last for hours more; so upkeep looks at both before
each pass.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from penstock.engine.maintenance import Upkeep

# A server that has just come back: workers that live need a moment to be back too.
GRACE_SECONDS = 3.0
# So far apart they are set; what is less, leases have room for.
STEP_SECONDS = 2.0
# What two sound clocks part in a second, at most: over an outage of hours that adds up.
DRIFT = 0.001
# After a step everybody who lives has beaten within this.
CALM_SECONDS = 6.0
# Who was not answered for so long may have been cut off with others: sessions of hosts that nobody
# hears end after 1.5 s. For some time: on a machine that is always so slow, somebody has to judge.
SILENT_SECONDS = 1.25
PATIENCE_SECONDS = 10.0

_log = logging.getLogger("penstock.upkeep")

OnForward = Callable[[timedelta, datetime], Awaitable[object]]
"""Told by how much, and a moment that parts what began before from what began after."""


class ServerClock:
    """From a young session, after a silence, and just after a step, nobody is judged."""

    def __init__(self, on_forward: OnForward | None = None) -> None:
        self._on_forward = on_forward
        self._judge_at = self._mend_until = self._judged_at = 0.0
        self._last: tuple[float, datetime, float] | None = None

    def begin_session(self) -> None:
        self._judge_at = max(self._judge_at, time.monotonic() + GRACE_SECONDS)

    async def may_judge(self, upkeep: Upkeep) -> bool:
        """Look at both clocks; whether what is over by the server's is over."""
        asked = time.monotonic()
        now = await upkeep.server_time()
        heard = time.monotonic()
        before = self._last
        if before is not None:
            # Each look was at some moment between its question and its answer.
            least, most = asked - before[2], heard - before[0]
            passed = (now - before[1]).total_seconds()
            slack = STEP_SECONDS + DRIFT * most
            if passed > most + slack:
                # What began since the last look began before the step, or well after this moment.
                latest = before[1] + timedelta(seconds=most + STEP_SECONDS / 2)
                await self._go_forward(passed - least, latest)
            elif passed < least - slack:
                self._go_back(least - passed)
            if heard - before[2] > SILENT_SECONDS and heard < self._judged_at + PATIENCE_SECONDS:
                self._judge_at = max(self._judge_at, heard + GRACE_SECONDS)
        # Not before: a step of which nobody could be told is one at the next look, too.
        self._last = asked, now, heard
        if time.monotonic() < self._mend_until:
            await upkeep.clock_went_back()
        may = time.monotonic() >= self._judge_at
        if may:
            self._judged_at = heard
        return may

    async def _go_forward(self, seconds: float, before: datetime) -> None:
        self._judge_at = time.monotonic() + CALM_SECONDS
        _log.warning("the server's clock went forward by %.1f s: was it set?", seconds)
        if self._on_forward is not None:
            await self._on_forward(timedelta(seconds=seconds), before)

    def _go_back(self, seconds: float) -> None:
        self._judge_at = self._mend_until = time.monotonic() + CALM_SECONDS
        _log.warning("the server's clock went back by %.1f s: was it set?", seconds)
