"""Feeds of jobs and batches, and their watchers: clients with an open stream.

The hub publishes each change once, to a feed. Each watcher reads from its feed what its client was
not sent yet. So a client costs a few numbers, a slow client does not delay others, and states that
it missed are replaced by the newest one.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from math import log
from typing import Any, Generic, TypeVar

from penstock.engine.accounts.sessions import Grant
from penstock.engine.queries.events import JobState

# How much a feed keeps for clients that lag behind. A client that lags further begins again.
LOG_ENTRIES = 1_000
LOG_BYTES = 524_288
# An open dashboard page is sent changes at most this often, however many there are; and at least
# this often, since ETA and staleness change without a notification.
CHANGE_SECONDS = 1.0
SILENCE_SECONDS = 5.0
# If two texts of a job differ only in version and `updated_at`, their lengths differ by at most
# this.
HEARTBEAT_BYTES = 16

FINAL = ("succeeded", "failed", "cancelled")

Cursor = tuple[int, int]
"""Attempt and number of a chunk."""
Chunks = list[tuple[Cursor, bytes]]

_LAST: Cursor = (2**31, 0)


def encode(event: str, data: str) -> bytes:
    """Encode an event without its id. The JSON of Postgres has no line breaks."""
    return f"event: {event}\ndata: {data}\n\n".encode()


class Feed:
    """The events of one watched thing. `on_empty` is called when the last watcher has left."""

    def __init__(self, on_empty: Callable[[], object]) -> None:
        self._on_empty = on_empty
        self.watchers: set[Watcher[Any]] = set()
        self.body = b""
        """The event of the present state."""
        self.updates = 0
        """How many states were published; 0: none yet."""

    def publish_state(self, body: bytes, *, jobs: int = 1) -> None:
        """Publish the state of a job, or of a batch of `jobs`, unless it is only a heartbeat."""
        visible = not is_heartbeat(self.body, body, jobs=jobs)
        self.body = body
        if visible:
            self.updates += 1
            self.wake()

    def remove(self, watcher: "Watcher[Any]") -> None:
        self.watchers.discard(watcher)
        if not self.watchers:
            self._on_empty()

    def wake(self) -> None:
        for watcher in self.watchers:
            watcher.wake()

    def close(self) -> None:
        """End all streams, because the watched job, batch or scope was removed."""
        for watcher in self.watchers:
            watcher.close()


FeedType = TypeVar("FeedType", bound=Feed)
Key = TypeVar("Key")


class Watcher(Generic[FeedType]):
    """One client of a feed: what it was sent already, and what may end its stream.

    This base class only waits: it sends no events.
    """

    __slots__ = (
        "_feed",
        "_loop",
        "_waiter",
        "closed",
        "expires",
        "finished",
        "grant",
        "key",
        "sending_since",
        "sent_at",
        "stalled",
        "task",
    )

    def __init__(
        self,
        feed: FeedType,
        *,
        key: str | None = None,
        expires: float | None = None,
        grant: Grant | None = None,
    ) -> None:
        """The stream ends when `key` is revoked, at `expires`, and when `grant` is withdrawn."""
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        self.key = key
        self.expires = expires
        self.grant = grant
        self.closed = False
        self.finished = False
        """The client was sent the final state."""
        self.stalled = False
        self.sent_at = self._loop.time()
        self.sending_since: float | None = None
        self.task: asyncio.Task[Any] | None = None
        feed.watchers.add(self)

    async def events(self) -> bytes:
        """Return the events that were not sent yet; empty: there are none now."""
        return b""

    def leave(self) -> None:
        self._feed.remove(self)

    async def wait(self) -> bool:
        """Wait until there may be events to send. True: a heartbeat is due."""
        if self.closed:
            return False
        self._waiter = self._loop.create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def wake(self, *, heartbeat: bool = False) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(heartbeat)

    def close(self) -> None:
        self.closed = True
        self.wake()

    def begin_send(self) -> None:
        if self.sending_since is None:
            self.sending_since = self._loop.time()
            self.task = asyncio.current_task()

    def end_send(self) -> None:
        self.sending_since = self.task = None
        self.sent_at = self._loop.time()

    def abort(self) -> None:
        """Break off the answer, because its client does not read."""
        self.closed = self.stalled = True
        if self.task is not None:
            self.task.cancel()


class Log(Generic[Key]):
    """The last events of a feed, each with its key: as many as a watcher may lag behind."""

    def __init__(self, dropped: Key) -> None:
        self.entries: deque[tuple[Key, bytes]] = deque()
        self.dropped = dropped
        """The key of the last event that was dropped."""
        self._bytes = 0

    def add(self, key: Key, event: bytes) -> None:
        self.entries.append((key, event))
        self._bytes += len(event)
        while len(self.entries) > LOG_ENTRIES or self._bytes > LOG_BYTES:
            self.drop_oldest()

    def drop_oldest(self) -> None:
        self.dropped, event = self.entries.popleft()
        self._bytes -= len(event)

    def clear(self, dropped: Key) -> None:
        self.entries.clear()
        self._bytes, self.dropped = 0, dropped


class JobFeed(Feed):
    """A job and the chunks of its attempts. Chunks are sent before the state that follows them."""

    def __init__(
        self,
        on_empty: Callable[[], object],
        *,
        history: Callable[[Cursor], Awaitable[Chunks]],
        page: int,
        poll: Callable[[], None],
    ) -> None:
        """`history` reads a `page` of chunks after a cursor; `poll` makes the hub poll."""
        super().__init__(on_empty)
        self.history = history
        self.page = page
        self._poll = poll
        self.version = -1
        self.attempt = 0
        self.fingerprint: Any = None
        self.final = False
        self.cursor: Cursor | None = None
        """The last chunk that was published; None: no watcher reads chunks from this feed."""
        self.chunks_due = False
        self._chunks: Log[Cursor] = Log((0, 0))

    def publish_chunks(self, chunks: Chunks) -> None:
        for cursor, body in chunks:
            self._chunks.add(cursor, body)
            self.cursor = cursor

    def publish(self, body: bytes, *, version: int, attempt: int, final: bool) -> None:
        self.version, self.attempt, self.final = version, attempt, final
        self.publish_state(body)

    def join(self, cursor: Cursor, *, certain: bool) -> bool:
        """Return whether the feed has the next chunks for a watcher that was sent all to `cursor`.

        `certain`: the database had no chunk after `cursor` a moment ago. If the feed is ahead of it
        all the same, a client began the feed with a cursor that does not exist yet: then the feed
        begins again at `cursor`.
        """
        if self.cursor is None or (cursor < self._chunks.dropped and certain):
            self.cursor = cursor
            self._chunks.clear(cursor)
            # Chunks that were written between the watcher's read and now.
            self.chunks_due = True
            self._poll()
        return cursor >= self._chunks.dropped

    def trim(self) -> None:
        """Drop the chunks that were sent to all watchers."""
        sent = min(
            (watcher.cursor for watcher in self.watchers if isinstance(watcher, JobWatcher)),
            default=_LAST,
        )
        while self._chunks.entries and self._chunks.entries[0][0] <= sent:
            self._chunks.drop_oldest()

    def drop_chunks(self) -> None:
        """Keep no more chunks: each watcher reads them from the database, and then joins again."""
        self.cursor = None
        self._chunks.clear(_LAST)

    def chunks_after(self, cursor: Cursor) -> Chunks | None:
        """Return the chunks after this one; None: some were dropped."""
        if cursor < self._chunks.dropped:
            return None
        return [chunk for chunk in self._chunks.entries if chunk[0] > cursor]


class JobWatcher(Watcher[JobFeed]):
    __slots__ = ("_reads_history", "_updates_sent", "cursor")

    def __init__(self, feed: JobFeed, cursor: Cursor, **caller: Any) -> None:
        super().__init__(feed, **caller)
        self.cursor = cursor
        self._updates_sent = 0
        self._reads_history = True

    async def events(self) -> bytes:
        feed = self._feed
        if not feed.updates or self.finished:
            return b""
        out: list[bytes] = []
        if not self._updates_sent and not feed.final:
            self._add_state(out)
        final = False
        while True:
            # Read before the chunks: if the job is final now, the chunks are complete.
            final = feed.final
            if not await self._add_chunks(out):
                return b"".join(out)
            if final or not feed.final:
                break
        if self._updates_sent != feed.updates:
            self._add_state(out)
            self.finished = final
        return b"".join(out)

    async def _add_chunks(self, out: list[bytes]) -> bool:
        """Add the next chunks; return whether these were all."""
        feed = self._feed
        chunks = None if self._reads_history else feed.chunks_after(self.cursor)
        if chunks is None:
            self._reads_history = True
            chunks = await feed.history(self.cursor) if feed.attempt else []
        for cursor, body in chunks:
            self.cursor = cursor
            out += (self._id(), body)
        if self._reads_history and len(chunks) < feed.page:
            self._reads_history = not feed.join(self.cursor, certain=not chunks)
        return not self._reads_history

    def _add_state(self, out: list[bytes]) -> None:
        self._updates_sent = self._feed.updates
        out += (self._id(), self._feed.body)

    def _id(self) -> bytes:
        return b"id: %d.%d.%d\n" % (self._feed.version, *self.cursor)


class BatchFeed(Feed):
    """A batch, as one state."""

    def __init__(self, on_empty: Callable[[], object]) -> None:
        super().__init__(on_empty)
        self.fingerprint: int | None = None
        self.not_before = 0.0
        """The earliest time of the next read: reading a large batch takes long."""
        self.refresh_at = 0.0
        """The latest time of the next read: the batch's position in the queue changes."""


