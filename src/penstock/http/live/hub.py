"""Live streams: one hub per process receives notifications, polls, and publishes to feeds.

    listen   one session; a notification means "poll now", nothing more
    poll     on a notification, else once a second; one statement for all watched jobs, one for all
             scopes; then each change is read once and published to all its watchers
    tick     once a second: send heartbeats, close streams of revoked keys and stalled clients

After each poll the hub pauses for four times as long as the poll took, so that watching uses a
fifth of one connection at most. An outage closes no stream: the next poll finds what was missed.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from penstock.db.connections.listener import DATABASE_UNAVAILABLE, listen
from penstock.db.connections.pooler import is_pooled
from penstock.db.connections.supervisor import Supervisor
from penstock.engine.accounts.sessions import Grant
from penstock.engine.engine import Engine
from penstock.engine.queries.events import LAST_SECONDS, Batcher, Scope, WatchedJob, WatchRequest
from penstock.http.live.feeds import (
    AnyChangeFeed,
    BatchFeed,
    Chunks,
    Cursor,
    Feed,
    FeedType,
    JobFeed,
    JobWatcher,
    StateWatcher,
    Watcher,
)
from penstock.http.live.poll import CHUNK_PAGE, Poller
from penstock.http.live.scopes import ScopeFeed, ScopeWatcher

# Submits and cancels notify the workers; the hub listens to the same channels.
CHANNELS = ("penstock_change", "penstock_job", "penstock_cancel")
POLL_SECONDS = 1.0
PAUSE_SECONDS = 0.05
# The pause after a poll, as a multiple of the time it took.
PAUSE_FACTOR = 4
RETRY_SECONDS = 0.5
TICK_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0
# A client that reads nothing for this time has disappeared without closing its connection.
STALLED_SECONDS = 60.0
RENEW_SECONDS = 1_800.0
# How many requests share a statement: checks of the permission to watch, and reads of earlier
# chunks, each of which may return a page of long texts.
MOST_PERMISSIONS = 1_000
MOST_HISTORIES = 20

Name = TypeVar("Name")

_log = logging.getLogger("penstock.http")


class Hub:
    def __init__(self, engine: Engine, dsn: Callable[[], Awaitable[str]]) -> None:
        self._events = engine.events
        self._grants = engine.grants
        self._dsn = dsn
        self._loop = asyncio.get_running_loop()
        self._notifier = engine.events.notifier()
        self._jobs: dict[WatchedJob, JobFeed] = {}
        self._batches: dict[WatchedJob, BatchFeed] = {}
        self._scopes: dict[Scope, ScopeFeed] = {}
        self._any_change = AnyChangeFeed()
        self._poller = Poller(
            self._events, self._jobs, self._batches, self._scopes, self._close_withdrawn
        )
        self._poll_now = asyncio.Event()
        self._loops = Supervisor(_log)
        self._permissions = Batcher(engine.events.may_watch, MOST_PERMISSIONS)
        self._histories = Batcher(self._poller.read_chunks, MOST_HISTORIES)
        self.closed = False

    def start(self) -> None:
        self._loops.start("the listener of live streams", self._listen)
        self._loops.start("polling for live streams", self._keep_polling)
        self._loops.start("the upkeep of live streams", self._tick, every=TICK_SECONDS)

    def close(self) -> None:
        """End all streams at once: their clients reconnect, to this server's successor."""
        self.closed = True
        for watcher in self._watchers():
            if watcher.sending_since is None:
                watcher.close()
            else:
                watcher.abort()

    async def stop(self) -> None:
        self.close()
        await self._loops.stop()
        await self._notifier.close(LAST_SECONDS)

    def count(self) -> int:
        """Return the number of watchers."""
        return len(self._watchers())

    def notify(self) -> None:
        """Make this server and others poll: this process changed something. Call after commit."""
        self._on_notify()
        self._notifier.notify()

    # --- watchers --------------------------------------------------------------------------------

    async def may_watch(self, request: WatchRequest) -> bool:
        """Whether the job or scope exists and the caller may see it.

        Simultaneous calls share a statement.
        """
        return await self._permissions.ask(request)

    def watch_job(self, job: WatchedJob, cursor: Cursor, **caller: Any) -> Watcher[Any]:
        return self._entered(JobWatcher(self._job_feed(job), cursor, **caller))

    def watch_batch(self, batch: WatchedJob, **caller: Any) -> Watcher[Any]:
        feed = _feed(self._batches, batch, BatchFeed)
        return self._entered(StateWatcher(feed, **caller))

    def watch_scope(self, scope: Scope, **caller: Any) -> Watcher[Any]:
        feed = _feed(self._scopes, scope, lambda on_empty: ScopeFeed(on_empty, scope))
        return self._entered(ScopeWatcher(feed, **caller))

    def watch_anything(self, **caller: Any) -> Watcher[Any]:
        return self._entered(StateWatcher(self._any_change, **caller))

    async def until_final(self, job: UUID, seconds: float) -> None:
        """Wait until a job has finished, for at most `seconds`."""
        feed = self._job_feed(WatchedJob(job))
        watcher = self._entered(Watcher(feed))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not feed.final and not watcher.closed:
                        await watcher.wait()
        finally:
            watcher.leave()

    def _job_feed(self, job: WatchedJob) -> JobFeed:
        async def history(after: Cursor) -> Chunks:
            while True:
                try:
                    return await self._histories.ask((job.id, after))
                except DATABASE_UNAVAILABLE:
                    # The stream stays open and waits for the database.
                    await asyncio.sleep(RETRY_SECONDS)

        return _feed(
            self._jobs,
            job,
            lambda on_empty: JobFeed(
                on_empty, history=history, page=CHUNK_PAGE, poll=self._poll_now.set
            ),
        )

    def _entered(self, watcher: Watcher[Any]) -> Watcher[Any]:
        if self.closed:
            watcher.close()
        self._poll_now.set()
        return watcher

    def _watchers(self) -> list[Watcher[Any]]:
        feeds: list[Feed] = [
            *self._jobs.values(),
            *self._batches.values(),
            *self._scopes.values(),
            self._any_change,
        ]
        return [watcher for feed in feeds for watcher in feed.watchers]

    # --- loops -----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        dsn = await self._dsn()
        if await is_pooled(dsn):
            # Such a pooler does not pass notifications; the poll once a second works without them.
            await asyncio.Event().wait()

        async def poll(_: asyncpg.Connection) -> bool:
            self._poll_now.set()  # notifications may have been lost while there was no session
            return True

        await listen(
            dsn,
            CHANNELS,
            lambda _, __: self._on_notify(),
            poll,
            name="penstock events",
            renew_seconds=RENEW_SECONDS,
        )

    def _on_notify(self) -> None:
        self._poll_now.set()
        self._any_change.changed(self._loop.time())

    async def _keep_polling(self) -> None:
        while True:
            watched = bool(self._jobs or self._batches or self._scopes)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._poll_now.wait(), POLL_SECONDS if watched else None)
            self._poll_now.clear()
            took = await self._poller.poll()
            if self._poller.has_more:
                self._poll_now.set()
            await asyncio.sleep(max(PAUSE_SECONDS, PAUSE_FACTOR * took))

    async def _tick(self) -> None:
        now, today = self._loop.time(), time.time()
        for watcher in self._watchers():
            _check_client(watcher, now, today)
        for scope in self._scopes.values():
            scope.trim(now)
        for job in self._jobs.values():
            job.trim()
        self._any_change.publish(now)
        await self._close_revoked()

    async def _close_revoked(self) -> None:
        """Close streams whose key, session or token is not valid any more."""
        keys = {watcher.key for watcher in self._watchers() if watcher.key is not None}
        dead = await self._events.dead_keys(sorted(keys)) if keys else set()
        for watcher in self._watchers() if dead else ():
            if watcher.key in dead:
                watcher.close()
        await self._close_withdrawn(self._watchers())

    async def _close_withdrawn(self, watchers: Iterable[Watcher[Any]]) -> None:
        """Close the streams of sessions that were signed out and of erased accounts."""
        granted: defaultdict[Grant, list[Watcher[Any]]] = defaultdict(list)
        for watcher in watchers:
            if watcher.grant is not None:
                granted[watcher.grant].append(watcher)
        if not granted:
            return
        withdrawn = await self._grants.are_over(list(granted))
        for grant, is_withdrawn in zip(list(granted), withdrawn, strict=True):
            for watcher in granted[grant] if is_withdrawn else ():
                watcher.close()


def _check_client(watcher: Watcher[Any], now: float, today: float) -> None:
    if watcher.expires is not None and watcher.expires <= today:
        watcher.close()
    elif watcher.sending_since is None:
        if now - watcher.sent_at > HEARTBEAT_SECONDS:
            watcher.wake(heartbeat=True)
    elif now - watcher.sending_since > STALLED_SECONDS:
        watcher.abort()


def _feed(
    feeds: dict[Name, FeedType], name: Name, make: Callable[[Callable[[], object]], FeedType]
) -> FeedType:
    """Return the feed of this name; a new one removes itself when its last watcher leaves."""
    if name not in feeds:
        feeds[name] = make(lambda: feeds.pop(name, None))
    return feeds[name]
