"""Ends of kinds with an on_finish: the app writes in the transaction in which its job ends."""

import asyncio
import functools
import logging
from collections.abc import Mapping
from datetime import timedelta

import asyncpg

from penstock.base.error_place import error_place
from penstock.db.connections.listener import AWAY
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Told, tell
from penstock.engine.jobs.on_finish import Ended
from penstock.engine.jobs.outcomes import Error
from penstock.engine.jobs.outcomes import Retry as Retried
from penstock.worker.execution.attempt import LEAST_PATIENCE, Start
from penstock.worker.execution.frames import frames_of
from penstock.worker.handlers.control import described
from penstock.worker.handlers.handler import Handler
from penstock.worker.reporting.outcomes import AWAY_SECONDS, BUSY_SECONDS, Ends
from penstock.worker.reporting.progress import Desk

# Finishing transactions at once: each holds a connection for as long as the app's writes take.
AT_ONCE = 4
# How often an on_finish that fails is tried before the attempt counts as failed.
TRIES = 3
TRY_SECONDS = 0.1
# Each try calls the app's hook again.
LONGEST_BUSY_SECONDS = 1.0
# How long an on_finish may take: it holds a connection and its job meanwhile.
HOOK_SECONDS = 30.0

_log = logging.getLogger("penstock.worker")


class HookFailed(Exception):
    """The app's on_finish raised; its exception is the cause."""

    def __init__(self, ended: Ended) -> None:
        super().__init__()
        self.ended = ended


class _Undone(Exception):
    """The job could not be ended after all, so the app's writes are undone with it."""

    def __init__(self, verdict: str) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class Telling:
    """Tells an app of ends that others brought about: a callback, a cancel, upkeep."""

    def __init__(
        self, engine: Engine, handlers: Mapping[str, Handler], *, tracebacks: bool = True
    ) -> None:
        """`tracebacks`: the frames of errors are logged, and kept with the attempt."""
        self._engine = engine
        self._tracebacks = tracebacks
        self._handlers = {
            kind: handler for kind, handler in handlers.items() if handler.on_finish is not None
        }

    @property
    def kinds(self) -> list[str]:
        return list(self._handlers)

    async def deliver(self) -> int:
        """Tell the app of ends that upkeep, a cancel or a failed on_finish left; how many."""
        told = 0
        while self._handlers:
            try:
                async with self._engine.transaction() as conn:
                    ended = await self._engine.hooks.take(self.kinds, conn=conn)
                    if ended is None:
                        break
                    await self._tell(ended, conn)
                told += 1
            except HookFailed as error:
                cause = error.__cause__ or error
                _complain(error.ended.kind, error.ended.id, cause, self._frames(cause))
                await self._engine.hooks.put_off(error.ended.id)
        return told

    async def _tell(self, ended: Ended, conn: asyncpg.Connection) -> None:
        hook = self._handlers[ended.kind].on_finish
        assert hook is not None  # noqa: S101  # only such kinds are here
        try:
            async with asyncio.timeout(HOOK_SECONDS):
                await hook(ended, conn)
            # Now and not at the commit: a statement that failed and was passed over would undo the
            # end without a word, and a constraint that is looked at last would be taken for ours.
            await conn.execute("set constraints all immediate")
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the worker leaves
            # Also SystemExit and its like, which are the app's own and not the worker's end.
            raise HookFailed(ended) from error

    def _frames(self, error: BaseException) -> tuple[str, ...]:
        return frames_of(error) if self._tracebacks else ()


class Hooks(Telling):
    """And of those that a worker here brings about, in the transaction in which they end."""

    def __init__(
        self,
        engine: Engine,
        desk: Desk,
        ends: Ends,
        handlers: Mapping[str, Handler],
        *,
        tracebacks: bool = True,
    ) -> None:
        super().__init__(engine, handlers, tracebacks=tracebacks)
        self._desk = desk
        self._ends = ends
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def finish(self, start: Start, told: Told) -> bool:
        """End this start and let the app write, as one. False: told by other means, later.

        An on_finish that keeps failing fails the attempt. Where that ends the job, it ends without
        the app's writes, and the app is told of it later, again and again (`deliver`).
        """
        failed = 0
        pause, longest = AWAY_SECONDS
        while failed < TRIES:
            try:
                # A turn for each try: what waits for somebody else does not keep others waiting.
                async with self._turn:
                    try:
                        verdict = await self._finish_together(start, told)
                    except _Undone as undone:
                        verdict = undone.verdict
                if verdict != "busy":
                    return True
                start.busies += 1
                await asyncio.sleep(min(LONGEST_BUSY_SECONDS, BUSY_SECONDS * start.busies))
            except HookFailed as error:
                cause = error.__cause__ or error
                frames = self._frames(cause)
                _complain(start.claimed.kind, start.claimed.id, cause, frames)
                failed += 1
                if failed < TRIES:
                    await asyncio.sleep(TRY_SECONDS)
                elif told.outcome == "succeeded":
                    said = f"on_finish: {described(cause)}"
                    bug = Retried(Error("bug", said, frames=frames))
                    told = tell(start.claimed, bug, usage=start.usage, units=start.units)
            except AWAY:
                await asyncio.sleep(pause)
                pause = min(longest, pause * 2)
            except Exception as error:  # noqa: BLE001  # Ends finds out what is the matter
                _log.warning("an end could not be written: %s", error_place(error))
                break
        # Without the app's writes: the row that `deliver` looks for stays.
        self._ends.add(start, told)
        return False

    async def _finish_together(self, start: Start, told: Told) -> str:
        """The app's writes first, then the end: so the rows that others want are held briefly."""
        if self._desk.has(start):
            await self._desk.flush()
        async with self._engine.transaction() as conn:
            ended = await self._engine.hooks.hold(start.worker, told, conn=conn)
            if ended is not None:
                await self._tell(ended, conn)
            [verdict] = await self._engine.jobs.finish_told(
                start.worker, [told], conn=conn, wait=_patience(start)
            )
            if verdict.verdict == "done":
                finished = await self._engine.hooks.take(self.kinds, conn=conn, job_id=told.job_id)
                # Another session had locked the job for a moment, so it could not be held before.
                if ended is None and finished is not None:
                    await self._tell(finished, conn)
            elif ended is not None:
                raise _Undone(verdict.verdict)
        return verdict.verdict


def _patience(start: Start) -> timedelta | None:
    """Now and then: it has one of few turns, and holds the job meanwhile."""
    return LEAST_PATIENCE if start.patient and start.busies % 4 == 0 else None


def _complain(kind: str, job: object, error: BaseException, frames: tuple[str, ...]) -> None:
    """A little later: a log that cannot be written prints what is being handled at that moment."""
    say = functools.partial(
        _log.warning,
        "on_finish failed: %s",
        error_place(error, frames),
        extra={"kind": kind, "job": job},
    )
    asyncio.get_running_loop().call_soon(say)
