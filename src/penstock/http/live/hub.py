"""Live streams: one hub per process hears that something changed, looks what, and tells rooms.

    listen   one session; a hint says "look", nothing more
    look     on a hint, else once a second; one statement for all watched jobs, one for all scopes;
             then what changed is read once, and told to all who watch it
    tick     once a second: signs of life, keys that were revoked, clients that take nothing

A look that takes long is followed by a rest of four times as long, so that watching takes a fifth
of one connection at most. An outage closes no stream: the next look finds what was missed.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any
from uuid import UUID

import asyncpg

from penstock.db.connections.listener import AWAY, listen
from penstock.db.connections.pooler import is_pooled
from penstock.db.connections.supervisor import Supervisor
from penstock.engine.accounts.sessions import Grant
from penstock.engine.engine import Engine
from penstock.engine.queries.events import Scope, Watched, WatchedJob
from penstock.engine.queries.notifications import Hints
from penstock.http.batching import Batcher
from penstock.http.live.changes import CHUNK_PAGE, Looks
from penstock.http.live.pulse import PulseRoom, PulseWatcher
from penstock.http.live.subscriptions import (
    BatchRoom,
    BatchWatcher,
    Chunks,
    Cursor,
    FinalWatcher,
    JobRoom,
    JobWatcher,
    ScopeRoom,
    ScopeWatcher,
)
from penstock.http.live.watchers import Room, Watcher

# Submits and cancels tell workers, and those hints say as much to us.
CHANNELS = ("penstock_change", "penstock_job", "penstock_cancel")
LOOK_SECONDS = 1.0
PAUSE_SECONDS = 0.05
# The rest after a look, as a multiple of it.
REST = 4
AWAY_SECONDS = 0.5
TICK_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0
# A client that takes nothing for so long has gone without a word.
STALLED_SECONDS = 60.0
RENEW_SECONDS = 1_800.0
# How many may ask in one statement: whether they may watch, and for what jobs have emitted, which
# may be a page of long texts each.
DOOR = 1_000
HISTORIES = 20

_log = logging.getLogger("penstock.http")


class Hub:
    def __init__(self, engine: Engine, dsn: Callable[[], Awaitable[str]]) -> None:
        self._events = engine.events
        self._grants = engine.grants
        self._dsn = dsn
        self._loop = asyncio.get_running_loop()
        self._hints = Hints(engine.events.tell)
        self._jobs: dict[WatchedJob, JobRoom] = {}
        self._batches: dict[WatchedJob, BatchRoom] = {}
        self._scopes: dict[Scope, ScopeRoom] = {}
        self._pulse = PulseRoom()
        self._looks = Looks(self._events, self._jobs, self._batches, self._scopes, self._close_over)
        self._news = asyncio.Event()
        self._loops = Supervisor(_log)
        self._door = Batcher(engine.events.may_watch, DOOR)
        self._histories = Batcher(self._looks.read_chunks, HISTORIES)
        self.closed = False

    def start(self) -> None:
        self._loops.start("the listener of live streams", self._listen)
        self._loops.start("the refresh of live streams", self._refresh)
        self._loops.start("the upkeep of live streams", self._keep_up, every=TICK_SECONDS)

    def close(self) -> None:
        """End all streams at once: their clients come back, to this server's successor."""
        self.closed = True
        for watcher in self._watchers():
            if watcher.taking_since is None:
                watcher.close()
            else:
                watcher.give_up()

    async def stop(self) -> None:
        self.close()
        await self._loops.stop()
        await self._hints.close()

    def count(self) -> int:
        """How many watch."""
        return len(self._watchers())

    def tell(self) -> None:
        """Something was changed by this process: look, and let others look."""
        self._hear()
        self._hints.tell()

    # --- who watches -----------------------------------------------------------------------------

    async def may_watch(self, wanted: Watched) -> bool:
        """Whether it is there and theirs. Those who ask at the same time share a statement."""
        return await self._door.ask(wanted)

    def watch_job(self, job: WatchedJob, cursor: Cursor, **who: Any) -> Watcher:
        return self._entered(JobWatcher(self._job_room(job), cursor, **who))

    def watch_batch(self, batch: WatchedJob, **who: Any) -> Watcher:
        room = self._batches.get(batch)
        if room is None:
            room = self._batches[batch] = BatchRoom(lambda: _remove(self._batches, batch))
        return self._entered(BatchWatcher(room, **who))

    def watch_scope(self, scope: Scope, **who: Any) -> Watcher:
        room = self._scopes.get(scope)
        if room is None:
            room = self._scopes[scope] = ScopeRoom(lambda: _remove(self._scopes, scope), scope)
        return self._entered(ScopeWatcher(room, **who))

    def watch_anything(self, **who: Any) -> Watcher:
        return self._entered(PulseWatcher(self._pulse, **who))

    async def until_final(self, job: UUID, seconds: float) -> bool:
        """Wait for the end of a job, so long at most; whether it has ended."""
        watcher = FinalWatcher(self._job_room(WatchedJob(job)))
        self._entered(watcher)
        try:
            async with asyncio.timeout(seconds):
                return await watcher.until_final()
        except TimeoutError:
            return False
        finally:
            watcher.leave()

    def _job_room(self, job: WatchedJob) -> JobRoom:
        room = self._jobs.get(job)
        if room is None:

            async def history(after: Cursor) -> Chunks:
                while True:
                    try:
                        return await self._histories.ask((job.id, after))
                    except AWAY:
                        # The stream stays open; who watches it waits with us.
                        await asyncio.sleep(AWAY_SECONDS)

            room = self._jobs[job] = JobRoom(
                lambda: _remove(self._jobs, job),
                history=history,
                page=CHUNK_PAGE,
                look=self._news.set,
            )
        return room

    def _entered(self, watcher: Watcher) -> Watcher:
        if self.closed:
            watcher.close()
        self._news.set()
        return watcher

    def _watchers(self) -> list[Watcher]:
        rooms: list[Room] = [
            *self._jobs.values(),
            *self._batches.values(),
            *self._scopes.values(),
            self._pulse,
        ]
        return [watcher for room in rooms for watcher in room.watchers]

    # --- loops -----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        dsn = await self._dsn()
        if await is_pooled(dsn):
            # Hints do not come through such a pooler; the look once a second does without.
            await asyncio.Event().wait()

        async def look(_: asyncpg.Connection) -> bool:
            self._news.set()  # what was told while nobody listened
            return True

        await listen(
            dsn,
            CHANNELS,
            lambda _, __: self._hear(),
            look,
            name="penstock events",
            renew_seconds=RENEW_SECONDS,
        )

    def _hear(self) -> None:
        self._news.set()
        self._pulse.hint(self._loop.time())

    async def _refresh(self) -> None:
        while True:
            watched = bool(self._jobs or self._batches or self._scopes)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_SECONDS if watched else None)
            self._news.clear()
            took = await self._looks.look()
            if self._looks.unfinished:
                self._news.set()
            await asyncio.sleep(max(PAUSE_SECONDS, REST * took))

    async def _keep_up(self) -> None:
        now, today = self._loop.time(), time.time()
        for watcher in self._watchers():
            _look_after(watcher, now, today)
        for scope in self._scopes.values():
            scope.settle(now)
        for job in self._jobs.values():
            job.settle()
        self._pulse.settle(now)
        await self._close_dead()

    async def _close_dead(self) -> None:
        """What was opened by keys, sessions and tokens that open nothing any more."""
        keys = {watcher.key for watcher in self._watchers() if watcher.key is not None}
        dead = await self._events.dead_keys(sorted(keys)) if keys else set()
        for watcher in self._watchers() if dead else ():
            if watcher.key in dead:
                watcher.close()
        await self._close_over(self._watchers())

    async def _close_over(self, watchers: Iterable[Watcher]) -> None:
        """Those whose session was signed out, or whose token is of an erased account."""
        granted: defaultdict[Grant, list[Watcher]] = defaultdict(list)
        for watcher in watchers:
            if watcher.grant is not None:
                granted[watcher.grant].append(watcher)
        if not granted:
            return
        ends = await self._grants.are_over(list(granted))
        for grant, is_over in zip(list(granted), ends, strict=True):
            for watcher in granted[grant] if is_over else ():
                watcher.close()


def _look_after(watcher: Watcher, now: float, today: float) -> None:
    if watcher.expires is not None and watcher.expires <= today:
        watcher.close()
    elif watcher.taking_since is None:
        if now - watcher.sent_at > HEARTBEAT_SECONDS:
            watcher.wake(beat=True)
    elif now - watcher.taking_since > STALLED_SECONDS:
        watcher.give_up()


def _remove(rooms: dict[Any, Any], name: Any) -> None:
    rooms.pop(name, None)
