"""Compares the server's clock with a monotonic one, which nobody can set.

Leases and deadlines are times of the server's clock. If that clock is set, or stood still with its
machine, all of them would be over at once, or last for hours longer. So upkeep compares both clocks
before each pass.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from penstock.engine.maintenance import Upkeep

# After the server comes back, live workers need a moment to reconnect.
GRACE_SECONDS = 3.0
# A larger difference means that a clock was set; leases have room for a smaller one.
STEP_SECONDS = 2.0
# How far two sound clocks drift apart per second, at most: over an outage of hours that adds up.
DRIFT = 0.001
# Within this time after a clock jump, all live workers have sent a heartbeat.
CALM_SECONDS = 6.0
# A session that got no answer for so long may have been cut off with others: the server ends
# sessions of unreachable hosts after 1.5 s. The limit holds for some time only: on a machine that
# is always so slow, leases have to expire, too.
SILENT_SECONDS = 1.25
PATIENCE_SECONDS = 10.0

_log = logging.getLogger("penstock.upkeep")

OnForward = Callable[[timedelta, datetime], Awaitable[object]]
"""Called with the length of the jump, and a time between what began before and after it."""


class ServerClock:
    """Expires no leases on a new session, after a stall, or right after a clock jump."""

    def __init__(self, on_forward: OnForward | None = None) -> None:
        self._on_forward = on_forward
        self._judge_at = self._mend_until = self._judged_at = 0.0
        self._last: tuple[float, datetime, float] | None = None

    def begin_session(self) -> None:
        self._judge_at = max(self._judge_at, time.monotonic() + GRACE_SECONDS)

    async def may_judge(self, upkeep: Upkeep) -> bool:
        """Compare both clocks; whether deadlines of the server's clock may be enforced."""
        asked = time.monotonic()
        now = await upkeep.server_time()
        heard = time.monotonic()
        before = self._last
        if before is not None:
            # Each reading happened at some moment between its question and its answer.
            least, most = asked - before[2], heard - before[0]
            passed = (now - before[1]).total_seconds()
            slack = STEP_SECONDS + DRIFT * most
            if passed > most + slack:
                # What began since the last reading began before the jump, or well after this
                # moment.
                latest = before[1] + timedelta(seconds=most + STEP_SECONDS / 2)
                await self._go_forward(passed - least, latest)
            elif passed < least - slack:
                self._go_back(least - passed)
            if heard - before[2] > SILENT_SECONDS and heard < self._judged_at + PATIENCE_SECONDS:
                self._judge_at = max(self._judge_at, heard + GRACE_SECONDS)
        # Not earlier: if `on_forward` failed, the next reading has to find the jump again.
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
