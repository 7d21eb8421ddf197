"""The attempts of this worker that are open: claimed, and their outcome not yet written."""

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

# What the database takes us to be running for so long, and we do not know of, was claimed for us by
# a call whose answer was lost on the way.
FORGOTTEN = timedelta(seconds=5)
# So many of them are remembered, should the answer come all the same.
REMEMBERED = 1_000
# How late the clocks of an attempt may be set: so much later may a time-out come.
WATCH_SECONDS = 0.2

_log = logging.getLogger("penstock.worker")


class WakeUp:
    """A flag that one waits for, with a limit. asyncio's own way takes a task and three turns."""

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
    """All of them, by job and attempt; and, by queue, the wake-up of its claim loop."""

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
        """How many there have been: it grows with each attempt that begins."""
        return self.processed + len(self._attempts)

    @property
    def running(self) -> list[Attempt]:
        """Those whose handler has not returned."""
        return [attempt for attempt in self if not attempt.ended]

    def add(self, attempt: Attempt) -> bool:
        """Whether it is new here.

        An attempt begins once, unless the database has forgotten it: a standby was promoted that
        had not received it. What runs goes on, and does not count; the next attempt will. Nor does
        one begin that was released before the answer to its claim arrived.
        """
        key = attempt.claimed.id, attempt.claimed.attempt
        return key not in self._released and self._attempts.setdefault(key, attempt) is attempt

    def settle(self, attempts: Sequence[Attempt]) -> None:
        """The database knows their outcomes, or will learn them from others."""
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
        """Set the clocks of what has begun. Not at once: most jobs that are short need none."""
        loop, watch = asyncio.get_running_loop(), self._watch
        while True:
            begun, lost = loop.time(), watch.lost
            await asyncio.sleep(WATCH_SECONDS)
            watch.measure()
            lost = watch.lost - lost
            # All that are open, and not a list of the new ones: it would keep those that are over.
            for attempt in self:
                if not attempt.watched and not attempt.ended:
                    attempt.watch(begun if attempt.blocked else begun + lost)

    # --- the claim loops -------------------------------------------------------------------------

    def claimed(self, queue: str, jobs: int) -> None:
        """A claim brought so many. If none, an open attempt may hold what the next one needs."""
        self._open[queue] += jobs
        self._wake_on_settle[queue] = jobs > 0 or (
            self._wake_on_settle[queue] and self._open[queue] > 0
        )

    def wake(self, queue: str | None = None) -> None:
        """There may be work in this queue, or in any: claim now."""
        for wake_up in self._wake_ups.values() if queue is None else [self._wake_ups.get(queue)]:
            if wake_up is not None:
                wake_up.set()

    def wake_up(self, queue: str) -> WakeUp:
        return self._wake_ups[queue]

    # --- what the database says of them ----------------------------------------------------------

    def has(self, job: str) -> bool:
        """Whether an attempt of this job is open here."""
        return any(str(attempt.claimed.id) == job for attempt in self)

    async def cancel_requested(self, worker: int) -> None:
        """Cancel the jobs that the database says are to be cancelled."""
        if self._attempts:
            for key in await self._engine.workers.cancels(worker):
                if attempt := self._attempts.get(key):
                    attempt.cancel()

    async def release_unknown(self, worker: int) -> int:
        """Release what was claimed for us by a call whose answer was lost; how many."""
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
        """Stop what ran under an identity that was lost: it belongs to another worker now."""
        _log.warning(
            "this worker was given up for lost: it drops %d jobs and registers again", len(self)
        )
        for attempt in list(self):
            if attempt.worker == worker:
                attempt.stop("lost")

    # --- while the event loop is blocked (loop_watch.Watched) ------------------------------------

    def lose_time(self, seconds: float, blocker: Key | None) -> frozenset[Key]:
        """The loop stood still for so long: return that time to all but the blocker."""
        for key, attempt in self._attempts.items():
            if key == blocker:
                attempt.blocked = True
            else:
                attempt.lose(seconds)
        return frozenset(self._attempts)

    def keep_owned(self, worker: int, had: frozenset[Key], owns: frozenset[Key]) -> None:
        """Stop what upkeep released while the loop stood still: another worker has it by now."""
        for key in had - owns:
            attempt = self._attempts.get(key)
            if attempt is not None and attempt.worker == worker and attempt.token is None:
                attempt.stop("lost")

    def attempt_of(self, task: "asyncio.Task[object]") -> tuple[Key, str] | None:
        """Whose task it is, with its kind. Called from another thread, while the loop stands."""
        frame = getattr(task.get_coro(), "cr_frame", None)
        attempt = None if frame is None else frame.f_locals.get("attempt")
        if type(attempt) is not Attempt:
            tasks = ((attempt, attempt.task) for attempt in list(self._attempts.values()))
            waiting = (attempt for attempt, root in tasks if root and waits_for(root, task))
            attempt = next(waiting, None)
        if attempt is None:
            return None
        return (attempt.claimed.id, attempt.claimed.attempt), attempt.claimed.kind
