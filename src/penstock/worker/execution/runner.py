"""The path of one attempt: begin it, call its handler, turn the result into an outcome."""

import asyncio
import contextvars
import functools
import inspect
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, assert_never

from penstock.base.error_location import error_location
from penstock.base.safe_access import is_a
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import (
    Claimed,
    Deferred,
    Error,
    Failed,
    Outcome,
    OutcomeRow,
    Released,
    Succeeded,
    outcome_row,
)
from penstock.engine.jobs.attempts import Retry as Retried
from penstock.engine.queries.events import LAST_SECONDS
from penstock.errors import Invalid, TooLarge, words_of
from penstock.failures.frames import frames_of
from penstock.failures.outcome import clean
from penstock.models.handlers.exceptions import Cancel, Fail, LeaseLost, Retry, Snooze, outcome_of
from penstock.models.handlers.handler import Handler, Mode
from penstock.models.handlers.job import Job
from penstock.net.provider_errors import ProviderError
from penstock.worker.attempts.attempt import LOCKED_SECONDS, Attempt, until_available
from penstock.worker.attempts.open_attempts import OpenAttempts
from penstock.worker.attempts.slots import Slots
from penstock.worker.attempts.threads import Threads
from penstock.worker.execution.process_handlers import run_in_process
from penstock.worker.execution.processes import Processes
from penstock.worker.execution.suspects import SUSPECT_LOSSES, Suspects
from penstock.worker.reporting.on_finish import FinishingCallbacks
from penstock.worker.reporting.outcomes import OutcomeWriter
from penstock.worker.reporting.progress import ProgressWriter

_OF_WAITING = ("timeout", "stalled", "unavailable", "interrupted")

_log = logging.getLogger("penstock.worker")


