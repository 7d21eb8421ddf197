"""Telling the database how starts ended: as many as there are in one transaction, and never lost.

While one batch is being written the next gathers, so a slow job is told at once and thousands of
fast ones share a commit. An outage keeps the batch; a batch that is refused is split until the bad
row is found; what an app's open transaction holds is told again a moment later, by itself, and
then with a little patience.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from uuid import UUID

import asyncpg

from penstock.base.error_place import error_place
from penstock.db.connections.listener import AWAY
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Told, tell
from penstock.engine.jobs.outcomes import Error, Failed
from penstock.errors import Conflict, Refused
from penstock.worker.execution.attempt import Start
from penstock.worker.reporting.progress import Desk

BATCH = 500
AWAY_SECONDS = (0.05, 1.0)
BUSY_SECONDS = 0.05
LATER_SECONDS = 5.0
# How many held accounts are waited for at once.
PATIENT_ACCOUNTS = 3

_log = logging.getLogger("penstock.worker")

End = tuple[Start, Told]


class Ends:
    """The only writer of ends. `on_told` hears which starts are settled, one way or another."""

    def __init__(
        self, engine: Engine, desk: Desk, on_told: Callable[[Sequence[Start]], None]
    ) -> None:
        self._engine = engine
        self._desk = desk
        self._on_told = on_told
        self._waiting: deque[End] = deque()
        self._held: dict[int | None, deque[End]] = {}
        self._due: asyncio.Queue[int | None] = asyncio.Queue()
        self._open = 0
        self._news = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def add(self, start: Start, told: Told) -> None:
        self._open += 1
        self._quiet.clear()
        self._line_up(start, told)

    @property
    def backlog(self) -> int:
        return self._open

    async def all_told(self) -> None:
        """Wait until nothing is left to tell."""
        await self._quiet.wait()

    async def run(self) -> None:
        """For ever: all that need not wait for anybody."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                await self._write(_next_batch(self._waiting))

    async def insist(self) -> None:
        """For ever, beside `run`: ends whose account somebody holds again and again.

        Where many callers queue for an account, who only tries finds it taken for seconds. A few
        accounts at a time are waited for, on connections of their own: nobody else waits for them.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(PATIENT_ACCOUNTS):
                group.create_task(self._insist())

    async def _insist(self) -> None:
        while True:
            account = await self._due.get()
            ends = self._held.pop(account)
            while ends:
                await self._write(_next_batch(ends))

    def _line_up(self, start: Start, told: Told) -> None:
        if not start.patient:
            self._waiting.append((start, told))
            self._news.set()
            return
        account = start.claimed.slot_account
        if account not in self._held:
            self._held[account] = deque()
            self._due.put_nowait(account)
        self._held[account].append((start, told))

    def _settle(self, starts: list[Start]) -> None:
        self._open -= len(starts)
        self._on_told(starts)
        if not self._open:
            self._quiet.set()

    async def _write(self, batch: list[End]) -> None:
        try:
            await self._until_there(batch)
        except Exception as error:  # noqa: BLE001  # an end must not be lost, whatever it is
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._write(batch[:middle])
                await self._write(batch[middle:])
                return
            [(start, told)] = batch
            if _is_final(error) and told.outcome != "failed":
                self._again(*_unfit(start, error))
            else:
                # A deadlock, a full disk, a server that only reads: it may pass.
                start.refusals += 1
                self._again(start, told, min(LATER_SECONDS, BUSY_SECONDS * 2**start.refusals))
                _log.warning(
                    "the end of a job cannot be written now: %s",
                    error_place(error),
                    extra={"job": start.claimed.id, "kind": start.claimed.kind},
                )

    async def _until_there(self, batch: list[End]) -> None:
        """Write, however long the database is away."""
        pause, longest = AWAY_SECONDS
        odd: dict[UUID, str] | None = None
        while odd is None:
            try:
                if self._desk.busy and any(self._desk.has(start) for start, _ in batch):
                    await self._desk.flush()
                first = batch[0][0]
                verdicts = await self._engine.jobs.finish_told(
                    first.worker,
                    [told for _, told in batch],
                    all_done=False,
                    wait=first.patience,
                )
                odd = {verdict.job_id: verdict.verdict for verdict in verdicts}
            except AWAY:
                await asyncio.sleep(pause)
                pause = min(longest, pause * 2)
        if not odd:
            self._settle([start for start, _ in batch])
            return
        settled = []
        for start, told in batch:
            verdict = odd.get(told.job_id)
            if verdict == "busy":
                start.busies += 1
                self._again(start, told)
                continue
            if verdict == "stale":
                _log.info(
                    "an end came too late to count, or was told before",
                    extra={"job": told.job_id, "attempt": told.attempt},
                )
            settled.append(start)
        self._settle(settled)

    def _again(self, start: Start, told: Told, seconds: float = BUSY_SECONDS) -> None:
        asyncio.get_running_loop().call_later(seconds, self._line_up, start, told)


def _next_batch(ends: deque[End]) -> list[End]:
    """Of one identity: a worker that was lost and registered again has two."""
    worker = ends[0][0].worker
    batch: list[End] = []
    jobs: set[UUID] = set()
    while ends and len(batch) < BATCH and ends[0][0].worker == worker:
        job = ends[0][1].job_id
        if job in jobs:  # two starts of one job: verdicts come by job
            break
        jobs.add(job)
        batch.append(ends.popleft())
    return batch


def _is_final(error: Exception) -> bool:
    """Whether the database will never take it: we refuse it, or it cannot be stored."""
    return isinstance(
        error, Refused | asyncpg.DataError | asyncpg.ProgramLimitExceededError
    ) and not isinstance(error, Conflict)


def _unfit(start: Start, error: Exception) -> End:
    """Its result cannot be stored: a bug of the handler, in words that do not quote it."""
    failed = Failed(
        Error("bug", f"its end cannot be stored ({type(error).__name__})", retryable=False)
    )
    return start, tell(start.claimed, failed, units=start.units)
