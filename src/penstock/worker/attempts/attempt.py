"""One attempt of a job in this worker: the claimed job, its task, and why it was stopped."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Any, Literal, Protocol, TypeVar

from penstock.db.connections.listener import DATABASE_UNAVAILABLE
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import (
    Cancelled,
    Claimed,
    Error,
    Outcome,
    Released,
    Retry,
    Stuck,
    TimedOut,
)
from penstock.engine.queries.events import Notifier
from penstock.engine.states import JobStatus
from penstock.engine.uploads import Uploads
from penstock.errors import Misconfigured, NotFound
from penstock.models.handlers.exceptions import LeaseLost
from penstock.models.handlers.handler import Handler
from penstock.models.handlers.protocols import Handover, ProgressReports
from penstock.security import callback_token
from penstock.worker.attempts.threads import Threads
from penstock.worker.event_loop.loop_watch import LoopWatch

Reason = Literal["timeout", "stuck", "cancel", "lost", "stop"]

_OUTCOMES: dict[Reason | None, Outcome] = {
    "timeout": TimedOut(Error("timeout", "over its time")),
    "stuck": Stuck(Error("stalled", "no progress for too long")),
    "cancel": Cancelled(Error("cancelled", "cancelled while it ran", retryable=False)),
    "lost": Released(),
    "stop": Released(),
    None: Retry(Error("bug", "the handler cancelled itself")),
}
_WORTH_A_LINE = {"timeout": "over its time", "stuck": "no progress for too long"}

_log = logging.getLogger("penstock.worker")

# How long a handler has to return after `job.cancelled` became true.
CANCEL_SECONDS = 1.0
# After this time a handler that swallows its cancellation is cancelled again. Cleaning up may take
# this long.
_INSIST_SECONDS = 5.0
# After this many tries that found the account locked, the database waits for the lock. If many
# callers queue for one account, a try without a wait finds it locked for seconds.
IMPATIENT_TRIES = 2
LEAST_PATIENCE = timedelta(milliseconds=200)
MOST_PATIENCE = timedelta(seconds=3)
# This many times a job is released if it failed after the loop had stood still; then failures
# count.
EXCUSED_TRIES = 5
_MOMENT_SECONDS = 0.002
# The first and the longest pause before an unavailable database is called again.
UNAVAILABLE_SECONDS = (0.05, 1.0)
# How long to wait before the next try for a row that another transaction has locked.
LOCKED_SECONDS = 0.05

T = TypeVar("T")


async def until_available(call: Callable[[], Awaitable[T]]) -> T:
    """Call again and again until the database can be reached."""
    pause, longest = UNAVAILABLE_SECONDS
    while True:
        try:
            return await call()
        except DATABASE_UNAVAILABLE:
            await asyncio.sleep(pause)
            pause = min(longest, pause * 2)


class Progress(ProgressReports, Protocol):
    """The progress writer, with what all attempts of a worker share."""

    engine: Engine
    loop: asyncio.AbstractEventLoop
    watch: LoopWatch
    step_threads: Threads
    notifier: Notifier

    async def flush_reports_of(self, attempts: "Collection[Attempt]", /) -> None:
        """Write all reports now, if one of these attempts has any."""


class Attempt:
    """One execution of a job, from its claim until its outcome is written.

    All of it belongs to the worker's loop, except `in_loop` and `wait_for`.
    """

    __slots__ = (
        "begun",
        "blocked",
        "cancelled",
        "claimed",
        "due",
        "excused_until",
        "handler",
        "keeps_slot",
        "lock_misses",
        "progress",
        "progressed",
        "reason",
        "refusals",
        "returned",
        "seq",
        "steps",
        "steps_read",
        "task",
        "threads",
        "timer",
        "token",
        "units",
        "usage",
        "watched",
        "worker",
    )

    def __init__(self, claimed: Claimed, handler: Handler, worker: int, progress: Progress) -> None:
        self.claimed = claimed
        self.handler = handler
        self.worker = worker
        self.progress = progress
        self.task: asyncio.Task[None] | None = None
        self.threads: tuple[Future[Any], ...] = ()
        """The handler or steps that run in threads; they go on there after the attempt was stopped.
        """
        self.timer: asyncio.TimerHandle | None = None
        self.reason: Reason | None = None
        self.begun = False
        self.watched = False
        self.cancelled = False
        """The handler was asked to stop: the value of `job.cancelled`."""
        self.returned = False
        self.blocked = False
        """It has blocked the loop, so the blocked time counts as its own."""
        self.due = 0.0
        """When its time is over, by the loop's clock."""
        self.excused_until = 0.0
        """Until then a failure may have been caused by the blocked loop."""
        self.progressed = 0.0
        self.keeps_slot = False
        """Its handler has returned; its slot is released when the outcome is recorded."""
        self.refusals = 0
        """How often the database refused its outcome."""
        self.lock_misses = 0
        """How often another transaction had locked rows that its outcome needs."""
        self.seq = 0
        self.steps: dict[str, Any] = {}
        """The kept steps of this job, by name; those of earlier attempts after they were read."""
        self.steps_read = claimed.attempt == 1
        self.usage: dict[str, Any] | None = None
        self.units: int | None = None
        self.token: str | None = None
        """The token under which it was dispatched: it runs outside, no longer in this worker."""

    @property
    def patient(self) -> bool:
        """Whether its outcome is written with a wait for the account's lock."""
        return self.lock_misses >= IMPATIENT_TRIES

    @property
    def patience(self) -> timedelta | None:
        """How long to wait: longer each time, since a wait that is given up loses its turn."""
        if not self.patient:
            return None
        doubled = min(10, self.lock_misses - IMPATIENT_TRIES)
        return min(MOST_PATIENCE, LEAST_PATIENCE * (1 << doubled))

    def begin(self) -> bool:
        """Note that the task runs; False when the attempt was stopped before.

        A task that is cancelled before its first step never takes it, and would have no outcome.
        """
        self.begun = True
        return self.reason is None

    def watch(self, begun: float) -> None:
        """Begin to watch its time and its progress. The database has later limits of its own.

        `begun`: when the attempt began, by the loop's clock.
        """
        self.watched = True
        self.due = begun + self.claimed.timeout_seconds
        self.progressed = max(self.progressed, begun)
        if self.timer is None:
            self._check_time()

    def submit(self, threads: Threads, function: Callable[[], Any]) -> "Future[Any]":
        """Run a plain function of this attempt in a thread."""
        future = threads.submit(function)
        self.threads = (*(thread for thread in self.threads if not thread.done()), future)
        return future

    def run_step(self, function: Callable[[], Any]) -> "Future[Any]":
        """Run a step's plain function in a thread."""
        return self.submit(self.progress.step_threads, function)

    @property
    def uploads(self) -> Uploads:
        return self.progress.engine.uploads

    def lose(self, seconds: float) -> None:
        """Return time in which another job blocked the loop: it was not this attempt's time."""
        self.due += seconds
        self.progressed += seconds
        # What it was waiting for has lost that time, too: a call to a server, for example.
        self.excused_until = time.monotonic() + seconds

    @property
    def excused(self) -> bool:
        """Whether a failure of a call may have been caused by the blocked loop."""
        self.progress.watch.measure()
        tries = self.claimed.attempt - self.claimed.failures
        return time.monotonic() < self.excused_until and tries <= EXCUSED_TRIES

    def _check_time(self) -> None:
        # All timers that fell due while the loop stood still fire at once, before any attempt can
        # go on.
        self.progress.watch.measure()
        loop, claimed = self.progress.loop, self.claimed
        is_watched = claimed.unmoved_seconds < claimed.timeout_seconds
        stuck_at = self.progressed + claimed.unmoved_seconds if is_watched else inf
        if self.due - loop.time() <= _MOMENT_SECONDS:
            self.stop("timeout")
        elif stuck_at <= loop.time():
            self.stop("stuck")
        else:
            self.timer = loop.call_at(min(self.due, stuck_at), self._check_time)

    def stop(self, reason: Reason) -> None:
        """Stop the attempt. The first reason counts."""
        if self.returned:
            return
        if self.reason is None and reason in _WORTH_A_LINE:
            _log.warning(
                "a job was stopped: %s",
                _WORTH_A_LINE[reason],
                extra={
                    "job": self.claimed.id,
                    "kind": self.claimed.kind,
                    "attempt": self.claimed.attempt,
                },
            )
        self.reason = self.reason or reason
        self.cancelled = True
        if self.task is not None:
            if self.begun:
                self.task.cancel()
            if self.timer is not None:
                self.timer.cancel()
            self.timer = self.progress.loop.call_later(_INSIST_SECONDS, self.stop, reason)

    def cancel(self) -> None:
        """Ask the handler to stop; stop the attempt if it has not returned after a moment."""
        if not self.cancelled:
            self.cancelled = True
            self.progress.loop.call_later(CANCEL_SECONDS, self.stop, "cancel")

    def unwatch(self) -> None:
        self.returned = True
        if self.timer is not None:
            self.timer.cancel()

    def outcome_of_stop(self) -> Outcome:
        """The outcome of an attempt that was stopped."""
        return _OUTCOMES[self.reason]

    def in_loop(self, call: Callable[..., None], *args: Any) -> None:
        """Call this in the worker's loop, from any thread."""
        self.progress.loop.call_soon_threadsafe(call, *args)

    def wait_for(self, call: Any) -> Any:
        """Run a coroutine in the worker's loop from a handler's thread, and wait for it."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(call, self.progress.loop)
        return future.result()

    async def hand_over(self) -> Handover:
        """Dispatch the attempt: it goes on outside, under its own token.

        From now on the token is the fence, not the worker: what the worker reports counts only
        until the first callback.
        """
        if self.handler.outside is None:
            raise Misconfigured("only a worker can hand over a job: this one runs without one")
        outside, claimed, engine = self.handler.outside(), self.claimed, self.progress.engine
        token = callback_token.make(outside.roots, claimed.id, claimed.attempt)
        doubt = False
        while self.token is None:
            if self.returned:
                raise LeaseLost
            try:
                # The worker fences its reports: after the hand-over they would be refused.
                await self.progress.flush_reports_of([self])
                verdict = await engine.callbacks.hand_over(self.worker, claimed, token)
                if verdict == "stale" and doubt and await self._awaits_callback():
                    verdict = "done"
            except DATABASE_UNAVAILABLE:
                doubt = True  # the call may have succeeded, and only its answer was lost
                await asyncio.sleep(UNAVAILABLE_SECONDS[1])
                continue
            if verdict == "stale":
                self.stop("lost")
                raise LeaseLost
            if verdict == "locked":
                await asyncio.sleep(LOCKED_SECONDS)
            else:
                self.token = token
                self.progress.notifier.notify()
        return Handover(token, outside.callback_url(claimed.id), claimed.timeout_at)

    async def _awaits_callback(self) -> bool:
        """Whether this attempt awaits its callback; if so, under this token: there is no other."""
        with suppress(NotFound):
            row = await self.progress.engine.jobs.read(self.claimed.id)
            return (row.status, row.attempt) == (JobStatus.AWAITING, self.claimed.attempt)
        return False
