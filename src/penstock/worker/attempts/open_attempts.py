"""The open attempts of this worker: claimed, and their outcome not yet written."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import OutcomeRow
from penstock.engine.queries.events import Notifier
from penstock.worker.attempts.attempt import Attempt
from penstock.worker.event_loop.loop_stack import waits_for
from penstock.worker.event_loop.loop_watch import Key, LoopWatch

# A job that the database has listed as running here for so long, and that this worker does not know
# of, was claimed by a call whose answer was lost.
FORGOTTEN = timedelta(seconds=5)
# So many such jobs are remembered, in case the answer still arrives.
REMEMBERED = 1_000
# How often the timers of new attempts are set: a time-out may come this much later.
WATCH_SECONDS = 0.2

_log = logging.getLogger("penstock.worker")


class WakeUp:
    """A flag to wait for, with a limit. asyncio's own way takes a task and three loop turns."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        self._end()

    def clear(self) -> None:
        self._is_set = False

    async def wait(self, seconds: float) -> None:
        if self._is_set:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        limit = loop.call_later(seconds, self._end)
        try:
            await self._waiter
        finally:
            limit.cancel()
            self._waiter = None

    def _end(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class OpenAttempts:
    """All open attempts, by job and attempt; and each queue's wake-up for its claim loop."""

    def __init__(
        self, engine: Engine, watch: LoopWatch, notifier: Notifier, queues: Iterable[str]
    ) -> None:
        self._engine = engine
        self._watch = watch
        watch.watch(self)
        self._notifier = notifier
        self._attempts: dict[Key, Attempt] = {}
        self._released: deque[Key] = deque(maxlen=REMEMBERED)
        self._wake_ups = {queue: WakeUp() for queue in queues}
        self._open = dict.fromkeys(self._wake_ups, 0)
        self._wake_on_settle = dict.fromkeys(self._wake_ups, False)
        self.settled = asyncio.Event()
        self.processed = 0
        """How many have been settled."""

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._attempts.values())

    @property
    def seen(self) -> int:
        """How many attempts there have been: it grows with each one that begins."""
        return self.processed + len(self._attempts)

    @property
    def running(self) -> list[Attempt]:
        """The attempts whose handler has not returned."""
        return [attempt for attempt in self if not attempt.returned]

    def add(self, attempt: Attempt) -> bool:
        """Add an attempt; whether it is to run.

        Each attempt runs once, unless the database has lost it: a standby was promoted that had not
        received it. The handler that already runs goes on, and does not count; the next attempt
        will. An attempt that was released before the answer to its claim arrived does not run
        either.
        """
        key = attempt.claimed.id, attempt.claimed.attempt
        return key not in self._released and self._attempts.setdefault(key, attempt) is attempt

    def settle(self, attempts: Sequence[Attempt]) -> None:
        """Forget attempts whose outcomes the database has, or will get from others."""
        for attempt in attempts:
            key = attempt.claimed.id, attempt.claimed.attempt
            if self._attempts.get(key) is attempt:
                del self._attempts[key]
        for queue, settled in Counter(attempt.handler.queue for attempt in attempts).items():
            if queue in self._open:
                self._open[queue] -= settled
                if self._wake_on_settle[queue]:
                    self._wake_ups[queue].set()
        self.processed += len(attempts)
        self.settled.set()
        self._notifier.notify()

    async def watch(self) -> None:
        """Set the timers of new attempts. Not at once: most jobs are short and need none."""
        loop, watch = asyncio.get_running_loop(), self._watch
        while True:
            begun, lost = loop.time(), watch.lost
            await asyncio.sleep(WATCH_SECONDS)
            watch.measure()
            lost = watch.lost - lost
            # Iterate all open attempts: a list of the new ones would keep finished ones in memory.
            for attempt in self:
                if not attempt.watched and not attempt.returned:
                    attempt.watch(begun if attempt.blocked else begun + lost)

    # --- the claim loops -------------------------------------------------------------------------

    def claimed(self, queue: str, jobs: int) -> None:
        """Note how many jobs a claim brought. If none, an open attempt may hold what they need."""
        self._open[queue] += jobs
        self._wake_on_settle[queue] = jobs > 0 or (
            self._wake_on_settle[queue] and self._open[queue] > 0
        )

    def wake(self, queue: str | None = None) -> None:
        """Claim now: there may be jobs in this queue, or in any."""
        for wake_up in self._wake_ups.values() if queue is None else [self._wake_ups.get(queue)]:
            if wake_up is not None:
                wake_up.set()

    def wake_up(self, queue: str) -> WakeUp:
        return self._wake_ups[queue]

    # --- answers of the database ------------------------------------------------------------------

    def has(self, job: str) -> bool:
        """Whether an attempt of this job is open here."""
        return any(str(attempt.claimed.id) == job for attempt in self)

    async def cancel_requested(self, worker: int) -> None:
        """Cancel the jobs whose cancellation the database requests."""
        if self._attempts:
            for key in await self._engine.workers.cancels(worker):
                if attempt := self._attempts.get(key):
                    attempt.cancel()

    async def release_unknown(self, worker: int) -> int:
        """Release jobs that were claimed by a call whose answer was lost; how many."""
        owned = await self._engine.workers.running(worker, older=FORGOTTEN)
        unknown = [
            OutcomeRow(job, attempt, account, "released")
            for job, attempt, account in owned
            if (job, attempt) not in self._attempts
        ]
        if unknown:
            self._released.extend((row.job_id, row.attempt) for row in unknown)
            verdicts = await self._engine.jobs.finish_rows(worker, unknown)
            _log.info("released %d jobs that a lost answer had claimed", len(verdicts))
        return len(unknown)

    def drop(self, worker: int) -> None:
        """Stop attempts under an identity that was lost: they belong to another worker now."""
        _log.warning(
            "this worker was declared lost: it drops %d jobs and registers again", len(self)
        )
        for attempt in list(self):
            if attempt.worker == worker:
                attempt.stop("lost")

    # --- while the event loop is blocked (loop_watch.Watched) ------------------------------------

    def lose_time(self, seconds: float, blocker: Key | None) -> frozenset[Key]:
        """Return the time in which the loop stood still to all attempts but the blocker."""
        for key, attempt in self._attempts.items():
            if key == blocker:
                attempt.blocked = True
            else:
                attempt.lose(seconds)
        return frozenset(self._attempts)

    def keep_owned(self, worker: int, had: frozenset[Key], owns: frozenset[Key]) -> None:
        """Stop attempts that upkeep took away while the loop stood still: others run them now."""
        for key in had - owns:
            attempt = self._attempts.get(key)
            if attempt is not None and attempt.worker == worker and attempt.token is None:
                attempt.stop("lost")

    def attempt_of(self, task: "asyncio.Task[object]") -> tuple[Key, str] | None:
        """The attempt of a task, and its kind. Called by another thread if the loop is blocked."""
        frame = getattr(task.get_coro(), "cr_frame", None)
        attempt = None if frame is None else frame.f_locals.get("attempt")
        if type(attempt) is not Attempt:
            tasks = ((attempt, attempt.task) for attempt in list(self._attempts.values()))
            waiting = (attempt for attempt, root in tasks if root and waits_for(root, task))
            attempt = next(waiting, None)
        if attempt is None:
            return None
        return (attempt.claimed.id, attempt.claimed.attempt), attempt.claimed.kind
