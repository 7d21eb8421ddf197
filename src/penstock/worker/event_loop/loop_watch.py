"""Watches whether the worker's event loop is blocked: by whom, for how long, who loses time.

The loop notes the time at each tick, and the heartbeat's thread reads it. While the loop stands
still, the thread samples its stack repeatedly: an attempt that is in every sample blocks the loop.
If the loop is only slow, on a busy machine, the samples show different attempts, and none is named.
None is named either when the whole process was stopped, since this thread stood still, too.
"""

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from penstock.engine.workers import Blocker
from penstock.worker.event_loop.loop_stack import location_of

# How often the loop notes the time, and the thread reads it. Both cost microseconds.
TICK_SECONDS = 0.25
# After this time the thread samples the stack: several times before anything is reported.
SAMPLE_SECONDS = 0.75
# After this time the loop counts as blocked. Shorter pauses are usual on a busy machine, and do no
# harm: the database waits five seconds longer than a time-out.
BLOCKED_SECONDS = 1.5
# The same location is logged at most this often.
LOG_SECONDS = 60.0
REPORTED_SECONDS = 3.0
_REPORT_POLL_SECONDS = 0.05

_log = logging.getLogger("penstock.worker")

Key = tuple[UUID, int]
"""Job and attempt."""


NO_BLOCKER = Blocker(None)


@dataclass(slots=True)
class Standstill:
    """A period in which the loop stood still."""

    began: float
    number: int = 0
    seconds: float = 0.0
    over: bool = False
    blocker: Blocker = NO_BLOCKER
    samples: int = 0
    running: frozenset[Key] = field(default_factory=frozenset)
    """The attempts that the worker was running when the loop went on."""

    @property
    def lasts(self) -> float:
        return self.seconds if self.over else time.monotonic() - self.began

    @property
    def named(self) -> Blocker:
        """The attempt that was in all samples; a single sample proves nothing."""
        return self.blocker if self.samples > 1 else NO_BLOCKER

    def add(self, seen: Blocker, *, certain: bool) -> None:
        if self.samples and seen.key != self.blocker.key:
            seen = NO_BLOCKER
        self.blocker = seen
        self.samples += 2 if certain else 1


class Watched(Protocol):
    """The attempts that run in the loop."""

    def attempt_of(self, task: "asyncio.Task[object]") -> tuple[Key, str] | None:
        """The attempt that a task belongs to, and its kind. Called by the thread."""

    def lose_time(self, seconds: float, blocker: Key | None) -> frozenset[Key]:
        """The loop goes on: give the other attempts that time back; return all running ones."""

    def keep_owned(self, worker: int, had: frozenset[Key], owns: frozenset[Key]) -> None:
        """Of the attempts it had when the loop went on, the worker still owns `owns`."""


