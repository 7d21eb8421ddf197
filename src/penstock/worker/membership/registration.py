"""The worker's identity: registered, kept alive by two sessions, renewed when it is lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg

from penstock.base.error_location import error_location
from penstock.db.connections.driver_errors import fetching
from penstock.db.connections.listener import wait_before_reconnect
from penstock.engine.engine import Engine
from penstock.engine.workers import Workers
from penstock.worker.attempts.open_attempts import OpenAttempts
from penstock.worker.event_loop.loop_watch import LoopWatch
from penstock.worker.membership.heartbeat import Accepting, Heartbeat

RENEW_SECONDS = 1_800.0
CLOSE_SECONDS = 4.0
HOLD_SECONDS = 3.0
_POLL_SECONDS = 0.005
CHANNELS = ("penstock_job", "penstock_cancel", "penstock_circuit")

_log = logging.getLogger("penstock.worker")


class Registration:
    """Has one identity after the other. When one is lost, the attempts under it are stopped."""

    def __init__(  # noqa: PLR0913  # all named
        self,
        engine: Engine,
        dsn: str,
        attempts: OpenAttempts,
        watch: LoopWatch,
        *,
        register: Callable[[], Awaitable[int]],
        lease: timedelta,
        beat: timedelta,
        locks: bool,
    ) -> None:
        self._engine = engine
        self._register = register
        self._attempts = attempts
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._known = asyncio.Event()
        self._held: tuple[asyncpg.Connection, int] | None = None
        self._again: asyncio.Task[None] | None = None
        self._heartbeat = Heartbeat(
            dsn,
            lease=lease,
            every=beat,
            locks=locks,
            on_lost=lambda worker: self._loop.call_soon_threadsafe(self.lose, worker),
            watch=watch,
        )
        self._is_over = False
        self.worker: int | None = None

    async def begin(self, accepting: Accepting) -> None:
        """Register, and begin the heartbeat, which reports which queues the worker accepts."""
        self.worker = await self._register()
        self._watch.start()
        self._heartbeat.start(self.worker, accepting)
        self._known.set()

    async def identity(self, *, unless: asyncio.Event) -> int:
        """The present identity; if it was lost, wait for the next. 0 if `unless` is set first."""
        while self.worker is None:
            waits = [asyncio.ensure_future(event.wait()) for event in (self._known, unless)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if unless.is_set():
                return 0
        return self.worker

    def lose(self, worker: int) -> None:
        """Stop the attempts of an identity that was declared lost, and register again."""
        if worker != self.worker or self._is_over:
            return
        self.worker = None
        self._known.clear()
        self._attempts.drop(worker)
        self._again = self._loop.create_task(self._register_again())

    async def _register_again(self) -> None:
        tries = 0
        while self.worker is None:
            try:
                self.worker = await self._register()
            except Exception as error:  # noqa: BLE001  # no work without an identity
                _log.info("not registered again yet: %s", error_location(error))
                tries += 1
                await wait_before_reconnect(tries)
        self._heartbeat.adopt(self.worker)
        self._known.set()

    async def hold(self, conn: asyncpg.Connection) -> None:
        """Lock the identity's key on a second session, upkeep's; the heartbeat locks it on its own.

        Called before each pass, since identity and session may both be new. The session that
        listens is not used: notifications from others would restart the server's wait for a host
        that is gone.
        """
        # First report how long this worker's own loop stood still: that time must not count.
        await self._watch.all_reported()
        worker = self.worker
        if worker is None or self._held == (conn, worker):
            return
        async with asyncio.timeout(HOLD_SECONDS):
            alive = await Workers(fetching(conn)).lock(worker)
        if alive:
            self._held = conn, worker
        else:
            self.lose(worker)

    async def end(self) -> None:
        """Unregister: attempts that still run are released at once."""
        self._is_over = True  # a beat after this finds no lease, which is not a loss
        if self._again is not None:
            self._again.cancel()
        if self.worker is not None:
            await self._engine.workers.stop(self.worker)

    async def close(self) -> None:
        """Wait without a thread of the loop's pool: handlers may occupy all of them."""
        self._watch.stop()
        self._heartbeat.stop()
        ends = self._loop.time() + CLOSE_SECONDS
        while self._heartbeat.alive and self._loop.time() < ends:  # noqa: ASYNC110  # of another thread
            await asyncio.sleep(_POLL_SECONDS)