class AnyChangeFeed(Feed):
    """Events for pages that show everything: they say that something changed, but not what."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.body = encode("change", "{}")
        self.updates = 1
        self._published_at = 0.0
        self._changed = False

    def changed(self, now: float) -> None:
        self._changed = True
        self.publish(now)

    def publish(self, now: float) -> None:
        """Publish a change if it is due."""
        since = now - self._published_at
        if (self._changed and since >= CHANGE_SECONDS) or since >= SILENCE_SECONDS:
            self._changed = False
            self._published_at = now
            self.updates += 1
            self.wake()


class StateWatcher(Watcher[Feed]):
    """A watcher that is sent the newest state."""

    __slots__ = ("_updates_sent",)

    def __init__(self, feed: Feed, **caller: Any) -> None:
        super().__init__(feed, **caller)
        self._updates_sent = 0

    async def events(self) -> bytes:
        if self._updates_sent == self._feed.updates:
            return b""
        self._updates_sent = self._feed.updates
        return self._feed.body


def is_heartbeat(old: bytes, new: bytes, *, jobs: int = 1) -> bool:
    """Whether a job, or a batch of `jobs`, differs only in version and `updated_at`.

    A model writes a few words in a tenth of a second. Without this check, each chunk would be
    followed by the whole job.
    """
    return abs(len(new) - len(old)) < HEARTBEAT_BYTES * jobs and _visible(old) == _visible(new)


def _visible(body: bytes) -> dict[str, Any]:
    data = body.partition(b"\ndata: ")[2]
    state: dict[str, Any] = json.loads(data) if data else {}
    for job in (state, *state.get("items", ())):
        job.update(version=None, updated_at=None)
    return state


def fingerprint(job: JobState) -> tuple[int, str, int | None]:
    """The values whose change publishes a job again; a slightly shorter ETA does not count."""
    eta = None if job.eta_seconds is None else round(log(1 + job.eta_seconds) * 6)
    return job.version, job.mark, eta