class LoopWatch:
    """In the loop: `measure`. In the thread: `sample`, `reports`, `reported`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._watched: Watched | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._at = self._sampled = time.monotonic()
        self._used = time.process_time()
        self._now: Standstill | None = None
        self._over: deque[Standstill] = deque()
        self._numbers = 0
        self._logged: dict[str, float] = {}
        self.lost = 0.0
        """Total seconds in which the loop stood still."""

    def watch(self, watched: Watched) -> None:
        self._watched = watched

    def start(self) -> None:
        self.measure()
        self._timer = self._loop.call_later(TICK_SECONDS, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def measure(self) -> None:
        """Note that the loop goes on. Also called before anything that compares with the clock."""
        began, self._at = self._at, time.monotonic()
        seconds = self._at - began
        if seconds < BLOCKED_SECONDS:
            return
        self.lost += seconds
        now = self._now
        standstill = now if now is not None and now.began == began else Standstill(began)
        standstill.seconds = seconds
        if self._watched is not None:
            standstill.running = self._watched.lose_time(seconds, standstill.named.key)
        standstill.over = True
        self._log_over(standstill)
        self._over.append(standstill)

    async def all_reported(self) -> None:
        """Wait, for a limited time, until the database knows of all standstills."""
        self.measure()
        until = time.monotonic() + REPORTED_SECONDS
        while self._over and time.monotonic() < until:  # noqa: ASYNC110  # of another thread
            await asyncio.sleep(_REPORT_POLL_SECONDS)

    # --- in the heartbeat's thread ---------------------------------------------------------------

    def sample(self) -> bool:
        """Sample the loop; whether there is something to report at once."""
        now, used = time.monotonic(), time.process_time()
        late, worked = now - self._sampled - TICK_SECONDS, used - self._used
        self._sampled, self._used = now, used
        began = self._at
        if now - began < SAMPLE_SECONDS:
            return bool(self._over)
        hogged = late > SAMPLE_SECONDS
        if hogged and worked < late / 2:
            return False  # the process was stopped, or got no CPU time: no attempt blocks
        current = self._now
        if current is None or current.began != began:
            self._now = current = Standstill(began)
        before = current.seconds
        # Code that keeps the interpreter lock kept this thread from sampling, and still runs.
        current.add(self._seen(), certain=hogged)
        if not current.over:
            current.seconds = now - began
        begins = before < BLOCKED_SECONDS <= current.seconds
        if begins:
            self._log_begun(current)
        return begins or bool(self._over)

    def reports(self) -> list[Standstill]:
        """What to report to the database: all finished standstills, then a lasting one."""
        standstills = list(self._over)
        current = self._now
        if (
            current is not None
            and not current.over
            and current.began == self._at
            and current.seconds >= BLOCKED_SECONDS
        ):
            standstills.append(current)
        for standstill in standstills:
            if standstill.number == 0:
                self._numbers += 1
                standstill.number = self._numbers
        return standstills

    def reported(self, standstill: Standstill, worker: int, owns: frozenset[Key]) -> None:
        """The database knows that this standstill is over, and the worker owns these attempts."""
        self._over.remove(standstill)
        if self._watched is not None:
            self._loop.call_soon_threadsafe(
                self._watched.keep_owned, worker, standstill.running, owns
            )

    def _seen(self) -> Blocker:
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001  # there is no other way
        task = asyncio.current_task(self._loop)
        if frame is None:
            return NO_BLOCKER
        attempt = None
        if task is not None and self._watched is not None:
            attempt = self._watched.attempt_of(task)
        location = location_of(frame, None if task is None else task.get_coro())
        return Blocker(location, *attempt) if attempt else Blocker(location)

    def _log_begun(self, standstill: Standstill) -> None:
        blocker = standstill.named
        if blocker.key is not None and self._is_new(blocker):
            _log.warning(
                "the handler of kind %s blocks the event loop, at %s: no other job of this worker"
                " goes on. Await something there, move the work to `asyncio.to_thread`, or make"
                " the handler a plain `def`.",
                blocker.kind,
                blocker.location,
                extra=_of(blocker),
            )

    def _log_over(self, standstill: Standstill) -> None:
        blocker = standstill.named
        if blocker.key is not None:
            _log.warning(
                "the handler of kind %s blocked the event loop for %.1f s, at %s",
                blocker.kind,
                standstill.seconds,
                blocker.location,
                extra=_of(blocker),
            )
        else:
            _log.info(
                "the event loop stood still for %.1f s%s; no job was seen to block it",
                standstill.seconds,
                f", at {blocker.location}" if blocker.location else "",
            )

    def _is_new(self, blocker: Blocker) -> bool:
        now = time.monotonic()
        key = f"{blocker.kind} {blocker.location}"
        if now - self._logged.get(key, -LOG_SECONDS) < LOG_SECONDS:
            return False
        self._logged = {p: at for p, at in self._logged.items() if now - at < LOG_SECONDS}
        self._logged[key] = now
        return True


def _of(blocker: Blocker) -> dict[str, object]:
    assert blocker.key is not None  # noqa: S101  # named
    job, attempt = blocker.key
    return {"job": job, "attempt": attempt, "kind": blocker.kind}
