"""The worker: claims jobs for its free slots, runs them, tells how they ended.

    claims     a loop per queue (claims.py): claim, begin, wait for news or the poll
    begin      a task per start; its outcome goes to Ends (or Hooks), which tell the database
    beside     heartbeat (a thread) and listener (life.py), upkeep, reports, cancels

Poll is the truth, NOTIFY only makes it quick. Whatever the database does, the worker goes on:
handlers run through an outage, and the fence decides afterwards what counts.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from penstock.db.call import POOLED
from penstock.db.listen import AWAY
from penstock.db.pooler import is_pooled
from penstock.engine import Engine
from penstock.engine.outcomes import Outcome, Released, Snoozed
from penstock.engine.starts import Claimed, Told
from penstock.engine.workers import LEASE
from penstock.errors import Misconfigured, PenstockError
from penstock.states import JobStatus
from penstock.worker.claims import Claims
from penstock.worker.ends import Ends
from penstock.worker.handlers import Handler, Mode
from penstock.worker.hooks import Hooks
from penstock.worker.life import RENEW_SECONDS, Life
from penstock.worker.outcomes import whereabouts
from penstock.worker.parameters import Parameters
from penstock.worker.processes import Processes
from penstock.worker.reports import Desk
from penstock.worker.run import Runner, told
from penstock.worker.slots import Slots
from penstock.worker.start import Start
from penstock.worker.threads import Threads
from penstock.worker.upkeep import Keeper, tidy

CANCELS_SECONDS = 1.0
DELIVER_SECONDS = 1.0
# For another worker's kind of job in one of our queues: somebody who knows it may come by.
STRANGER_WAIT = timedelta(seconds=5)
# What is left to tell when the worker leaves may take this long; then the lease settles it.
LAST_WORDS_SECONDS = 10.0
STOP_SECONDS = 2.0
_LOOK_SECONDS = 0.02
_IDLE_SECONDS = 0.2
_TURN_SECONDS = 0.05

_log = logging.getLogger("penstock.worker")

Why = Literal["stopped", "idle", "max_jobs", "recycle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    name: str
    """For people: host and process, mostly. The identity is random."""
    queues: tuple[str, ...] | None = None
    """None: all that the handlers name."""
    concurrency: int = 500
    """Async jobs at once."""
    threads: int = 32
    """Jobs of plain functions at once."""
    processes: int = 4
    """Jobs in processes of their own at once."""
    poll: timedelta = timedelta(seconds=1)
    lease: timedelta = LEASE
    beat: timedelta = timedelta(seconds=3)
    max_jobs: int | None = None
    """Leave after so many."""
    until_idle: bool = False
    """Leave when nothing is due."""
    recycle_after: int | None = None
    """Leave after so many, to be started again."""
    drain: timedelta = timedelta(seconds=25)
    """How long what runs may go on when the worker is told to stop."""
    job: UUID | None = None
    """This job and no other (inline)."""


@dataclass(frozen=True, slots=True)
class Ran:
    processed: int
    reason: Why


class Worker:
    def __init__(self, dsn: str, handlers: Mapping[str, Handler], options: Options) -> None:
        self._dsn = dsn
        self._handlers = dict(handlers)
        self._options = options
        self._processed = 0
        self._running: dict[tuple[UUID, int], Start] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reason: Why | None = None
        self._claims: Claims | None = None
        self._stop_asked = self._now_asked = False

    async def run(self) -> Ran:
        """Until told to stop, or until the options say that it is enough."""
        if await is_pooled(self._dsn):
            raise Misconfigured(POOLED)
        self._loop = asyncio.get_running_loop()
        self._settled = asyncio.Event()
        threads = Threads(self._options.threads)
        processes = Processes(_modules(self._handlers))
        self._runner = Runner(threads, processes)
        try:
            async with await Engine.open(self._dsn) as self._engine:
                await self._live()
        finally:
            processes.close()
            threads.close()
        return Ran(self._processed, self._reason or "stopped")

    def stop(self) -> None:
        """Claim nothing more; what runs may end, or is given back after a while."""
        self._stop_asked = True
        self._leave("stopped")

    def stop_now(self) -> None:
        """Give everything back and leave."""
        self._now_asked = True
        self.stop()

    def _leave(self, reason: Why) -> None:
        self._reason = self._reason or reason
        if self._claims is not None:
            self._claims.stop()

    async def _live(self) -> None:
        engine, options = self._engine, self._options
        self._desk = Desk(engine, self._loop)
        self._ends = Ends(engine, self._desk, self._on_told)
        self._hooks = Hooks(engine, self._desk, self._ends, self._handlers)
        self._life = Life(
            engine,
            self._dsn,
            name=options.name,
            lease=options.lease,
            beat=options.beat,
            on_lost=self._drop,
        )
        self._slots = Slots(
            {
                "async": options.concurrency,
                "thread": options.threads,
                "process": options.processes,
            }
        )
        self._claims = claims = Claims(
            engine,
            self._life,
            self._ends,
            self._slots,
            self._handlers,
            queues=options.queues,
            most=options.recycle_after if options.max_jobs is None else options.max_jobs,
            begin=self._begin,
        )
        if self._stop_asked:
            claims.stop()
        await self._life.begin()
        beside = [self._desk.run, self._ends.run, self._look_for_cancels]
        if not options.until_idle:
            keeper = Keeper(self._dsn, self._on_recovered)
            beside += [self._listen, keeper.run, self._deliver, self._renew]
        background = [asyncio.create_task(_for_ever(work)) for work in beside]
        try:
            if options.job is not None:
                await self._run_only(claims, options.job)
            elif options.until_idle:
                await self._until_idle(claims)
            else:
                await claims.serve(options.poll)
            await claims.finish()
            await self._wind_down()
        finally:
            for task in (*background, *self._tasks):
                task.cancel()
            await asyncio.gather(*background, *self._tasks, return_exceptions=True)
            await self._life.close()

    async def _until_idle(self, claims: Claims) -> None:
        """Run what is due, and what becomes due by that, until there is nothing."""
        keeper = Keeper(self._dsn, self._on_recovered)
        await keeper.recover(self._engine.upkeep, grace=timedelta(0))
        await tidy(self._engine.upkeep)
        while not claims.stopped:
            self._settled.clear()
            # As it is before the claims: a job that ends meanwhile may have submitted another one.
            idle = not self._running
            begun = self._processed + len(self._running)
            for queue in claims.queues:
                while await claims.claim(queue) and not claims.stopped:
                    pass
            if self._processed + len(self._running) > begun:
                continue
            if idle:
                break
            try:
                await asyncio.wait_for(self._settled.wait(), _IDLE_SECONDS)
            except TimeoutError:
                continue
        self._reason = self._reason or "idle"

    async def _run_only(self, claims: Claims, job: UUID) -> None:
        """Run one job as soon as its limits allow; if somebody else does, that is well too."""
        [queue] = claims.queues
        while not claims.stopped:
            await claims.claim(queue, job)
            if self._running or self._processed:
                break
            if (await self._engine.jobs.read(job))["status"] != JobStatus.QUEUED:
                break
            await asyncio.sleep(_TURN_SECONDS)
        self._reason = self._reason or "idle"

    # --- running ---------------------------------------------------------------------------------

    def _begin(self, claimed: Claimed, worker: int) -> None:
        handler = self._handlers.get(claimed.kind)
        start = Start(claimed, handler or _STRANGER, worker, self._desk)
        self._running[claimed.id, claimed.attempt] = start
        if handler is None:
            _log.warning(
                "a job of kind %s waits in a queue of this worker, which has no handler for it",
                claimed.kind,
            )
            self._end(start, Snoozed(STRANGER_WAIT))
        elif self._stop_asked or self._life.worker != worker:
            self._slots.give(handler.mode)
            self._end(start, Released())
        else:
            start.task = self._loop.create_task(self._conduct(start))
            start.watch(self._loop)
        if self._claims is not None and self._claims.left == 0:
            self._leave("recycle" if self._options.max_jobs is None else "max_jobs")

    async def _conduct(self, start: Start) -> None:
        outcome = await self._runner.outcome(start)
        mode = start.handler.mode
        if start.thread is None or start.thread.done():
            self._slots.give(mode)
        else:
            # The function goes on in its thread, although nobody waits for it: so does its slot.
            start.thread.add_done_callback(lambda _: self._give_from_thread(mode))
        self._end(start, outcome)

    def _give_from_thread(self, mode: Mode) -> None:
        with suppress(RuntimeError):  # the worker has left, and its loop is closed
            self._loop.call_soon_threadsafe(self._slots.give, mode)

    def _end(self, start: Start, outcome: Outcome) -> None:
        start.unwatch()
        row = told(start, outcome)
        if start.handler.on_finish is None or row.outcome in ("snoozed", "released"):
            self._ends.add(start, row)
        else:
            task = self._loop.create_task(self._finish_with_app(start, row))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _finish_with_app(self, start: Start, row: Told) -> None:
        if await self._hooks.finish(start, row):
            self._on_told([start])

    def _on_told(self, starts: Sequence[Start]) -> None:
        for start in starts:
            self._running.pop((start.claimed.id, start.claimed.attempt), None)
            if self._claims is not None:
                self._claims.ended(start.handler.queue)
        self._processed += len(starts)
        self._settled.set()

    def _drop(self, worker: int) -> None:
        """What ran under a lost identity is somebody else's now."""
        _log.warning(
            "this worker was given up for lost: it drops %d jobs and registers again",
            len(self._running),
        )
        for start in list(self._running.values()):
            if start.worker == worker:
                start.stop("lost")

    # --- beside ----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        assert self._claims is not None  # noqa: S101  # begun
        await self._life.listen(self._hear, self._claims.wake)

    def _hear(self, channel: str, word: str) -> None:
        if channel == "penstock_job" and self._claims is not None:
            self._claims.wake(word)
        elif channel == "penstock_cancel":
            for start in list(self._running.values()):
                if str(start.claimed.id) == word:
                    self._desk.cancel(start)

    async def _look_for_cancels(self) -> None:
        while True:
            await asyncio.sleep(CANCELS_SECONDS)
            if self._running and self._life.worker is not None:
                for job, attempt in await self._engine.workers.cancels(self._life.worker):
                    if start := self._running.get((job, attempt)):
                        self._desk.cancel(start)

    async def _on_recovered(self) -> None:
        """Work came back: ours to take, and that of workers elsewhere."""
        if self._claims is not None:
            self._claims.wake()
            await self._engine.jobs.wake(self._claims.queues)

    async def _deliver(self) -> None:
        while True:
            await asyncio.sleep(DELIVER_SECONDS)
            await self._hooks.deliver()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            self._engine.renew()

    # --- leaving ---------------------------------------------------------------------------------

    async def _wind_down(self) -> None:
        """Let what runs end, or give it back; tell all of it; say good-bye."""
        drain = self._options.drain.total_seconds()
        await self._while_running(lambda: drain if self._stop_asked else None)
        left = [start for start in self._running.values() if not start.ended]
        if left:
            _log.info("%d jobs did not end in time and are given back", len(left))
        for start in left:
            start.stop("stop")
        await self._while_running(lambda: STOP_SECONDS, at_once=False)
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._ends.all_told()
                await self._hooks.deliver()
                await self._life.end()
        except (*AWAY, PenstockError) as error:
            _log.warning("left without a word (%s); the lease settles it", whereabouts(error))

    async def _while_running(
        self, seconds: Callable[[], float | None], *, at_once: bool = True
    ) -> None:
        """Wait for what runs: for so long, or for ever; less when told to leave at once."""
        begun: float | None = None
        while any(not start.ended for start in self._running.values()):
            most = seconds()
            if most is not None and begun is None:
                begun = self._loop.time()
            if begun is not None and most is not None and self._loop.time() >= begun + most:
                return
            if at_once and self._now_asked:
                return
            await asyncio.sleep(_LOOK_SECONDS)


async def _for_ever(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A loop beside the work: what stops it is logged, and it starts again."""
    while True:
        try:
            await work()
        except AWAY:
            await asyncio.sleep(0.5)
        except Exception as error:  # noqa: BLE001  # nothing beside the work may end it
            _log.error("a loop of the worker failed: %s", whereabouts(error))
            await asyncio.sleep(1)


def _modules(handlers: Mapping[str, Handler]) -> list[str]:
    """What processes of handlers will import: done once for all of them."""
    return sorted({handler.origin[0] for handler in handlers.values() if handler.origin})


async def _nothing() -> None: ...


_STRANGER = Handler("", "", _nothing, Parameters.of(_nothing, "stranger"), "async")
