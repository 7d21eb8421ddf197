"""The worker: claims jobs for its free slots, runs them, tells how they ended.

    claims     a loop per queue (claims.py): claim, begin, wait for news or the poll
    begin      a task per start; its outcome goes to Ends (or Hooks), which tell the database
    beside     heartbeat (a thread) and listener (registration.py), upkeep, reports, cancels

Poll is the truth, NOTIFY only makes it quick. Whatever the database does, the worker goes on:
handlers run through an outage, and the fence decides afterwards what counts.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from penstock.base.error_place import error_place
from penstock.db.connections.driver_errors import POOLED
from penstock.db.connections.listener import AWAY
from penstock.db.connections.pooler import is_pooled
from penstock.db.connections.supervisor import Supervisor
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Claimed
from penstock.engine.workers import LEASE
from penstock.errors import Misconfigured, PenstockError
from penstock.worker.bounded_run import Stint
from penstock.worker.claiming.claims import Claims
from penstock.worker.claiming.idle import run_only, run_until_idle
from penstock.worker.claiming.slots import Slots
from penstock.worker.claiming.wakeup import Wake
from penstock.worker.execution.processes import Processes
from penstock.worker.execution.run import Runner
from penstock.worker.execution.running import Running
from penstock.worker.execution.threads import Threads
from penstock.worker.handlers.handler import Handler, modes_by_queue
from penstock.worker.maintenance.provider_watch import ASK_SECONDS, Lookout
from penstock.worker.maintenance.upkeep import Keeper, tidy
from penstock.worker.maintenance.webhooks import Webhooks
from penstock.worker.membership.loop_watch import LoopWatch
from penstock.worker.membership.registration import RENEW_SECONDS, Life
from penstock.worker.reporting.progress import Desk

# How long an answer may take before its connection counts as gone. A claim or an end is bounded in
# SQL; what takes longer is a network that swallows everything.
ANSWER_SECONDS = 30.0
LOOK_SECONDS = 1.0
# So many looks for cancels, then one for starts that we do not know of.
FORGOTTEN_LOOKS = 5
# A claim that waits for its answer for longer than this may still bring what looks forgotten.
ANSWER_SOON_SECONDS = 2.5
DELIVER_SECONDS = 1.0
# What is left to tell when the worker leaves may take this long; then the lease settles it.
LAST_WORDS_SECONDS = 10.0
STOP_SECONDS = 2.0
_WAIT_SECONDS = 0.02

_log = logging.getLogger("penstock.worker")

Why = Literal["stopped", "idle", "held", "time", "max_jobs", "recycle"]


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
    webhooks: bool = True
    """Send messages about ended jobs, too."""
    stint: timedelta | None = None
    """Work for so long, in one queue, and leave before if nothing is due."""
    tracebacks: bool = True
    """Log and keep the frames of handlers' errors."""


@dataclass(frozen=True, slots=True)
class Ran:
    processed: int
    reason: Why
    given_back: int = 0
    """Of those, starts that were broken off to leave in time."""


