"""Writes outcomes: all that are ready in one transaction, and none is lost.

While one batch is being written the next gathers, so a slow job's outcome is written at once and
thousands of fast ones share a commit. An outage keeps the batch; a batch that is refused is split
until the bad row is found; an outcome whose account an app's open transaction has locked is written
again a moment later, by itself, and then waits a little for the lock.
"""

import asyncio
import logging
from collections import deque
from uuid import UUID

import asyncpg

from penstock.base.error_place import error_place
from penstock.db.connections.listener import AWAY
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Error, Failed, OutcomeRow, outcome_row
from penstock.errors import Conflict, Refused
from penstock.worker.attempts.attempt import Attempt
from penstock.worker.attempts.open_attempts import OpenAttempts
from penstock.worker.reporting.progress import ProgressWriter

BATCH = 500
AWAY_SECONDS = (0.05, 1.0)
BUSY_SECONDS = 0.05
LATER_SECONDS = 5.0
# How many locked accounts are waited for at once.
PATIENT_ACCOUNTS = 3

_log = logging.getLogger("penstock.worker")

Waiting = tuple[Attempt, OutcomeRow]


class OutcomeWriter:
    """The only writer of outcomes. It settles each attempt whose outcome the database knows."""

    def __init__(self, engine: Engine, progress: ProgressWriter, attempts: OpenAttempts) -> None:
        self._engine = engine
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
        return self._open

    async def all_written(self) -> None:
        """Wait until nothing is left to write."""
        await self._all_written.wait()

    async def run(self) -> None:
        """For ever: the outcomes that need no lock that somebody else holds."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._waiting:
                await self._write(_next_batch(self._waiting))

    async def write_locked(self) -> None:
        """For ever, beside `run`: outcomes whose account was locked again and again.

        Where many callers queue for an account, a try without a wait finds it locked for seconds. A
        few accounts at a time are waited for, on connections of their own: no other outcome waits.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(PATIENT_ACCOUNTS):
                group.create_task(self._write_locked())

    async def _write_locked(self) -> None:
        while True:
            account = await self._due.get()
            waiting = self._locked.pop(account)
            while waiting:
                await self._write(_next_batch(waiting))

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

    async def _write(self, batch: list[Waiting]) -> None:
        try:
            await self._write_rows(batch)
        except Exception as error:  # noqa: BLE001  # no outcome may be lost, whatever it is
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._write(batch[:middle])
                await self._write(batch[middle:])
                return
            [(attempt, row)] = batch
            if _is_final(error) and row.outcome != "failed":
                self._enqueue_later(*_unfit(attempt, error))
            else:
                # A deadlock, a full disk, a server that only reads: it may pass.
                attempt.refusals += 1
                self._enqueue_later(
                    attempt, row, min(LATER_SECONDS, BUSY_SECONDS * 2**attempt.refusals)
                )
                _log.warning(
                    "the outcome of a job cannot be written now: %s",
                    error_place(error),
                    extra={"job": attempt.claimed.id, "kind": attempt.claimed.kind},
                )

    async def _write_rows(self, batch: list[Waiting]) -> None:
        """Write, however long the database is away."""
        pause, longest = AWAY_SECONDS
        unsettled: dict[UUID, str] | None = None
        while unsettled is None:
            try:
                if self._progress.busy and any(self._progress.has(attempt) for attempt, _ in batch):
                    await self._progress.flush()
                first = batch[0][0]
                verdicts = await self._engine.jobs.finish_rows(
                    first.worker,
                    [row for _, row in batch],
                    all_done=False,
                    wait=first.patience,
                )
                unsettled = {verdict.job_id: verdict.verdict for verdict in verdicts}
            except AWAY:
                await asyncio.sleep(pause)
                pause = min(longest, pause * 2)
        if not unsettled:
            self._settle([attempt for attempt, _ in batch])
            return
        settled = []
        for attempt, row in batch:
            verdict = unsettled.get(row.job_id)
            if verdict == "busy":
                attempt.busies += 1
                self._enqueue_later(attempt, row)
                continue
            if verdict == "stale":
                _log.info(
                    "an outcome came too late to count, or was written before",
                    extra={"job": row.job_id, "attempt": row.attempt},
                )
            settled.append(attempt)
        self._settle(settled)

    def _enqueue_later(
        self, attempt: Attempt, row: OutcomeRow, seconds: float = BUSY_SECONDS
    ) -> None:
        asyncio.get_running_loop().call_later(seconds, self._enqueue, attempt, row)


def _next_batch(waiting: deque[Waiting]) -> list[Waiting]:
    """Of one identity: a worker that was lost and registered again has two."""
    worker = waiting[0][0].worker
    batch: list[Waiting] = []
    jobs: set[UUID] = set()
    while waiting and len(batch) < BATCH and waiting[0][0].worker == worker:
        job = waiting[0][1].job_id
        if job in jobs:  # two attempts of one job: verdicts come by job
            break
        jobs.add(job)
        batch.append(waiting.popleft())
    return batch


def _is_final(error: Exception) -> bool:
    """Whether the database will never take it: we refuse it, or it cannot be stored."""
    return isinstance(
        error, Refused | asyncpg.DataError | asyncpg.ProgramLimitExceededError
    ) and not isinstance(error, Conflict)


def _unfit(attempt: Attempt, error: Exception) -> Waiting:
    """Its result cannot be stored: a bug of the handler, in words that do not quote it."""
    failed = Failed(
        Error("bug", f"its end cannot be stored ({type(error).__name__})", retryable=False)
    )
    return attempt, outcome_row(attempt.claimed, failed, units=attempt.units)
