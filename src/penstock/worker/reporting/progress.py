"""What starts say while they run, gathered and written for all of them at once.

A handler says a stage, a progress or a token and goes on; it does not wait for the database. The
latest of each start is written at most every PACE seconds, in one call for all starts, fenced like
an end. Words that follow one another become one chunk. Only a kept step waits until it is safe.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field

import asyncpg

from penstock.base.error_place import error_place
from penstock.db.connections.listener import AWAY
from penstock.engine.encoding.encode import encode
from penstock.engine.engine import Engine
from penstock.engine.jobs.progress import Report
from penstock.errors import PenstockError
from penstock.worker.execution.attempt import Start
from penstock.worker.execution.threads import Threads
from penstock.worker.handlers.control import LeaseLost
from penstock.worker.membership.loop_watch import LoopWatch

PACE_SECONDS = 0.1
AWAY_SECONDS = 0.5
BUSY_SECONDS = 0.05
# What a handler has to end by itself once `job.cancelled` is true.
CANCEL_SECONDS = 1.0
# A chunk that has grown to this length is not added to any more.
CHUNK_CHARACTERS = 8_192
# A start that has emitted more than this and could not be written has to wait.
BACKLOG_CHARACTERS = 262_144

_log = logging.getLogger("penstock.worker")


@dataclass(slots=True)
class _Chunk:
    seq: int
    text: str | None
    """Words that are still added to; else `encoded` is what was emitted, as it was then."""
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


class Desk:
    """Where starts leave what they have to say. All of it runs in the worker's loop."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        watch: LoopWatch,
    ) -> None:
        self.engine = engine
        self.loop = loop
        self.watch = watch
        self.threads = threads
        """For steps of async handlers that are plain functions."""
        self.notifier = engine.events.notifier()
        """Notifies watchers after starts, progress and outcomes were written."""
        self._pending: dict[Start, _Pending] = {}
        self._on_its_way: dict[Start, _Pending] = {}
        self._written = asyncio.Event()
        self._due = asyncio.Event()
        self._writing = asyncio.Lock()

    def stage(self, start: Start, name: str, label: str | None) -> None:
        pending = self._of(start)
        pending.stage, pending.label = name, label

    def progress(self, start: Start, text: str) -> None:
        self._of(start).progress = text

    def units(self, start: Start, units: int) -> None:
        """How much was delivered: what is charged if the job is cancelled now."""
        self._of(start).units = units

    def chunk(self, start: Start, text: str | None, encoded: str) -> None:
        """Words, which may be added to the last ones, or (`text` None) any other JSON."""
        pending = self._of(start)
        pending.size += len(encoded)
        if text is not None and pending.chunks:
            last = pending.chunks[-1]
            if last.text is not None and len(last.text) + len(text) <= CHUNK_CHARACTERS:
                last.text += text
                return
        start.seq += 1
        pending.chunks.append(_Chunk(start.seq, text, encoded))

    async def room(self, start: Start) -> None:
        """Wait while this start has emitted more than could be written."""
        while self.is_full(start):
            await self._written.wait()

    def is_full(self, start: Start) -> bool:
        pending = self._pending.get(start)
        return pending is not None and pending.size > BACKLOG_CHARACTERS

    @property
    def busy(self) -> bool:
        """Whether anything is to be written at all."""
        return bool(self._pending or self._on_its_way)

    def has(self, start: Start) -> bool:
        """Whether something of it is not written yet, or just being written."""
        return start in self._pending or start in self._on_its_way

    def leave_units(self, start: Start) -> None:
        """It has ended, and the end says its units, too: no write of their own for them alone."""
        pending = self._pending.get(start)
        if pending is not None and pending.only_units:
            del self._pending[start]

    async def run(self) -> None:
        """Write what is due, at a pace, for ever."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.flush()
            except AWAY:
                self._due.set()
                await asyncio.sleep(AWAY_SECONDS)
            await asyncio.sleep(PACE_SECONDS)

    async def flush(self) -> None:
        """Write everything now. What an outage stops is kept, and newer words win."""
        async with self._writing:
            self._on_its_way, self._pending = self._pending, {}
            try:
                for worker in {start.worker for start in self._on_its_way}:
                    mine = {
                        start: said
                        for start, said in self._on_its_way.items()
                        if start.worker == worker
                    }
                    await self._write(worker, mine)
            finally:
                left, self._on_its_way = self._on_its_way, {}
                for start, said in left.items():
                    self._put_back(start, said)
                self._written.set()
                self._written = asyncio.Event()

    async def _write(self, worker: int, said: dict[Start, _Pending]) -> None:
        """In halves when it is refused: one start's words must not take those of others along."""
        try:
            await self._write_at_once(worker, said)
        except AWAY:
            raise
        except (PenstockError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            starts = list(said)
            if len(starts) > 1:
                middle = len(starts) // 2
                for half in (starts[:middle], starts[middle:]):
                    await self._write(worker, {start: said[start] for start in half})
                return
            _log.warning(
                "what a job said while it runs could not be written: %s",
                error_place(error),
                extra={"job": starts[0].claimed.id},
            )
        for start in said:
            self._on_its_way.pop(start, None)

    async def _write_at_once(self, worker: int, said: dict[Start, _Pending]) -> None:
        chunks = [
            (
                start.claimed.id,
                start.claimed.attempt,
                one.seq,
                one.encoded if one.text is None else encode(one.text, "chunk"),
            )
            for start, pending in said.items()
            for one in pending.chunks
        ]
        if chunks:
            await self.engine.progress.append_chunks(worker, chunks)
        for pending in said.values():
            pending.chunks.clear()
            pending.size = 0
        answers = await self.engine.progress.report(
            worker,
            [
                Report(
                    start.claimed.id,
                    start.claimed.attempt,
                    pending.stage,
                    pending.label,
                    pending.progress,
                    pending.units,
                )
                for start, pending in said.items()
            ],
        )
        self.notifier.notify()
        by_id = {start.claimed.id: start for start in said}
        for answer in answers:
            start = by_id[answer.job_id]
            if answer.verdict == "stale":
                start.stop("lost")
            elif answer.verdict == "busy":
                self._put_back(start, said[start])
            elif answer.cancel:
                self.cancel(start)

    def cancel(self, start: Start) -> None:
        """Ask a start to end; one that does not do so by itself is ended after a moment."""
        if not start.cancelled:
            start.cancelled = True
            self.loop.call_later(CANCEL_SECONDS, start.stop, "cancel")

    async def keep_step(self, start: Start, name: str, text: str) -> None:
        """Keep a step's result. Returns when it is safe, however long the database is away."""
        claimed = start.claimed
        while True:
            try:
                verdict = await self.engine.progress.keep_step(
                    start.worker, claimed.id, claimed.attempt, name, text
                )
            except AWAY:
                await asyncio.sleep(AWAY_SECONDS)
                continue
            if verdict == "done":
                start.progressed = self.loop.time()
                return
            if verdict == "stale":
                start.stop("lost")
                raise LeaseLost
            await asyncio.sleep(BUSY_SECONDS)

    async def read_steps(self, start: Start) -> None:
        """Have what earlier starts have kept; of a first start, nothing, without a look."""
        while not start.steps_read:
            try:
                found = await self.engine.progress.read_steps(start.claimed.id)
            except AWAY:
                await asyncio.sleep(AWAY_SECONDS)
            else:
                start.steps.update(found)
                start.steps_read = True

    def _of(self, start: Start) -> _Pending:
        if start.ended:
            raise LeaseLost
        start.progressed = self.loop.time()
        self._due.set()
        pending = self._pending.get(start)
        if pending is None:
            pending = self._pending[start] = _Pending()
        return pending

    def _put_back(self, start: Start, said: _Pending) -> None:
        newer = self._pending.get(start)
        if newer is None:
            self._pending[start] = said
        else:
            if newer.stage is None:
                newer.stage, newer.label = said.stage, said.label
            newer.progress = newer.progress or said.progress
            if newer.units is None:
                newer.units = said.units
            newer.chunks.extendleft(reversed(said.chunks))
            newer.size += said.size
        self._due.set()