class Runner:
    """Runs attempts. Claims begin them here; the outcome writer settles them."""

    def __init__(  # noqa: PLR0913  # the parts of a worker that it uses
        self,
        engine: Engine,
        handlers: Mapping[str, Handler],
        attempts: OpenAttempts,
        progress: ProgressWriter,
        *,
        slots: Slots,
        threads: Threads,
        processes: Processes,
        certain: bool,
        tracebacks: bool,
    ) -> None:
        """`certain`: count a failure at once, even if the provider may have caused it.

        `tracebacks`: log the frames of errors, and keep them with the attempt.
        """
        self._engine = engine
        self._handlers = handlers
        self._attempts = attempts
        self._progress = progress
        self._slots = slots
        self._threads = threads
        self._processes = processes
        self._certain = certain
        self._tracebacks = tracebacks
        self._suspects = Suspects(slots)
        self._loop = asyncio.get_running_loop()
        self._finishing: set[asyncio.Task[None]] = set()
        self.outcomes = OutcomeWriter(progress, attempts)
        self.callbacks = FinishingCallbacks(
            engine, progress, attempts, self.outcomes, handlers, tracebacks=tracebacks
        )

    def begin(self, claimed: Claimed, worker: int, *, release: bool) -> None:
        """Begin an attempt that was claimed; `release`: return it to the queue instead."""
        handler = self._handlers[claimed.kind]
        attempt = Attempt(claimed, handler, worker, self._progress)
        if not self._attempts.add(attempt) or release:
            self._slots.release(handler.mode)
            self._record(attempt, Released())
        else:
            attempt.task = self._loop.create_task(self._run(attempt))
        # Last: the handler must not wait until watchers were notified.
        self._progress.notifier.notify()

    async def _run(self, attempt: Attempt) -> None:
        outcome: Outcome = Retried(Error("bug", "the worker could not determine its outcome"))
        try:
            outcome = await self._outcome(attempt)
        finally:
            handler = attempt.handler
            if any(not thread.done() for thread in attempt.threads):
                # An abandoned function that still runs in its thread keeps its slot.
                self._release_after(attempt.threads, handler.mode)
            elif handler.on_finish is None:
                self._slots.release(handler.mode)
            else:
                attempt.keeps_slot = True
            self._record(attempt, outcome)

    # --- the handler -----------------------------------------------------------------------------

    async def _outcome(self, attempt: Attempt) -> Outcome:
        """Call the handler and return its outcome. Raises only what ends the whole process."""
        if not attempt.begin():
            return attempt.outcome_of_stop()
        try:
            if attempt.claimed.losses >= SUSPECT_LOSSES:
                async with self._suspects.isolated(attempt):
                    return Succeeded(await self._call(attempt))
            # Few calls deep: each coroutine between the loop and the handler costs time in every
            # job.
            return Succeeded(await self._call(attempt))
        except asyncio.CancelledError as stopped:
            silent = stopped.__cause__
            if attempt.reason != "timeout" or not isinstance(silent, ProviderError):
                return attempt.outcome_of_stop()
            # The model had sent nothing (providers.stream.paced): that is its failure, and counts
            # for the circuit. A job that merely takes long does not.
            error: BaseException = silent
        except LeaseLost:
            attempt.reason = attempt.reason or "lost"
            return attempt.outcome_of_stop()
        except BaseException as raised:  # noqa: BLE001  # a handler that exits ends its job only
            error = raised
            if _follows_from_stop(attempt, error):
                return attempt.outcome_of_stop()
        # Not in the block above: if the log cannot be written, the exception handled there is
        # printed.
        try:
            return self._failure(attempt, error)
        except BaseException:  # noqa: BLE001  # reading an exception may run any code
            return Retried(Error("bug", type(error).__name__))

    def _failure(self, attempt: Attempt, error: BaseException) -> Outcome:
        outcome = outcome_of(error, attempt.handler.extensions)
        if self._certain and isinstance(outcome, Retried):
            outcome = replace(outcome, provisional=False)
        if not isinstance(error, Fail | Retry | Snooze | Cancel):
            if _may_come_from_blocked_loop(outcome) and attempt.excused:
                _log.info(
                    "released: its call failed after another job had blocked the event loop",
                    extra={"job": attempt.claimed.id, "kind": attempt.claimed.kind},
                )
                return Released()
            frames = frames_of(error) if self._tracebacks and not is_a(error, ProviderError) else ()
            outcome = _with_frames(outcome, frames)
            # A failure of the provider is logged once, when its circuit opens.
            claimed = attempt.claimed
            free = isinstance(outcome, Deferred) and outcome.error.cls != "config"
            level = logging.INFO if free else logging.WARNING
            _log.log(
                level,
                "a handler failed: %s",
                # Penstock's own message is more useful than a location in its code, and quotes
                # nobody.
                words_of(error) if is_a(error, ProviderError) else error_location(error, frames),
                extra={"job": claimed.id, "kind": claimed.kind, "attempt": claimed.attempt},
            )
        return outcome

    async def _call(self, attempt: Attempt) -> Any:
        handler = attempt.handler
        try:
            arguments = handler.parameters.load(attempt.claimed.payload)
        except Invalid as error:
            # The payload does not fit the present handler, and never will.
            raise Fail(error.message, public=False) from None
        name = handler.parameters.job_parameter
        if handler.mode == "process":
            return await run_in_process(self._processes, attempt)
        if name is not None:
            arguments[name] = Job(attempt, blocking=handler.mode == "thread")
        match handler.mode:
            case "async":
                return await handler.function(**arguments)
            case "thread":
                context = contextvars.copy_context()
                function = functools.partial(context.run, handler.function, **arguments)
                return await asyncio.wrap_future(attempt.submit(self._threads, function))
            case _:
                assert_never(handler.mode)

    # --- the outcome -----------------------------------------------------------------------------

    def _record(self, attempt: Attempt, outcome: Outcome) -> None:
        """Have the outcome written."""
        attempt.unwatch()
        row = _row_of(attempt, outcome)
        self._progress.leave_units(attempt)
        if attempt.token is None and attempt.handler.on_finish is None:
            self.outcomes.add(attempt, row)
        else:
            task = self._loop.create_task(self._record_later(attempt, row))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)

    async def _record_later(self, attempt: Attempt, row: OutcomeRow) -> None:
        """Write an outcome and keep the slot until then: a slow on_finish must bound the work."""
        try:
            if attempt.token is not None:
                await self._take_back(attempt, attempt.token, row)
            elif row.outcome in ("snoozed", "released"):
                self.outcomes.add(attempt, row)
            else:
                await self.callbacks.finish(attempt, row)
        finally:
            if attempt.keeps_slot:
                self._slots.release(attempt.handler.mode)
            if attempt.token is not None:
                self._attempts.settle([attempt])

    async def _take_back(self, attempt: Attempt, token: str, row: OutcomeRow) -> None:
        """Finish a dispatched attempt whose handler failed; otherwise a callback will finish it."""
        # A worker that leaves, or lost its lease, does not know whether the function has the job.
        verdict = "done" if row.outcome in ("succeeded", "released") else "locked"
        take_back = self._engine.callbacks.take_back
        try:
            while verdict == "locked":
                verdict = await until_available(
                    lambda: take_back(row, token, wait=attempt.patience)
                )
                if verdict == "locked":
                    attempt.lock_misses += 1
                    await asyncio.sleep(LOCKED_SECONDS)
        except Exception as error:  # noqa: BLE001  # the job awaits until its time-out
            _log.warning("a job could not be taken back: %s", error_location(error))
        if verdict == "stale":
            _log.info(
                "a job was not taken back: its callback came first",
                extra={"job": row.job_id, "attempt": row.attempt},
            )

    def _release_after(self, threads: "Sequence[Future[Any]]", mode: Mode) -> None:
        """Release the slot when all of these threads have returned."""
        left = [thread for thread in threads if not thread.done()]
        if not left:
            self._slots.release(mode)
            return

        def check_again(_: "Future[Any]") -> None:
            with suppress(RuntimeError):  # the worker has left, and its loop is closed
                self._loop.call_soon_threadsafe(self._release_after, left, mode)

        left[0].add_done_callback(check_again)

    async def all_recorded(self) -> None:
        """Wait until the database has every outcome."""
        await asyncio.gather(*self._finishing, return_exceptions=True)
        await self.outcomes.all_written()
        await self._progress.notifier.close(LAST_SECONDS)


