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

from penstock.db.listen import AWAY
from penstock.engine import Engine
from penstock.engine.outcomes import Error, Failed
from penstock.engine.starts import Told, tell
from penstock.errors import Conflict, Refused
from penstock.worker.outcomes import whereabouts
from penstock.worker.reports import Desk
from penstock.worker.start import IMPATIENT_TRIES, Start

BATCH = 500
AWAY_SECONDS = (0.05, 1.0)
BUSY_SECONDS = 0.05
LATER_SECONDS = 5.0
PATIENT_SECONDS = 1.0

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
        self._apart = 0
        self._news = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def add(self, start: Start, told: Told) -> None:
        self._waiting.append((start, told))
        self._quiet.clear()
        self._news.set()

    @property
    def backlog(self) -> int:
        return len(self._waiting) + self._apart

    async def all_told(self) -> None:
        """Wait until nothing is left to tell."""
        await self._quiet.wait()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                await self._write(self._next_batch())
            if not self._apart:
                self._quiet.set()

    def _next_batch(self) -> list[End]:
        """Of one identity: a worker that was lost and registered again has two.

        What waits for an account goes with others of that account, and with nothing else.
        """
        first = self._waiting[0][0]
        batch: list[End] = []
        jobs: set[UUID] = set()
        while self._waiting and len(batch) < BATCH and _goes_with(first, self._waiting[0][0]):
            job = self._waiting[0][1].job_id
            if job in jobs:  # two starts of one job: verdicts come by job
                break
            jobs.add(job)
            batch.append(self._waiting.popleft())
        return batch

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
                    whereabouts(error),
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
                    wait=first.patient,
                )
                odd = {verdict.job_id: verdict.verdict for verdict in verdicts}
            except AWAY:
                await asyncio.sleep(pause)
                pause = min(longest, pause * 2)
        if not odd:
            self._on_told([start for start, _ in batch])
            return
        settled = []
        for start, told in batch:
            verdict = odd.get(told.job_id)
            if verdict == "busy":
                start.busies += 1
                pause = BUSY_SECONDS * 2 ** max(0, start.busies - IMPATIENT_TRIES)
                self._again(start, told, min(PATIENT_SECONDS, pause))
                continue
            if verdict == "stale":
                _log.info(
                    "an end came too late to count, or was told before",
                    extra={"job": told.job_id, "attempt": told.attempt},
                )
            settled.append(start)
        self._on_told(settled)

    def _again(self, start: Start, told: Told, seconds: float = BUSY_SECONDS) -> None:
        self._apart += 1
        asyncio.get_running_loop().call_later(seconds, self._back, start, told)

    def _back(self, start: Start, told: Told) -> None:
        self._apart -= 1
        self.add(start, told)


def _goes_with(first: Start, other: Start) -> bool:
    """Whether both ends may be told in one transaction."""
    if first.worker != other.worker or first.patient != other.patient:
        return False
    return not first.patient or first.claimed.slot_account == other.claimed.slot_account


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
    return start, tell(start.claimed, failed)
