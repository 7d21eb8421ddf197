"""What runs in this worker: each start from its claim until the database knows how it ended."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Claimed, Told
from penstock.engine.jobs.outcomes import Error, Outcome, Released, Retry
from penstock.engine.queries.notifications import LAST_SECONDS
from penstock.worker.claiming.slots import Slots
from penstock.worker.execution.attempt import Start
from penstock.worker.execution.dispatched import take_back
from penstock.worker.execution.run import Runner, told
from penstock.worker.handlers.handler import Handler, Mode
from penstock.worker.membership.loop_stack import waits_for
from penstock.worker.membership.loop_watch import Key
from penstock.worker.reporting.on_finish import Hooks
from penstock.worker.reporting.outcomes import Ends
from penstock.worker.reporting.progress import Desk

# What the database takes us to be running for so long, and we do not know of, was claimed for us by
# a call whose answer was lost on the way.
FORGOTTEN = timedelta(seconds=5)
# So many of them are remembered, should the answer come all the same.
REMEMBERED = 1_000

# How late the clock of a start may be set: so much later may a time-out come.
WATCH_SECONDS = 0.2

_log = logging.getLogger("penstock.worker")


class Running:
    """`on_ended(queues)` hears of starts that are settled, a queue for each."""

    def __init__(  # noqa: PLR0913  # the parts of a worker that it stands between
        self,
        engine: Engine,
        handlers: Mapping[str, Handler],
        runner: Runner,
        slots: Slots,
        desk: Desk,
        *,
        on_ended: Callable[[Sequence[str]], None],
    ) -> None:
        self._engine = engine
        self._handlers = handlers
        self._runner = runner
        self._slots = slots
        self._desk = desk
        desk.watch.watch(self)
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._starts: dict[tuple[UUID, int], Start] = {}
        self._forgotten: deque[tuple[UUID, int]] = deque(maxlen=REMEMBERED)
        self._finishing: set[asyncio.Task[None]] = set()
        self.ends = Ends(engine, desk, self._on_told)
        self.hooks = Hooks(engine, desk, self.ends, handlers, tracebacks=runner.tracebacks)
        self.settled = asyncio.Event()
        self.processed = 0

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def at_work(self) -> list[Start]:
        """Those whose handler has not ended."""
        return [start for start in self._starts.values() if not start.ended]

    def begin(self, claimed: Claimed, worker: int, *, give_back: bool) -> None:
        handler = self._handlers[claimed.kind]
        start = Start(claimed, handler, worker, self._desk)
        # An attempt begins once, unless the database has forgotten it: a standby was promoted that
        # had not heard of it. What runs goes on, and does not count; the next attempt will.
        key = claimed.id, claimed.attempt
        # Nor after it was given back: the word of it came late.
        begun_before = key in self._forgotten or self._starts.setdefault(key, start) is not start
        if give_back or begun_before:
            self._slots.give(handler.mode)
            self._end(start, Released())
        else:
            start.task = self._loop.create_task(self._conduct(start))
        # Last: those who watch can wait until the handler has begun.
        self._desk.notifier.notify()

    async def watch(self) -> None:
        """Set the clocks of what has begun. Not at once: most jobs that are short need none."""
        watch = self._desk.watch
        while True:
            begun, lost = self._loop.time(), watch.lost
            await asyncio.sleep(WATCH_SECONDS)
            watch.measure()
            lost = watch.lost - lost
            # All that run, and not a list of the new ones: it would keep those that have ended.
            for start in self._starts.values():
                if not start.watched and not start.ended:
                    start.watch(begun if start.blocked else begun + lost)

    async def _conduct(self, start: Start) -> None:
        outcome: Outcome = Retry(Error("bug", "the worker could not say how it ended"))
        try:
            outcome = await self._runner.outcome(start)
        finally:
            handler = start.handler
            if any(not thread.done() for thread in start.threads):
                # A function goes on in its thread, although nobody waits for it: so does its slot.
                self._give_after(start.threads, handler.mode)
            elif handler.on_finish is None:
                self._slots.give(handler.mode)
            else:
                start.keeps_slot = True
            self._end(start, outcome)

    def _give_after(self, threads: "Sequence[Future[Any]]", mode: Mode) -> None:
        """Give the slot back when all of these have returned."""
        left = [thread for thread in threads if not thread.done()]
        if not left:
            self._slots.give(mode)
            return

        def look_again(_: "Future[Any]") -> None:
            with suppress(RuntimeError):  # the worker has left, and its loop is closed
                self._loop.call_soon_threadsafe(self._give_after, left, mode)

        left[0].add_done_callback(look_again)

    def _end(self, start: Start, outcome: Outcome) -> None:
        start.unwatch()
        row = told(start, outcome)
        self._desk.leave_units(start)
        if start.token is not None:
            self._finish_beside(self._leave_outside(start, row))
        elif start.handler.on_finish is None:
            self.ends.add(start, row)
        else:
            self._finish_beside(self._finish_with_app(start, row))

    def _finish_beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _leave_outside(self, start: Start, row: Told) -> None:
        """It was handed over. Unless its handler failed, a callback will end it."""
        try:
            # A worker that leaves, or was given up, does not know whether the call was taken.
            if row.outcome not in ("succeeded", "released"):
                await take_back(self._engine, start, row)
        finally:
            if start.keeps_slot:
                self._slots.give(start.handler.mode)
            self._on_told([start])

    async def _finish_with_app(self, start: Start, row: Told) -> None:
        """Its slot is kept until then: an on_finish that is slow must not have ends pile up."""
        try:
            if row.outcome in ("snoozed", "released"):
                self.ends.add(start, row)
            elif await self.hooks.finish(start, row):
                self._on_told([start])
        finally:
            if start.keeps_slot:
                self._slots.give(start.handler.mode)

    def _on_told(self, starts: Sequence[Start]) -> None:
        for start in starts:
            key = start.claimed.id, start.claimed.attempt
            if self._starts.get(key) is start:
                del self._starts[key]
        self._on_ended([start.handler.queue for start in starts])
        self.processed += len(starts)
        self.settled.set()
        self._desk.notifier.notify()

    async def all_told(self) -> None:
        """Wait until the database knows of every end."""
        await asyncio.gather(*self._finishing, return_exceptions=True)
        await self.ends.all_told()
        await self._desk.notifier.close(LAST_SECONDS)

    def lose_time(self, seconds: float, blocker: Key | None) -> frozenset[Key]:
        """The loop stood still for so long: what runs gets that time back, but for the blocker."""
        for key, start in self._starts.items():
            if key == blocker:
                start.blocked = True
            else:
                start.lose(seconds)
        return frozenset(self._starts)

    def keep_owned(self, worker: int, had: frozenset[Key], owns: frozenset[Key]) -> None:
        """Stop what upkeep released while the loop stood still: another worker has it by now."""
        for key in had - owns:
            start = self._starts.get(key)
            if start is not None and start.worker == worker and start.token is None:
                start.stop("lost")

    def attempt_of(self, task: "asyncio.Task[object]") -> tuple[Key, str] | None:
        """Whose task it is, with its kind. Called from another thread, while the loop stands."""
        frame = getattr(task.get_coro(), "cr_frame", None)
        start = None if frame is None else frame.f_locals.get("start")
        if type(start) is not Start:
            tasks = ((start, start.task) for start in list(self._starts.values()))
            found = (start for start, root in tasks if root is not None and waits_for(root, task))
            start = next(found, None)
        if start is None:
            return None
        return (start.claimed.id, start.claimed.attempt), start.claimed.kind

    def drop(self, worker: int) -> None:
        """What ran under a lost identity is somebody else's now."""
        _log.warning(
            "this worker was given up for lost: it drops %d jobs and registers again", len(self)
        )
        for start in list(self._starts.values()):
            if start.worker == worker:
                start.stop("lost")

    def has(self, job: str) -> bool:
        """Whether an attempt of this job is here."""
        return any(str(start.claimed.id) == job for start in self._starts.values())

    async def look_for_cancels(self, worker: int) -> None:
        """End the jobs that the database says are to be cancelled."""
        if self._starts:
            for key in await self._engine.workers.cancels(worker):
                if start := self._starts.get(key):
                    self._desk.cancel(start)

    async def give_back_forgotten(self, worker: int) -> int:
        """Give back what was claimed for us without our knowing; how many."""
        found = await self._engine.workers.starts(worker, older=FORGOTTEN)
        forgotten = [
            Told(job, attempt, account, "released")
            for job, attempt, account in found
            if (job, attempt) not in self._starts
        ]
        if forgotten:
            self._forgotten.extend((one.job_id, one.attempt) for one in forgotten)
            verdicts = await self._engine.jobs.finish_told(worker, forgotten)
            _log.info("gave back %d jobs that a lost answer had claimed", len(verdicts))
        return len(forgotten)
