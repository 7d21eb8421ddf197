"""Writes what handlers report while they run, for all attempts at once.

A handler reports a stage, progress or text and goes on; it does not wait for the database. The
latest report of each attempt is written at most every PACE seconds, in one call for all attempts,
fenced like an outcome. Texts that follow one another become one chunk. Only a kept step waits until
it is stored.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.base.error_location import error_location
from penstock.db.connections.listener import DATABASE_UNAVAILABLE
from penstock.engine.encoding.encode import encode
from penstock.engine.engine import Engine
from penstock.models.handlers.exceptions import LeaseLost
from penstock.worker.attempts.attempt import (
    LOCKED_SECONDS,
    Attempt,
    until_available,
)
from penstock.worker.attempts.threads import Threads
from penstock.worker.event_loop.loop_watch import LoopWatch

PACE_SECONDS = 0.1
# Nothing is appended to a chunk that has reached this length.
CHUNK_CHARACTERS = 8_192
# An attempt that has emitted more than this, not yet written, has to wait.
BACKLOG_CHARACTERS = 262_144

_log = logging.getLogger("penstock.worker")

T = TypeVar("T")


@dataclass(slots=True)
class _Chunk:
    seq: int
    text: str | None
    """Text that may still be appended to; if None, `encoded` is the JSON that was emitted."""
    encoded: str


@dataclass(slots=True)
class _Pending:
    stage: str | None = None
    label: str | None = None
    progress: str | None = None
    units: int | None = None
    chunks: deque[_Chunk] = field(default_factory=deque)
    size: int = 0

    @property
    def only_units(self) -> bool:
        return self.stage is None and self.progress is None and not self.chunks


async def in_halves(
    rows: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[None]],
    refuse: Callable[[T, Exception], None],
) -> None:
    """Write rows together; if they are refused, write each half, so that only bad rows are lost.

    `refuse` gets each row that is refused when written alone.
    """
    try:
        await write(rows)
    except DATABASE_UNAVAILABLE:
        raise
    except Exception as error:  # noqa: BLE001  # whatever the error is, no row may be lost
        if len(rows) == 1:
            refuse(rows[0], error)
            return
        for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            await in_halves(half, write, refuse)


class ProgressWriter:
    """Collects attempts' reports. All of it runs in the worker's loop."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        step_threads: Threads,
        watch: LoopWatch,
    ) -> None:
        self.engine = engine
        self.loop = loop
        self.watch = watch
        self.step_threads = step_threads
        """Run steps of async handlers that are plain functions."""
        self.notifier = engine.events.notifier()
        """Notifies watchers after attempts, progress and outcomes were written."""
        self._pending: dict[Attempt, _Pending] = {}
        self._on_its_way: dict[Attempt, _Pending] = {}
        self._written = asyncio.Event()
        self._due = asyncio.Event()
        self._writing = asyncio.Lock()

    def stage(self, attempt: Attempt, name: str, label: str | None) -> None:
        pending = self._of(attempt)
        pending.stage, pending.label = name, label

    def progress(self, attempt: Attempt, text: str) -> None:
        self._of(attempt).progress = text

    def units(self, attempt: Attempt, units: int) -> None:
        """Record how much was delivered: the charge if the job is cancelled now."""
        self._of(attempt).units = units

    def chunk(self, attempt: Attempt, text: str | None, encoded: str) -> None:
        """Add text, which may be appended to the last chunk, or (`text` None) any other JSON."""
        pending = self._of(attempt)
        pending.size += len(encoded)
        if text is not None and pending.chunks:
            last = pending.chunks[-1]
            if last.text is not None and len(last.text) + len(text) <= CHUNK_CHARACTERS:
                last.text += text
                return
        attempt.seq += 1
        pending.chunks.append(_Chunk(attempt.seq, text, encoded))

    async def room(self, attempt: Attempt) -> None:
        """Wait while this attempt has emitted more than could be written."""
        while self.is_full(attempt):
            await self._written.wait()

    def is_full(self, attempt: Attempt) -> bool:
        pending = self._pending.get(attempt)
        return pending is not None and pending.size > BACKLOG_CHARACTERS

    def leave_units(self, attempt: Attempt) -> None:
        """Drop a report of units alone: the handler has returned, and the outcome has its units."""
        pending = self._pending.get(attempt)
        if pending is not None and pending.only_units:
            del self._pending[attempt]

    async def run(self) -> None:
        """Write pending reports, at a pace, for ever."""
        while True:
            await self._due.wait()
            self._due.clear()
            await until_available(self.flush)
            await asyncio.sleep(PACE_SECONDS)

    async def flush_reports_of(self, attempts: Collection[Attempt]) -> None:
        """Write all reports now, if one of these attempts has any."""
        unwritten = [reports for reports in (self._pending, self._on_its_way) if reports]
        if any(attempt in reports for reports in unwritten for attempt in attempts):
            await self.flush()

    async def flush(self) -> None:
        """Write everything now. When the database is unavailable, reports stay; newer ones win."""
        async with self._writing:
            self._on_its_way, self._pending = self._pending, {}
            try:
                for worker in {attempt.worker for attempt in self._on_its_way}:
                    mine = [each for each in self._on_its_way if each.worker == worker]
                    await in_halves(mine, self._write, self._drop)
            finally:
                left, self._on_its_way = self._on_its_way, {}
                for attempt, pending in left.items():
                    self._put_back(attempt, pending)
                self._written.set()
                self._written = asyncio.Event()

    def _drop(self, attempt: Attempt, error: Exception) -> None:
        """Drop the refused reports of one attempt, so that those of the others are written."""
        _log.warning(
            "a running job's reports could not be written: %s",
            error_location(error),
            extra={"job": attempt.claimed.id},
        )
        self._on_its_way.pop(attempt, None)

    async def _write(self, attempts: Sequence[Attempt]) -> None:
        """Write the reports of these attempts, all of one worker."""
        reports = {attempt: self._on_its_way[attempt] for attempt in attempts}
        worker = attempts[0].worker
        chunks = [
            (
                attempt.claimed.id,
                attempt.claimed.attempt,
                chunk.seq,
                chunk.encoded if chunk.text is None else encode(chunk.text, "chunk"),
            )
            for attempt, pending in reports.items()
            for chunk in pending.chunks
        ]
        if chunks:
            await self.engine.progress.append_chunks(worker, chunks)
        for pending in reports.values():
            pending.chunks.clear()
            pending.size = 0
        answers = await self.engine.progress.report(
            worker,
            [
                (
                    attempt.claimed.id,
                    attempt.claimed.attempt,
                    pending.stage,
                    pending.label,
                    pending.progress,
                    pending.units,
                )
                for attempt, pending in reports.items()
            ],
        )
        self.notifier.notify()
        by_id = {attempt.claimed.id: attempt for attempt in attempts}
        for job_id, verdict, cancel in answers:
            attempt = by_id[job_id]
            if verdict == "stale":
                attempt.stop("lost")
            elif verdict == "locked":
                self._put_back(attempt, reports[attempt])
            elif cancel:
                attempt.cancel()
        for attempt in attempts:
            self._on_its_way.pop(attempt, None)

    async def keep_step(self, attempt: Attempt, name: str, text: str) -> None:
        """Keep a step's result. Return when it is stored, even if the database is unavailable."""
        claimed, keep = attempt.claimed, self.engine.progress.keep_step
        while (
            verdict := await until_available(
                lambda: keep(attempt.worker, claimed.id, claimed.attempt, name, text)
            )
        ) != "done":
            if verdict == "stale":
                attempt.stop("lost")
                raise LeaseLost
            await asyncio.sleep(LOCKED_SECONDS)
        attempt.progressed = self.loop.time()

    async def read_steps(self, attempt: Attempt) -> None:
        """Read the steps that earlier attempts kept; a first attempt does not ask the database."""
        if not attempt.steps_read:
            read = self.engine.progress.read_steps
            attempt.steps.update(await until_available(lambda: read(attempt.claimed.id)))
            attempt.steps_read = True

    def _of(self, attempt: Attempt) -> _Pending:
        if attempt.returned:
            raise LeaseLost
        attempt.progressed = self.loop.time()
        self._due.set()
        pending = self._pending.get(attempt)
        if pending is None:
            pending = self._pending[attempt] = _Pending()
        return pending

    def _put_back(self, attempt: Attempt, older: _Pending) -> None:
        newer = self._pending.get(attempt)
        if newer is None:
            self._pending[attempt] = older
        else:
            if newer.stage is None:
                newer.stage, newer.label = older.stage, older.label
            newer.progress = newer.progress or older.progress
            if newer.units is None:
                newer.units = older.units
            newer.chunks.extendleft(reversed(older.chunks))
            newer.size += older.size
        self._due.set()
