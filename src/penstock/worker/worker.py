"""The worker: claims jobs for its free slots, runs them, and records their outcomes.

    claims          a loop per queue: claim, begin, wait for a wake-up or the poll
    runner          a task per attempt: call the handler, hand its outcome to the outcome writer
    outcomes        one writer: all outcomes that are ready in one transaction, then it settles them
    background      heartbeat (a thread), listener, upkeep, progress writer, cancels

Nothing depends on a NOTIFY: polls do the work, and a NOTIFY only makes a poll happen at once.
Whatever the database does, the worker goes on: handlers run through an outage, and the fence
decides afterwards what counts.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import inf
from uuid import UUID

from penstock.base.error_location import error_location
from penstock.db.connections.driver_errors import POOLED
from penstock.db.connections.listener import DATABASE_UNAVAILABLE, listen
from penstock.db.connections.pooler import is_pooled
from penstock.db.connections.supervisor import Supervisor, Work
from penstock.engine.engine import Engine
from penstock.engine.workers import LEASE
from penstock.errors import Misconfigured, PenstockError
from penstock.models.handlers.handler import Handler, modes_by_queue
from penstock.worker.attempts.open_attempts import OpenAttempts, WakeUp
from penstock.worker.attempts.slots import Slots
from penstock.worker.attempts.threads import Threads
from penstock.worker.bounded_run import BoundedRun, End, run_only, run_until_idle
from penstock.worker.claiming.claims import Claims, StopReason
from penstock.worker.event_loop.loop_watch import LoopWatch
from penstock.worker.execution.processes import Processes
from penstock.worker.execution.runner import Runner
from penstock.worker.maintenance.provider_watch import ASK_SECONDS, ProviderWatch
from penstock.worker.maintenance.upkeep import UpkeepLoop, tidy
from penstock.worker.maintenance.webhooks import Webhooks
from penstock.worker.membership.registration import CHANNELS, RENEW_SECONDS, Registration
from penstock.worker.reporting.progress import ProgressWriter

# How long an answer may take before its connection counts as lost. SQL bounds a claim or an
# outcome; an answer takes longer only if the network swallows everything.
ANSWER_SECONDS = 30.0
POLL_SECONDS = 1.0
# After this many polls for cancels, one poll for attempts that this worker does not know of.
POLLS_PER_CHECK = 5
# A claim that waits for its answer for longer than this may still bring attempts that this worker
# does not know of.
ANSWER_SOON_SECONDS = 2.5
DELIVER_SECONDS = 1.0
# When the worker leaves, its last writes may take this long; after that the lease settles them.
LAST_WRITES_SECONDS = 10.0
STOP_SECONDS = 2.0
_WAIT_SECONDS = 0.02

_log = logging.getLogger("penstock.worker")

Reason = StopReason | End


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    name: str
    """Mostly host and process, for people to read. The identity is random."""
    queues: tuple[str, ...] | None = None
    """None: all queues that the handlers name."""
    concurrency: int = 500
    """How many async jobs run at once."""
    threads: int = 32
    """How many jobs of plain functions run at once."""
    processes: int = 4
    """How many jobs run at once in their own processes."""
    poll: timedelta = timedelta(seconds=1)
    lease: timedelta = LEASE
    beat: timedelta = timedelta(seconds=3)
    max_jobs: int | None = None
    """Leave after this many jobs."""
    until_idle: bool = False
    """Leave when no job is due."""
    recycle_after: int | None = None
    """Leave after this many jobs, to be restarted."""
    drain: timedelta = timedelta(seconds=25)
    """How long running jobs may go on after the worker was asked to stop."""
    job: UUID | None = None
    """Run only this job (inline)."""
    webhooks: bool = True
    """Also send messages about finished jobs."""
    run_for: timedelta | None = None
    """Work this long in one queue; leave earlier if no job is due (bounded_run.py)."""
    tracebacks: bool = True
    """Log and keep the frames of handlers' errors."""


@dataclass(frozen=True, slots=True)
class Ran:
    processed: int
    reason: Reason
    released: int = 0
    """Of those: attempts that were stopped, or did not start, because the worker left."""


