"""on_finish callbacks: the app writes in the transaction that finishes its job."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import asyncpg

from penstock.base.error_location import error_location
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Error, OutcomeRow, outcome_row
from penstock.engine.jobs.attempts import Retry as Retried
from penstock.engine.jobs.on_finish import FinishedJob
from penstock.failures.frames import frames_of
from penstock.models.handlers.exceptions import described
from penstock.models.handlers.handler import Handler
from penstock.worker.attempts.attempt import (
    LEAST_PATIENCE,
    LOCKED_SECONDS,
    Attempt,
    until_available,
)
from penstock.worker.attempts.open_attempts import OpenAttempts
from penstock.worker.reporting.outcomes import OutcomeWriter
from penstock.worker.reporting.progress import ProgressWriter

# How many transactions finish jobs at once. Each keeps a connection while the app writes.
AT_ONCE = 4
# How often a failing on_finish is called before the attempt counts as failed.
TRIES = 3
TRY_SECONDS = 0.1
# Each try calls the app's function again.
LONGEST_LOCKED_SECONDS = 1.0
# How long an on_finish may take: during it a connection is in use and the job is locked.
ON_FINISH_SECONDS = 30.0

_log = logging.getLogger("penstock.worker")


class OnFinishFailed(Exception):
    """The app's on_finish raised; its exception is the cause."""

    def __init__(self, job: FinishedJob, cause: BaseException) -> None:
        super().__init__()
        self.job = job
        self.cause = cause


class _Undone(Exception):
    """The job could not be finished after all, so the app's writes are undone, too."""


class DueCallbacks:
    """Calls on_finish for jobs that others finished: a callback, a cancel, upkeep."""

    def __init__(
        self, engine: Engine, handlers: Mapping[str, Handler], *, tracebacks: bool = True
    ) -> None:
        """`tracebacks`: log the frames of errors, and keep them with the attempt."""
        self._engine = engine
        self._tracebacks = tracebacks
        self._handlers = {
            kind: handler for kind, handler in handlers.items() if handler.on_finish is not None
        }

    @property
    def kinds(self) -> list[str]:
        return list(self._handlers)

    async def deliver(self) -> int:
        """Call on_finish for jobs that others finished, and after failed calls; how many calls."""
        called = 0
        while self._handlers:
            try:
                async with self._engine.transaction() as conn:
                    job = await self._engine.on_finish.take(self.kinds, conn=conn)
                    if job is None:
                        break
                    await self._call(job, conn)
                called += 1
            except OnFinishFailed as failed:
                self._log_failure(failed)
                await self._engine.on_finish.put_off(failed.job.id)
        return called

    async def _call(self, job: FinishedJob, conn: asyncpg.Connection) -> None:
        on_finish = self._handlers[job.kind].on_finish
        assert on_finish is not None  # noqa: S101  # only such kinds are here
        try:
            async with asyncio.timeout(ON_FINISH_SECONDS):
                await on_finish(job, conn)
            # Now and not at the commit. A failed statement whose error the app swallowed would undo
            # the outcome unnoticed; and a deferred constraint of the app that fails would look like
            # our error.
            await conn.execute("set constraints all immediate")
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the worker leaves
            # Also SystemExit and the like: the app raised it, and it does not end the worker.
            raise OnFinishFailed(job, error) from error

    def _log_failure(self, failed: OnFinishFailed) -> tuple[str, ...]:
        """Log the failure after the `except` block, and return its frames.

        Inside the block, a log handler that fails would print the exception being handled.
        """
        frames = frames_of(failed.cause) if self._tracebacks else ()
        log = partial(
            _log.warning,
            "on_finish failed: %s",
            error_location(failed.cause, frames),
            extra={"kind": failed.job.kind, "job": failed.job.id},
        )
        asyncio.get_running_loop().call_soon(log)
        return frames


class FinishingCallbacks(DueCallbacks):
    """Also calls on_finish for jobs that this worker finishes, in the finishing transaction."""

    def __init__(  # noqa: PLR0913  # the parts of a worker that it uses
        self,
        engine: Engine,
        progress: ProgressWriter,
        attempts: OpenAttempts,
        outcomes: OutcomeWriter,
        handlers: Mapping[str, Handler],
        *,
        tracebacks: bool = True,
    ) -> None:
        super().__init__(engine, handlers, tracebacks=tracebacks)
        self._progress = progress
        self._attempts = attempts
        self._outcomes = outcomes
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def finish(self, attempt: Attempt, row: OutcomeRow) -> None:
        """Write this outcome and let the app write, in one transaction.

        If on_finish keeps failing, the attempt fails. If that finishes the job, it is finished
        without the app's writes, and `deliver` calls the function later, again and again.
        """
        failures = 0
        while failures < TRIES:
            try:
                # One turn for each try: an attempt that waits for a lock does not delay the others.
                async with self._turn:
                    verdict = await until_available(partial(self._finish_together, attempt, row))
                if verdict != "locked":
                    self._attempts.settle([attempt])
                    return
                attempt.lock_misses += 1
                await asyncio.sleep(
                    min(LONGEST_LOCKED_SECONDS, LOCKED_SECONDS * attempt.lock_misses)
                )
            except OnFinishFailed as failed:
                frames = self._log_failure(failed)
                failures += 1
                if failures < TRIES:
                    await asyncio.sleep(TRY_SECONDS)
                elif row.outcome == "succeeded":
                    message = f"on_finish: {described(failed.cause)}"
                    bug = Retried(Error("bug", message, frames=frames))
                    row = outcome_row(
                        attempt.claimed, bug, usage=attempt.usage, units=attempt.units
                    )
            except Exception as error:  # noqa: BLE001  # the outcome writer tries again
                _log.warning("an outcome could not be written: %s", error_location(error))
                break
        # Without the app's writes: the row that `deliver` searches for stays.
        self._outcomes.add(attempt, row)

    async def _finish_together(self, attempt: Attempt, row: OutcomeRow) -> str:
        """Do the app's writes first, then the outcome: rows that others need are locked briefly."""
        await self._progress.flush_reports_of([attempt])
        # Only now and then with a wait: it occupies one of few turns, and locks the job meanwhile.
        waits = attempt.patient and attempt.lock_misses % 4 == 0
        with suppress(_Undone):
            async with self._engine.transaction() as conn:
                job = await self._engine.on_finish.hold(attempt.worker, row, conn=conn)
                if job is not None:
                    await self._call(job, conn)
                [verdict] = await self._engine.jobs.finish_rows(
                    attempt.worker, [row], conn=conn, wait=LEAST_PATIENCE if waits else None
                )
                if verdict.verdict == "done":
                    finished = await self._engine.on_finish.take(
                        self.kinds, conn=conn, job_id=row.job_id
                    )
                    # Another session had locked the job for a moment, so this one could not lock it
                    # before.
                    if job is None and finished is not None:
                        await self._call(finished, conn)
                elif job is not None:
                    raise _Undone
        return verdict.verdict