def _with_frames(outcome: Outcome, frames: tuple[str, ...]) -> Outcome:
    if frames and isinstance(outcome, Failed | Retried | Deferred):
        return replace(outcome, error=replace(outcome.error, frames=frames))
    return outcome


def _may_come_from_blocked_loop(outcome: Outcome) -> bool:
    """Whether a call failed in a way that can come from a blocked event loop."""
    return isinstance(outcome, Retried | Deferred) and outcome.error.cls in _OF_WAITING


def _follows_from_stop(attempt: Attempt, error: BaseException) -> bool:
    """Whether a handler raised this because it was stopped: then it is not a failure.

    What the handler itself decides about a time-out or a cancel counts. It does not count if the
    worker stopped the attempt for its own reasons.
    """
    if attempt.reason in ("lost", "stop"):
        return True
    return attempt.reason is not None and not isinstance(error, Fail | Retry | Snooze | Cancel)


def _row_of(attempt: Attempt, outcome: Outcome) -> OutcomeRow:
    """The outcome of an attempt as a row; a result that cannot be kept is the handler's bug."""
    try:
        return outcome_row(attempt.claimed, outcome, usage=attempt.usage, units=attempt.units)
    except (Invalid, TooLarge) as error:
        message = clean(error.message)
    except BaseException as error:  # noqa: BLE001  # reading a result may run any code
        message = f"its result cannot be read: {type(error).__name__}"
    code = inspect.unwrap(attempt.handler.function).__code__
    _log.warning(
        "the result that the handler at %s:%d returned cannot be kept: see the job's error",
        code.co_filename,
        code.co_firstlineno,
        extra={"job": attempt.claimed.id, "kind": attempt.claimed.kind},
    )
    return outcome_row(
        attempt.claimed, Failed(Error("bug", message, retryable=False)), units=attempt.units
    )
