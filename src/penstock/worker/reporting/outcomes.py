"""Writes outcomes: all that are ready in one transaction, and none is lost.

While one batch is being written the next gathers, so a slow job's outcome is written at once and
thousands of fast jobs share a commit. An outage keeps the batch. A batch that is refused is split
until the bad row is found. If an app's open transaction has locked the account of an outcome, that
outcome is written again a moment later on its own connection, and then waits a little for the lock.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from uuid import UUID

import asyncpg

from penstock.base.error_location import error_location
from penstock.engine.jobs.attempts import Error, Failed, OutcomeRow, outcome_row
from penstock.errors import Conflict, Refused
from penstock.worker.attempts.attempt import LOCKED_SECONDS, Attempt, until_available
from penstock.worker.attempts.open_attempts import OpenAttempts
from penstock.worker.reporting.progress import ProgressWriter, in_halves

BATCH = 500
LATER_SECONDS = 5.0
# For how many locked accounts outcomes wait at once.
PATIENT_ACCOUNTS = 3

_log = logging.getLogger("penstock.worker")

Waiting = tuple[Attempt, OutcomeRow]


class OutcomeWriter:
    """The only writer of outcomes. It settles each attempt whose outcome the database has."""

    def __init__(self, progress: ProgressWriter, attempts: OpenAttempts) -> None:
        self._progress = progress
        self._attempts = attempts
        self._waiting: deque[Waiting] = deque()
        self._locked: dict[int | None, deque[Waiting]] = {}
        self._due: asyncio.Queue[int | None] = asyncio.Queue()
        self._open = 0
        self._ready = asyncio.Event()
        self._all_written = asyncio.Event()
        self._all_written.set()

    def add(self, attempt: Attempt, row: OutcomeRow) -> None:
        self._open += 1
        self._all_written.clear()
        self._enqueue(attempt, row)

    @property
    def backlog(self) -> int:
        """How many outcomes are not written yet."""
        return self._open

    async def all_written(self) -> None:
        """Wait until all outcomes are written."""
        await self._all_written.wait()

    async def run(self) -> None:
        """Write, for ever, the outcomes that wait for no lock."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._waiting:
                await in_halves(_next_batch(self._waiting), self._write, self._refuse)

    async def write_locked(self) -> None:
        """Write, for ever, the outcomes whose account was locked again and again.

        If many callers queue for an account, a try without a wait finds it locked for seconds.
        Outcomes wait for a few accounts at a time, on separate connections, so that other outcomes
        do not wait.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(PATIENT_ACCOUNTS):
                group.create_task(self._write_locked())

    async def _write_locked(self) -> None:
        while True:
            account = await self._due.get()
            waiting = self._locked.pop(account)
            while waiting:
                await in_halves(_next_batch(waiting), self._write, self._refuse)

    def _enqueue(self, attempt: Attempt, row: OutcomeRow) -> None:
        if not attempt.patient:
            self._waiting.append((attempt, row))
            self._ready.set()
            return
        account = attempt.claimed.slot_account
        if account not in self._locked:
            self._locked[account] = deque()
            self._due.put_nowait(account)
        self._locked[account].append((attempt, row))

    def _settle(self, attempts: list[Attempt]) -> None:
        self._open -= len(attempts)
        self._attempts.settle(attempts)
        if not self._open:
            self._all_written.set()

    def _refuse(self, waiting: Waiting, error: Exception) -> None:
        """Write another outcome, or the same one later: no outcome may be lost."""
        attempt, row = waiting
        if _is_final(error) and row.outcome != "failed":
            self._enqueue_later(*_unfit(attempt, error))
            return
        # A deadlock, a full disk, a read-only server: it may pass.
        attempt.refusals += 1
        seconds = min(LATER_SECONDS, LOCKED_SECONDS * 2**attempt.refusals)
        self._enqueue_later(attempt, row, seconds)
        _log.warning(
            "the outcome of a job cannot be written now: %s",
            error_location(error),
            extra={"job": attempt.claimed.id, "kind": attempt.claimed.kind},
        )

    async def _write(self, batch: Sequence[Waiting]) -> None:
        """Write the batch, however long the database is unavailable."""
        attempts = [attempt for attempt, _ in batch]

        async def finish() -> dict[UUID, str]:
            await self._progress.flush_reports_of(attempts)
            first, rows = attempts[0], [row for _, row in batch]
            verdicts = await self._progress.engine.jobs.finish_rows(
                first.worker, rows, all_done=False, wait=first.patience
            )
            return {verdict.job_id: verdict.verdict for verdict in verdicts}

        if not (unsettled := await until_available(finish)):
            self._settle(attempts)
            return
        settled = []
        for attempt, row in batch:
            verdict = unsettled.get(row.job_id)
            if verdict == "locked":
                attempt.lock_misses += 1
                self._enqueue_later(attempt, row)
                continue
            if verdict == "stale":
                _log.info(
                    "an outcome came too late to count, or had already been written",
                    extra={"job": row.job_id, "attempt": row.attempt},
                )
            settled.append(attempt)
        self._settle(settled)

    def _enqueue_later(
        self, attempt: Attempt, row: OutcomeRow, seconds: float = LOCKED_SECONDS
    ) -> None:
        asyncio.get_running_loop().call_later(seconds, self._enqueue, attempt, row)


def _next_batch(waiting: deque[Waiting]) -> list[Waiting]:
    """Take outcomes of one identity: a worker that was lost and registered again has two."""
    worker = waiting[0][0].worker
    batch: list[Waiting] = []
    jobs: set[UUID] = set()
    while waiting and len(batch) < BATCH and waiting[0][0].worker == worker:
        job = waiting[0][1].job_id
        if job in jobs:  # two attempts of one job: verdicts are returned by job
            break
        jobs.add(job)
        batch.append(waiting.popleft())
    return batch


def _is_final(error: Exception) -> bool:
    """Whether the database will never accept it: Penstock refuses it, or it cannot be stored."""
    return isinstance(
        error, Refused | asyncpg.DataError | asyncpg.ProgramLimitExceededError
    ) and not isinstance(error, Conflict)


def _unfit(attempt: Attempt, error: Exception) -> Waiting:
    """Fail an attempt whose result cannot be stored; the message does not quote the result."""
    failed = Failed(
        Error("bug", f"its outcome cannot be stored ({type(error).__name__})", retryable=False)
    )
    return attempt, outcome_row(attempt.claimed, failed, units=attempt.units)