class Worker:
    def __init__(self, dsn: str, handlers: Mapping[str, Handler], options: Options) -> None:
        self._dsn = dsn
        self._handlers = dict(handlers)
        self._options = options
        self._claims: Claims | None = None
        self._stop_requested = self._now_requested = False
        self._released = 0
        self._cancel_requested = WakeUp()

    async def run(self) -> Ran:
        """Run until stopped, or until the options end the run."""
        if await is_pooled(self._dsn):
            raise Misconfigured(POOLED)
        for warm in {handler.warm for handler in self._handlers.values() if handler.warm}:
            warm()
        threads = Threads(self._options.threads)
        # At least one for each job: a step that hangs must not delay another job's step.
        step_threads = Threads(self._options.concurrency + self._options.threads)
        # The modules that handlers' processes will import: the fork server imports them once for
        # all.
        origins = {handler.origin[0] for handler in self._handlers.values() if handler.origin}
        processes = Processes(sorted(origins))
        try:
            async with await Engine.open(self._dsn, answer_seconds=ANSWER_SECONDS) as engine:
                claims = self._compose(engine, threads, step_threads, processes)
                reason = await self._work(claims)
        finally:
            processes.close()
            threads.close()
            step_threads.close()
        released = self._released + claims.released
        return Ran(self._attempts.processed, claims.reason or reason, released)

    def stop(self) -> None:
        """Claim no more; running jobs may finish, or are released after a while."""
        self._stop_requested = True
        if self._claims is not None:
            self._claims.stop()

    def stop_at_once(self) -> None:
        """Release everything and leave."""
        self._now_requested = True
        self.stop()

    def _compose(
        self, engine: Engine, threads: Threads, step_threads: Threads, processes: Processes
    ) -> Claims:
        """Make the parts; each gets the ones before it."""
        options, handlers = self._options, self._handlers
        modes = modes_by_queue(handlers, options.queues)
        slots = Slots(
            {
                "async": options.concurrency,
                "thread": options.threads,
                "process": options.processes,
            }
        )
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        watch = LoopWatch(self._loop)
        self._progress = ProgressWriter(engine, self._loop, step_threads, watch)
        self._attempts = OpenAttempts(engine, watch, self._progress.notifier, modes)
        self._runner = Runner(
            engine,
            handlers,
            self._attempts,
            self._progress,
            slots=slots,
            threads=threads,
            processes=processes,
            # Inline runs count provisional failures at once: no later run can.
            certain=options.job is not None,
            tracebacks=options.tracebacks,
        )
        self._registration = Registration(
            engine,
            self._dsn,
            self._attempts,
            watch,
            register=partial(
                engine.workers.register,
                options.name,
                lease=options.lease,
                queues=list(modes),
                kinds=list(handlers),
            ),
            lease=options.lease,
            beat=options.beat,
            # A worker with a single session: if it loses that for a moment, it is not dead.
            locks=not options.until_idle,
        )
        run_for = options.run_for
        self._bounded = None if run_for is None else BoundedRun(run_for, engine, handlers)
        self._claims = Claims(
            engine,
            self._registration,
            self._attempts,
            self._runner,
            slots=slots,
            handlers=handlers,
            modes=modes,
            max_jobs=options.max_jobs,
            recycle_after=options.recycle_after,
            bounds=self._bounded,
        )
        self._keeper = UpkeepLoop(
            self._dsn, engine, self._claims.queues, self._registration, self._attempts
        )
        self._providers = ProviderWatch(engine, self._claims.queues)
        self._webhooks = Webhooks.of(engine, handlers) if options.webhooks else None
        if self._stop_requested:
            self._claims.stop()
        return self._claims

    async def _work(self, claims: Claims) -> Reason:
        """Claim and run; return why it stopped, unless the claims were stopped."""
        options = self._options
        reason: Reason = "idle"
        await self._registration.begin(claims)
        background = self._start_background()
        try:
            if options.job is not None:
                await run_only(self._engine, claims, self._attempts, options.job)
            elif self._bounded is not None:
                # A call of a host without standing workers; this may be the only upkeep.
                await self._keep_once()
                reason = await self._bounded.run(claims, self._attempts)
            elif options.until_idle:
                await self._keep_once()
                await run_until_idle(self._engine, claims, self._attempts, self._keeper)
            else:
                await claims.serve(options.poll)
            await self._wind_down(claims)
            if self._webhooks is not None and (options.until_idle or self._bounded is not None):
                await self._webhooks.send_due()
        except BaseException:
            # Cancelled, for example because the caller of an inline job has left: release
            # everything.
            self.stop_at_once()
            await asyncio.shield(self._wind_down(claims))
            raise
        finally:
            await background.stop()
            await self._registration.close()
        return reason

    async def _keep_once(self) -> None:
        """Do one pass of upkeep. On a session this new, no lease expires: see recover.sql."""
        await self._keeper.recover(self._engine.upkeep, grace=timedelta(0), judge=False)
        await tidy(self._engine.upkeep)

    # --- background tasks -------------------------------------------------------------------------

    def _start_background(self) -> Supervisor:
        outcomes, callbacks = self._runner.outcomes, self._runner.callbacks
        work: list[tuple[str, Work, float | None]] = [
            ("the progress writer", self._progress.run, None),
            ("the outcome writer", outcomes.run, None),
            ("the outcome writer of locked accounts", outcomes.write_locked, None),
            ("the watch of timeouts", self._attempts.watch, None),
            ("the check for cancels", self._check_attempts, None),
        ]
        if not self._options.until_idle:
            work += [
                ("the listener", self._listen, None),
                ("upkeep", self._keeper.run, None),
                ("on_finish callbacks", callbacks.deliver, DELIVER_SECONDS),
                ("the renewal of connections", self._renew, RENEW_SECONDS),
                ("the watch of providers", self._providers.poll, ASK_SECONDS),
            ]
            if self._webhooks is not None:
                work.append(("the sender of webhooks", self._webhooks.run, None))
        loops = Supervisor(_log)
        for name, loop, every in work:
            loops.start(name, loop, every=every)
        return loops

    async def _listen(self) -> None:
        async def on_connect(_: object) -> bool:
            # Earlier notifications may not have been received.
            self._attempts.wake()
            self._providers.watch_all()
            return True

        await listen(
            self._dsn,
            CHANNELS,
            self._on_notify,
            on_connect,
            name="penstock control",
            renew_seconds=RENEW_SECONDS,
        )

    def _on_notify(self, channel: str, payload: str) -> None:
        if channel == "penstock_job":
            self._attempts.wake(payload)
        elif channel == "penstock_cancel" and self._attempts.has(payload):
            # Only a reason to ask the database: any role that may connect can send this.
            self._cancel_requested.set()
        elif channel == "penstock_circuit":
            self._providers.on_notify(payload)

    async def _check_attempts(self) -> None:
        """Poll for cancels, at once after a notification, and for attempts not known here."""
        while True:
            for _ in range(POLLS_PER_CHECK):
                await self._cancel_requested.wait(POLL_SECONDS)
                self._cancel_requested.clear()
                if self._registration.worker is not None:
                    await self._attempts.cancel_requested(self._registration.worker)
            # Not while a claim waits long for its answer, which may bring those attempts a moment
            # later.
            if (
                self._registration.worker is not None
                and self._claims is not None
                and self._claims.waited < ANSWER_SOON_SECONDS
                and await self._attempts.release_unknown(self._registration.worker)
            ):
                self._attempts.wake()

    async def _renew(self) -> None:
        self._engine.renew()

    # --- leaving ---------------------------------------------------------------------------------

    async def _wind_down(self, claims: Claims) -> None:
        """Let running jobs finish, or release them; write all outcomes; unregister."""
        await claims.finish()
        drain = self._options.drain.total_seconds()
        left = inf if self._bounded is None else self._bounded.left
        await self._while_running(lambda: min(left, drain) if self._stop_requested else left)
        running = self._attempts.running
        self._released += len(running)
        if running:
            _log.info("%d jobs did not finish in time and are released", len(running))
        for attempt in running:
            attempt.stop("stop")
        await self._while_running(lambda: STOP_SECONDS, at_once=False)
        try:
            async with asyncio.timeout(LAST_WRITES_SECONDS):
                await self._runner.all_recorded()
                await self._runner.callbacks.deliver()
                await self._registration.end()
        except (*DATABASE_UNAVAILABLE, PenstockError) as error:
            _log.warning(
                "left without unregistering (%s): the lease settles it", error_location(error)
            )

    async def _while_running(self, seconds: Callable[[], float], *, at_once: bool = True) -> None:
        """Wait for running attempts, with or without a limit; stop waiting if stopped at once."""
        begun: float | None = None
        while self._attempts.running and not (at_once and self._now_requested):
            if (most := seconds()) < inf:
                begun = begun or self._loop.time()
                if self._loop.time() >= begun + most:
                    return
            await asyncio.sleep(_WAIT_SECONDS)