class Worker:
    def __init__(self, dsn: str, handlers: Mapping[str, Handler], options: Options) -> None:
        self._dsn = dsn
        self._handlers = dict(handlers)
        self._options = options
        self._reason: Why | None = None
        self._claims: Claims | None = None
        self._stint: Stint | None = None
        self._given_back = 0
        self._stop_asked = self._now_asked = False
        self._cancel_asked = Wake()

    async def run(self) -> Ran:
        """Until told to stop, or until the options say that it is enough."""
        if await is_pooled(self._dsn):
            raise Misconfigured(POOLED)
        for warm in {handler.warm for handler in self._handlers.values() if handler.warm}:
            warm()
        threads = Threads(self._options.threads)
        # One for each job at least: a step that hangs must keep no other job's step waiting.
        for_steps = Threads(self._options.concurrency + self._options.threads)
        processes = Processes(_modules(self._handlers))
        try:
            async with await Engine.open(self._dsn, answer_seconds=ANSWER_SECONDS) as engine:
                self._engine = engine
                # Who runs one job in its caller has nobody who would judge a failure later.
                certain = self._options.job is not None
                slots = Slots(
                    {
                        "async": self._options.concurrency,
                        "thread": self._options.threads,
                        "process": self._options.processes,
                    }
                )
                tracebacks = self._options.tracebacks
                runner = Runner(threads, processes, slots, certain=certain, tracebacks=tracebacks)
                self._prepare(runner, slots, for_steps)
                await self._live()
        finally:
            processes.close()
            threads.close()
            for_steps.close()
        return Ran(self._running.processed, self._reason or "stopped", self._given_back)

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

    def _prepare(self, runner: Runner, slots: Slots, for_steps: Threads) -> None:
        """Put the parts together."""
        engine, options = self._engine, self._options
        self._loop = asyncio.get_running_loop()
        self._desk = Desk(engine, self._loop, for_steps, LoopWatch(self._loop))
        self._running = Running(
            engine, self._handlers, runner, slots, self._desk, on_ended=self._on_ended
        )
        modes = modes_by_queue(self._handlers, options.queues)
        self._life = Life(
            engine,
            self._dsn,
            name=options.name,
            queues=list(modes),
            kinds=list(self._handlers),
            lease=options.lease,
            beat=options.beat,
            # A worker with one session only: to lose that for a moment is not to be dead.
            locks=not options.until_idle,
            on_lost=self._running.drop,
            accepting=lambda: self.claims.accepting,
            watch=self._desk.watch,
        )
        if options.stint is not None:
            self._stint = Stint(options.stint, engine, self._handlers)
        self._claims = Claims(
            engine,
            self._life,
            self._running.ends,
            slots,
            self._handlers,
            modes=modes,
            most=options.recycle_after if options.max_jobs is None else options.max_jobs,
            begin=self._begin,
            allowance=self._stint.allowance if self._stint else None,
        )
        self._lookout = Lookout(engine, self._claims.queues)
        self._webhooks = Webhooks.of(engine, self._handlers) if options.webhooks else None
        if self._stop_asked:
            self._claims.stop()

    async def _live(self) -> None:
        claims, options = self.claims, self._options
        await self._life.begin()
        background = self._start_background()
        try:
            if options.job is not None:
                await run_only(self._engine, claims, self._running, options.job)
                self._reason = self._reason or "idle"
            elif self._stint is not None:
                await self._work_stint(claims, self._stint)
            elif options.until_idle:
                keeper = await self._pass_once()
                await run_until_idle(self._engine, claims, self._running, keeper)
                self._reason = self._reason or "idle"
            else:
                await claims.serve(options.poll)
            await self._wind_down()
            if self._webhooks is not None and (options.until_idle or self._stint is not None):
                await self._webhooks.send_due()
        except BaseException:
            # Broken off, as when the caller of an inline job has left: give everything back.
            self.stop_now()
            await asyncio.shield(self._wind_down())
            raise
        finally:
            await background.stop()
            await self._life.close()

    def _start_background(self) -> Supervisor:
        loops, running = Supervisor(_log), self._running
        loops.start("the progress writer", self._desk.run)
        loops.start("the outcome writer", running.ends.run)
        loops.start("the outcome writer of locked accounts", running.ends.insist)
        loops.start("the watch of timeouts", running.watch)
        loops.start("the check for cancels", self._look_around)
        if not self._options.until_idle:
            keeper = Keeper(self._dsn, self._on_recovered, self._on_forward, self._life.hold)
            loops.start("the listener", self._listen)
            loops.start("upkeep", keeper.run)
            loops.start("on_finish callbacks", running.hooks.deliver, every=DELIVER_SECONDS)
            loops.start("the renewal of connections", self._renew, every=RENEW_SECONDS)
            loops.start("the watch of providers", self._lookout.look, every=ASK_SECONDS)
            if self._webhooks is not None:
                loops.start("the sender of webhooks", self._webhooks.run)
        return loops

    @property
    def claims(self) -> Claims:
        assert self._claims is not None  # noqa: S101  # prepared
        return self._claims

    async def _work_stint(self, claims: Claims, stint: Stint) -> None:
        """A call of a host without standing workers; it may be all the upkeep there is."""
        await self._pass_once()
        reason = await stint.run(claims, self._running)
        self._reason = self._reason or reason

    async def _pass_once(self) -> Keeper:
        """One pass of upkeep. From a session this young, nobody is judged: see recover.sql."""
        keeper = Keeper(self._dsn, self._on_recovered)
        await keeper.recover(self._engine.upkeep, grace=timedelta(0), judge=False)
        await tidy(self._engine.upkeep)
        return keeper

    def _begin(self, claimed: Claimed, worker: int) -> None:
        give_back = self._stop_asked or self._life.worker != worker
        self._given_back += give_back
        self._running.begin(claimed, worker, give_back=give_back)
        if self.claims.spent:
            self._leave("recycle" if self._options.max_jobs is None else "max_jobs")

    def _on_ended(self, queues: Sequence[str]) -> None:
        for queue, jobs in Counter(queues).items():
            self.claims.ended(queue, jobs)

    # --- beside ----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        def look() -> None:
            self.claims.wake()
            self._lookout.look_again()

        await self._life.listen(self._hear, look)

    def _hear(self, channel: str, word: str) -> None:
        if channel == "penstock_job":
            self.claims.wake(word)
        elif channel == "penstock_cancel" and self._running.has(word):
            # Only a reason to look: any role that may connect can send this.
            self._cancel_asked.set()
        elif channel == "penstock_circuit":
            self._lookout.hear(word)

    async def _look_around(self) -> None:
        """For cancels, at once after a notification of one, and for starts that nobody knows of."""
        while True:
            for _ in range(FORGOTTEN_LOOKS):
                await self._cancel_asked.wait(LOOK_SECONDS)
                self._cancel_asked.clear()
                if self._life.worker is not None:
                    await self._running.look_for_cancels(self._life.worker)
            # Not while an answer is long in coming: what it brings is not forgotten.
            if (
                self._life.worker is not None
                and self.claims.waited < ANSWER_SOON_SECONDS
                and await self._running.give_back_forgotten(self._life.worker)
            ):
                self.claims.wake()

    async def _on_recovered(self) -> None:
        """Work came back: ours to take, and that of workers elsewhere."""
        self.claims.wake()
        await self._engine.jobs.wake(self.claims.queues)

    async def _on_forward(self, by: timedelta, before: datetime) -> None:
        """By the server's clock our starts look older than they are; by our own they are not."""
        await self._engine.workers.postpone(self._life.worker, by=by, before=before)

    async def _renew(self) -> None:
        self._engine.renew()

    # --- leaving ---------------------------------------------------------------------------------

    async def _wind_down(self) -> None:
        """Let what runs end, or give it back; tell all of it; say good-bye."""
        await self.claims.finish()
        drain = self._options.drain.total_seconds()
        if self._stint is not None:
            over = self._stint.left
            await self._while_running(lambda: min(over, drain) if self._stop_asked else over)
        else:
            await self._while_running(lambda: drain if self._stop_asked else None)
        left = self._running.at_work
        self._given_back += len(left)
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
            _log.warning("left without a word (%s); the lease settles it", error_place(error))

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


def _modules(handlers: Mapping[str, Handler]) -> list[str]:
    """What processes of handlers will import: done once for all of them."""
    return sorted({handler.origin[0] for handler in handlers.values() if handler.origin})
