"""Writes what handlers report while they run, for all attempts at once.

A handler reports a stage, progress or text and goes on; it does not wait for the database. The
latest of each attempt is written at most every PACE seconds, in one call for all attempts, fenced
like an outcome. Texts that follow one another become one chunk. Only a kept step waits until it is
safe.
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
from penstock.engine.jobs.attempts import Report
from penstock.errors import PenstockError
from penstock.models.handlers.exceptions import LeaseLost
from penstock.worker.attempts.attempt import Attempt
from penstock.worker.attempts.threads import Threads
from penstock.worker.event_loop.loop_watch import LoopWatch

PACE_SECONDS = 0.1
AWAY_SECONDS = 0.5
BUSY_SECONDS = 0.05
# A chunk that has grown to this length is not added to any more.
CHUNK_CHARACTERS = 8_192
# An attempt that has emitted more than this and could not be written has to wait.
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


class ProgressWriter:
    """Where attempts leave what they have to say. All of it runs in the worker's loop."""

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
        """For steps of async handlers that are plain functions."""
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
        """How much was delivered: what is charged if the job is cancelled now."""
        self._of(attempt).units = units

    def chunk(self, attempt: Attempt, text: str | None, encoded: str) -> None:
        """Words, which may be added to the last ones, or (`text` None) any other JSON."""
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

    @property
    def busy(self) -> bool:
        """Whether anything is to be written at all."""
        return bool(self._pending or self._on_its_way)

    def has(self, attempt: Attempt) -> bool:
        """Whether something of it is not written yet, or just being written."""
        return attempt in self._pending or attempt in self._on_its_way

    def leave_units(self, attempt: Attempt) -> None:
        """It has ended, and the end says its units, too: no write of their own for them alone."""
        pending = self._pending.get(attempt)
        if pending is not None and pending.only_units:
            del self._pending[attempt]

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
                for worker in {attempt.worker for attempt in self._on_its_way}:
                    mine = {
                        attempt: said
                        for attempt, said in self._on_its_way.items()
                        if attempt.worker == worker
                    }
                    await self._write(worker, mine)
            finally:
                left, self._on_its_way = self._on_its_way, {}
                for attempt, said in left.items():
                    self._put_back(attempt, said)
                self._written.set()
                self._written = asyncio.Event()

    async def _write(self, worker: int, said: dict[Attempt, _Pending]) -> None:
        """In halves when it is refused: one attempt's words must not take those of others along."""
        try:
            await self._write_at_once(worker, said)
        except AWAY:
            raise
        except (PenstockError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            attempts = list(said)
            if len(attempts) > 1:
                middle = len(attempts) // 2
                for half in (attempts[:middle], attempts[middle:]):
                    await self._write(worker, {attempt: said[attempt] for attempt in half})
                return
            _log.warning(
                "what a job said while it runs could not be written: %s",
                error_place(error),
                extra={"job": attempts[0].claimed.id},
            )
        for attempt in said:
            self._on_its_way.pop(attempt, None)

    async def _write_at_once(self, worker: int, said: dict[Attempt, _Pending]) -> None:
        chunks = [
            (
                attempt.claimed.id,
                attempt.claimed.attempt,
                one.seq,
                one.encoded if one.text is None else encode(one.text, "chunk"),
            )
            for attempt, pending in said.items()
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
                    attempt.claimed.id,
                    attempt.claimed.attempt,
                    pending.stage,
                    pending.label,
                    pending.progress,
                    pending.units,
                )
                for attempt, pending in said.items()
            ],
        )
        self.notifier.notify()
        by_id = {attempt.claimed.id: attempt for attempt in said}
        for answer in answers:
            attempt = by_id[answer.job_id]
            if answer.verdict == "stale":
                attempt.stop("lost")
            elif answer.verdict == "busy":
                self._put_back(attempt, said[attempt])
            elif answer.cancel:
                attempt.cancel()

    async def keep_step(self, attempt: Attempt, name: str, text: str) -> None:
        """Keep a step's result. Returns when it is safe, however long the database is away."""
        claimed = attempt.claimed
        while True:
            try:
                verdict = await self.engine.progress.keep_step(
                    attempt.worker, claimed.id, claimed.attempt, name, text
                )
            except AWAY:
                await asyncio.sleep(AWAY_SECONDS)
                continue
            if verdict == "done":
                attempt.progressed = self.loop.time()
                return
            if verdict == "stale":
                attempt.stop("lost")
                raise LeaseLost
            await asyncio.sleep(BUSY_SECONDS)

    async def read_steps(self, attempt: Attempt) -> None:
        """Have what earlier attempts have kept; of a first attempt, nothing, without a look."""
        while not attempt.steps_read:
            try:
                found = await self.engine.progress.read_steps(attempt.claimed.id)
            except AWAY:
                await asyncio.sleep(AWAY_SECONDS)
            else:
                attempt.steps.update(found)
                attempt.steps_read = True

    def _of(self, attempt: Attempt) -> _Pending:
        if attempt.ended:
            raise LeaseLost
        attempt.progressed = self.loop.time()
        self._due.set()
        pending = self._pending.get(attempt)
        if pending is None:
            pending = self._pending[attempt] = _Pending()
        return pending

    def _put_back(self, attempt: Attempt, said: _Pending) -> None:
        newer = self._pending.get(attempt)
        if newer is None:
            self._pending[attempt] = said
        else:
            if newer.stage is None:
                newer.stage, newer.label = said.stage, said.label
            newer.progress = newer.progress or said.progress
            if newer.units is None:
                newer.units = said.units
            newer.chunks.extendleft(reversed(said.chunks))
            newer.size += said.size
        self._due.set()
