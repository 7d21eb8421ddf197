"""The heartbeat: its own thread and session, so that no handler can block it.

A handler that blocks the event loop does not stop this thread, which also samples the loop and
reports what blocks it (loop_watch.py). A call into C that keeps the interpreter's lock does stop
it; for such calls there is isolation="process", and the log message of a late beat says so.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

import asyncpg

from penstock.db.connections.driver_errors import fetching
from penstock.db.connections.listener import open_session, wait_before_reconnect
from penstock.engine.workers import Workers
from penstock.worker.event_loop.loop_watch import TICK_SECONDS, LoopWatch

# How long a beat may take before its session counts as lost.
_ANSWER_SECONDS = 3.0
# How often a query is sent between two beats. So the server has always received data from this
# session a moment ago, and always soon waits for it to acknowledge an answer. Whichever way a host
# is cut off, the server notices between 1.5 and 2 s later.
_PING_SECONDS = 0.5
_RENEW_SECONDS = 1_800.0

_log = logging.getLogger("penstock.worker")


class Accepting(Protocol):
    """The part of the worker whose state the heartbeat reports."""

    @property
    def accepting(self) -> Sequence[str]:
        """Queues of which it would start one more job now. Read from the heartbeat's thread."""


class Heartbeat:
    """Beats for one identity at a time. `on_lost(worker)` is called from its thread."""

    def __init__(  # noqa: PLR0913  # all named
        self,
        dsn: str,
        *,
        lease: timedelta,
        every: timedelta,
        locks: bool,
        on_lost: Callable[[int], object],
        watch: LoopWatch,
    ) -> None:
        self._accepting: Accepting | None = None
        self._dsn = dsn
        self._watch = watch
        self._lease_seconds = lease.total_seconds()
        self._every_seconds = every.total_seconds()
        self._locks = locks
        self._on_lost = on_lost
        self._worker = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="penstock-heartbeat", daemon=True)

    def start(self, worker: int, accepting: Accepting) -> None:
        self._worker = worker
        self._accepting = accepting
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def adopt(self, worker: int) -> None:
        """Send beats for a new identity from now on."""
        self._worker = worker
        self._wake()

    def stop(self) -> None:
        """Let the thread and its session end soon."""
        self._stopping = True
        self._wake()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._changed.set)

    def _run(self) -> None:
        assert self._loop is not None  # noqa: S101  # start() has made it
        try:
            sampling = self._loop.create_task(self._sample_on())
            self._loop.run_until_complete(self._beat_on())
            sampling.cancel()
            # The terminated session is closed in the loop's next round.
            self._loop.run_until_complete(asyncio.sleep(0))
        finally:
            self._loop.close()

    async def _sample_on(self) -> None:
        while True:
            if self._watch.sample():
                self._changed.set()
            await asyncio.sleep(TICK_SECONDS)

    async def _report(self, workers: Workers, worker: int) -> None:
        """Report whether the loop stands still, and for how long it did."""
        for standstill in self._watch.reports():
            # Read first: the loop may go on while this is written.
            over = standstill.over
            async with asyncio.timeout(_ANSWER_SECONDS):
                owns = await workers.report_blocked_loop(
                    worker, standstill.number, standstill.lasts, standstill.named, over=over
                )
            if over:
                self._watch.reported(standstill, worker, owns)

    async def _beat_on(self) -> None:
        tries = 0
        while not self._stopping:
            conn: asyncpg.Connection | None = None
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    # A standby that hangs may delay commits for any time, but must not delay
                    # heartbeats.
                    conn = await open_session(self._dsn, name="penstock heartbeat", local=True)
                # At once, not at the next beat: upkeep gives workers only a moment to reconnect.
                conn.add_termination_listener(lambda _: self._changed.set())
                await self._beat(conn)
                tries = 0
            except Exception as error:  # noqa: BLE001  # without beats, jobs are lost
                _log.info("no heartbeat: %s", type(error).__name__)
                tries += 1
                await wait_before_reconnect(tries)
            finally:
                if conn is not None:
                    conn.terminate()

    async def _beat(self, conn: asyncpg.Connection) -> None:
        """Send beats on this session, until it is old or something has changed."""
        workers = Workers(fetching(conn))
        renew_at = time.monotonic() + _RENEW_SECONDS
        worker = 0
        while not self._stopping and time.monotonic() < renew_at:
            # A session keeps the lock of an identity that was given up; no session asks for it any
            # more.
            new = self._locks and worker != self._worker
            worker = self._worker
            async with asyncio.timeout(_ANSWER_SECONDS):
                alive = not new or await workers.lock(worker)
                # A bounded run reports no queues: nothing may rely on it.
                queues = self._accepting.accepting if self._accepting and self._locks else ()
                alive = alive and await workers.beat(worker, queues)
            if not alive and worker == self._worker:
                self._on_lost(worker)
                await self._changed.wait()  # for a new identity, or the end
            elif alive:
                await self._report(workers, worker)
            await self._pause(conn)

    async def _pause(self, conn: asyncpg.Connection) -> None:
        """Wait until the next beat is due, or something changes; log why a beat may be late."""
        due = time.monotonic() + self._every_seconds
        while (left := due - time.monotonic()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, _PING_SECONDS))
                break
            if self._locks and left > _PING_SECONDS:
                asked = time.monotonic()
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await fetching(conn)("select 1", ())
                # A slow server is no handler's fault: time spent on its answer does not count as
                # late.
                due += max(0.0, time.monotonic() - max(due, asked))
        else:
            late = time.monotonic() - due
            if late > self._lease_seconds / 3:
                _log.warning(
                    "a heartbeat was %.1f s late: a handler kept the interpreter lock. Declare"
                    ' such a handler with isolation="process", or its jobs may be given to other'
                    " workers.",
                    late,
                )
        self._changed.clear()
