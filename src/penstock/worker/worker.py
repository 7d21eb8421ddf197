"""The worker: claims jobs for its free slots, runs them, tells how they ended.

    claims     a loop per queue (claims.py): claim, begin, wait for news or the poll
    begin      a task per start; its outcome goes to Ends (or Hooks), which tell the database
    beside     heartbeat (a thread) and listener (life.py), upkeep, reports, cancels

Poll is the truth, NOTIFY only makes it quick. Whatever the database does, the worker goes on:
handlers run through an outage, and the fence decides afterwards what counts.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from penstock.db.call import POOLED
from penstock.db.listen import AWAY, back_soon
from penstock.db.pooler import is_pooled
from penstock.engine import Engine
from penstock.engine.starts import Claimed
from penstock.engine.workers import LEASE
from penstock.errors import Misconfigured, PenstockError
from penstock.states import JobStatus
from penstock.worker.claims import Claims
from penstock.worker.handlers import Handler
from penstock.worker.life import RENEW_SECONDS, Life
from penstock.worker.lookout import Lookout
from penstock.worker.outcomes import whereabouts
from penstock.worker.processes import Processes
from penstock.worker.reports import Desk
from penstock.worker.run import Runner
from penstock.worker.running import Running
from penstock.worker.slots import Slots
from penstock.worker.threads import Threads
from penstock.worker.upkeep import GRACE, Keeper, tidy

# How long an answer may take before its connection counts as gone. A claim or an end is bounded in
# SQL; what takes longer is a network that swallows everything.
ANSWER_SECONDS = 30.0
LOOK_SECONDS = 1.0
# So many looks for cancels, then one for starts that we do not know of.
FORGOTTEN_LOOKS = 5
# A claim that waits for its answer for longer than this may still bring what looks forgotten.
ANSWER_SOON_SECONDS = 2.5
DELIVER_SECONDS = 1.0
# How long the caller of an inline job waits for its turn; then a worker has to run it.
TURN_SECONDS = 30.0
# What is left to tell when the worker leaves may take this long; then the lease settles it.
LAST_WORDS_SECONDS = 10.0
STOP_SECONDS = 2.0
_WAIT_SECONDS = 0.02
_IDLE_SECONDS = 0.2
_TURN_LOOK_SECONDS = 0.05
_AWAY = ("circuit_open", "paused")

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
        self._reason: Why | None = None
        self._claims: Claims | None = None
        self._stop_asked = self._now_asked = False

    async def run(self) -> Ran:
        """Until told to stop, or until the options say that it is enough."""
        if await is_pooled(self._dsn):
            raise Misconfigured(POOLED)
        for warm in {handler.warm for handler in self._handlers.values() if handler.warm}:
            warm()
        threads, for_steps = Threads(self._options.threads), Threads(self._options.threads)
        processes = Processes(_modules(self._handlers))
        try:
            async with await Engine.open(self._dsn, answer_seconds=ANSWER_SECONDS) as engine:
                self._engine = engine
                # Who runs one job in its caller has nobody who would judge a failure later.
                certain = self._options.job is not None
                self._prepare(Runner(threads, processes, certain=certain), for_steps)
                await self._live()
        finally:
            processes.close()
            threads.close()
            for_steps.close()
        return Ran(self._running.processed, self._reason or "stopped")

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

    def _prepare(self, runner: Runner, for_steps: Threads) -> None:
        """Put the parts together."""
        engine, options = self._engine, self._options
        self._loop = asyncio.get_running_loop()
        self._desk = Desk(engine, self._loop, for_steps)
        slots = Slots(
            {
                "async": options.concurrency,
                "thread": options.threads,
                "process": options.processes,
            }
        )
        self._running = Running(
            engine, self._handlers, runner, slots, self._desk, on_ended=self._on_ended
        )
        self._life = Life(
            engine,
            self._dsn,
            name=options.name,
            lease=options.lease,
            beat=options.beat,
            # A worker with one session only: to lose that for a moment is not to be dead.
            locks=not options.until_idle,
            on_lost=self._running.drop,
        )
        self._claims = Claims(
            engine,
            self._life,
            self._running.ends,
            slots,
            self._handlers,
            queues=options.queues,
            most=options.recycle_after if options.max_jobs is None else options.max_jobs,
            begin=self._begin,
        )
        self._lookout = Lookout(engine, self._claims.queues)
        if self._stop_asked:
            self._claims.stop()

    async def _live(self) -> None:
        claims, options = self.claims, self._options
        await self._life.begin()
        beside = [
            self._desk.run,
            self._running.ends.run,
            self._running.ends.insist,
            self._running.watch,
            self._look_around,
        ]
        if not options.until_idle:
            keeper = Keeper(self._dsn, self._on_recovered)
            beside += [self._listen, keeper.run, self._deliver, self._renew, self._lookout.run]
        background = [asyncio.create_task(_for_ever(work)) for work in beside]
        try:
            if options.job is not None:
                await self._run_only(claims, options.job)
            elif options.until_idle:
                await self._until_idle(claims)
            else:
                await claims.serve(options.poll)
            await self._wind_down()
        except BaseException:
            # Broken off, as when the caller of an inline job has left: give everything back.
            self.stop_now()
            await asyncio.shield(self._wind_down())
            raise
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._life.close()

    @property
    def claims(self) -> Claims:
        assert self._claims is not None  # noqa: S101  # prepared
        return self._claims

    async def _until_idle(self, claims: Claims) -> None:
        """Run what is due, and what becomes due by that, until there is nothing."""
        upkeep = self._engine.upkeep
        keeper = Keeper(self._dsn, self._on_recovered)
        # From a session this young, nobody is judged: see recover.sql.
        await keeper.recover(upkeep, grace=timedelta(0), judge=False)
        await tidy(upkeep)
        judged, tries = False, 0
        while not claims.stopped:
            try:
                if await self._anything_due(claims):
                    continue
                if judged or not await upkeep.anyone_silent():
                    break
                await asyncio.sleep(GRACE.total_seconds())
                await keeper.recover(upkeep)
                judged = True
            except AWAY as error:
                _log.info("no claim: %s", whereabouts(error))
                tries += 1
                await back_soon(tries)
        self._reason = self._reason or "idle"

    async def _anything_due(self, claims: Claims) -> bool:
        """Begin what is due; False when nothing was and nothing runs."""
        running = self._running
        running.settled.clear()
        # As it is before the claims: a job that ends meanwhile may have submitted another one.
        idle = not running
        begun = running.processed + len(running)
        for queue in claims.queues:
            while await claims.claim(queue) and not claims.stopped:
                pass
        if running.processed + len(running) == begun and not idle:
            with suppress(TimeoutError):
                await asyncio.wait_for(running.settled.wait(), _IDLE_SECONDS)
        return running.processed + len(running) > begun or not idle

    async def _run_only(self, claims: Claims, job: UUID) -> None:
        """Run one job as soon as its limits allow; if somebody else does, that is well too."""
        [queue] = claims.queues
        ends = self._loop.time() + TURN_SECONDS
        while not claims.stopped and self._loop.time() < ends:
            try:
                await claims.claim(queue, job)
                if self._running or self._running.processed:
                    break
                seen = await self._engine.jobs.read(job)
                # Nor does the caller wait for a provider to come back: a worker runs it then.
                if seen["status"] != JobStatus.QUEUED or seen["waiting_for"] in _AWAY:
                    break
            except AWAY as error:
                _log.info("no claim: %s", whereabouts(error))
            await asyncio.sleep(_TURN_LOOK_SECONDS)
        self._reason = self._reason or "idle"

    def _begin(self, claimed: Claimed, worker: int) -> None:
        give_back = self._stop_asked or self._life.worker != worker
        self._running.begin(claimed, worker, give_back=give_back)
        if self.claims.left == 0:
            self._leave("recycle" if self._options.max_jobs is None else "max_jobs")

    def _on_ended(self, queue: str) -> None:
        self.claims.ended(queue)

    # --- beside ----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        def look() -> None:
            self.claims.wake()
            self._lookout.look_again()

        await self._life.listen(self._hear, look)

    def _hear(self, channel: str, word: str) -> None:
        if channel == "penstock_job":
            self.claims.wake(word)
        elif channel == "penstock_cancel":
            self._running.cancel(word)
        elif channel == "penstock_circuit":
            self._lookout.hear(word)

    async def _look_around(self) -> None:
        """For cancels that nobody told, and for starts that nobody knows of."""
        while True:
            for _ in range(FORGOTTEN_LOOKS):
                await asyncio.sleep(LOOK_SECONDS)
                if self._life.worker is not None:
                    await self._running.look_for_cancels(self._life.worker)
            # Not while an answer is long in coming: what it brings is not forgotten.
            if self._life.worker is not None and self.claims.waited < ANSWER_SOON_SECONDS:
                await self._running.give_back_forgotten(self._life.worker)

    async def _on_recovered(self) -> None:
        """Work came back: ours to take, and that of workers elsewhere."""
        self.claims.wake()
        await self._engine.jobs.wake(self.claims.queues)

    async def _deliver(self) -> None:
        while True:
            await asyncio.sleep(DELIVER_SECONDS)
            await self._running.hooks.deliver()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            self._engine.renew()

    # --- leaving ---------------------------------------------------------------------------------

    async def _wind_down(self) -> None:
        """Let what runs end, or give it back; tell all of it; say good-bye."""
        await self.claims.finish()
        drain = self._options.drain.total_seconds()
        await self._while_running(lambda: drain if self._stop_asked else None)
        left = self._running.at_work
        if left:
            _log.info("%d jobs did not end in time and are given back", len(left))
        for start in left:
            start.stop("stop")
        await self._while_running(lambda: STOP_SECONDS, at_once=False)
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._running.all_told()
                await self._running.hooks.deliver()
                await self._life.end()
        except (*AWAY, PenstockError) as error:
            _log.warning("left without a word (%s); the lease settles it", whereabouts(error))

    async def _while_running(
        self, seconds: Callable[[], float | None], *, at_once: bool = True
    ) -> None:
        """Wait for what runs: for so long, or for ever; less when told to leave at once."""
        begun: float | None = None
        while self._running.at_work:
            most = seconds()
            if most is not None and begun is None:
                begun = self._loop.time()
            if begun is not None and most is not None and self._loop.time() >= begun + most:
                return
            if at_once and self._now_asked:
                return
            await asyncio.sleep(_WAIT_SECONDS)


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


def settle_memory() -> None:
    """For a process that is a worker and nothing else: the collector leaves alone what is loaded.

    It looked through all of it again and again, and took a seventh of a worker's time (2026-11).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _modules(handlers: Mapping[str, Handler]) -> list[str]:
    """What processes of handlers will import: done once for all of them."""
    return sorted({handler.origin[0] for handler in handlers.values() if handler.origin})
