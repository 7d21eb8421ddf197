"""What is watched: a job, a batch, the jobs of a topic or an account; see watchers.py."""

import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from math import log
from typing import Any
from uuid import UUID

from penstock.engine.queries.events import BATCH_ITEMS, Glance, Scope, Seen
from penstock.http.live.watchers import LOG_BYTES, LOG_ENTRIES, RESYNC, Log, Room, Watcher, encode

# A scope with more live jobs than this tells no snapshot: a client reads the list, page by page.
MOST_JOBS = 1_000
SNAPSHOT_BYTES = 8 * 1_048_576
# How long the state of a scope's jobs is kept for the next client: after a restart they all come.
KEPT_SECONDS = 10.0
# And then it is read anew: what ended more than a few minutes ago does not belong there any more.
FRESH_SECONDS = 60.0

# By so much at most the two differ in length: a digit more, the parts of a second.
LIFE_BYTES = 16

FINAL = ("succeeded", "failed", "cancelled")

Cursor = tuple[int, int]
"""Attempt and number of a chunk."""
Chunks = list[tuple[Cursor, bytes]]


class JobRoom(Room):
    """A job and what its starts emit. Chunks are told before the state that follows them."""

    def __init__(
        self,
        on_empty: Callable[[], None],
        *,
        history: Callable[[Cursor], Awaitable[Chunks]],
        page: int,
        look: Callable[[], None],
    ) -> None:
        super().__init__(on_empty)
        self.history = history
        self.page = page
        self._look = look
        self.version = -1
        self.attempt = 0
        self.print: Any = None
        self.body = b""
        self.told = 0
        """How often the state was told; 0: not yet."""
        self.final = False
        self.cursor: Cursor | None = None
        """Up to here chunks were told; None: nobody needs them from here."""
        self.chunks_due = False
        self._since: Cursor = (0, 0)
        self._chunks: deque[tuple[Cursor, bytes]] = deque()
        self._bytes = 0

    def tell_chunks(self, chunks: Iterable[tuple[Cursor, bytes]]) -> None:
        for cursor, body in chunks:
            self._chunks.append((cursor, body))
            self._bytes += len(body)
            self.cursor = cursor
        while len(self._chunks) > LOG_ENTRIES or self._bytes > LOG_BYTES:
            self._since, dropped = self._chunks.popleft()
            self._bytes -= len(dropped)

    def tell(self, body: bytes, *, version: int, attempt: int, final: bool) -> None:
        news = not is_sign_of_life(self.body, body)
        self.body, self.version, self.attempt, self.final = body, version, attempt, final
        if news:
            self.told += 1
            self.wake()

    def join(self, cursor: Cursor, *, certain: bool) -> bool:
        """A watcher has had all up to here. False: it has not, and has to read more.

        `certain`: there was nothing after it a moment ago. Then a room that is further than that
        was begun by a client that named a place which does not exist.
        """
        if self.cursor is None or (cursor < self._since and certain):
            self.cursor = self._since = cursor
            self._chunks.clear()
            self._bytes = 0
            # What came between its read and now.
            self.chunks_due = True
            self._look()
        return cursor >= self._since

    def settle(self) -> None:
        """Keep no chunk that everybody has had."""
        had = min(
            (one.cursor for one in self.watchers if isinstance(one, JobWatcher)), default=_END
        )
        while self._chunks and self._chunks[0][0] <= had:
            self._since, dropped = self._chunks.popleft()
            self._bytes -= len(dropped)

    def rejoin(self) -> None:
        """Nothing is kept here any more: each reads for itself, and joins again."""
        self.cursor = None
        self._since = _END
        self._chunks.clear()
        self._bytes = 0

    def after(self, cursor: Cursor) -> Chunks | None:
        """Chunks after this one; None: they are not kept that long."""
        if cursor < self._since:
            return None
        return [one for one in self._chunks if one[0] > cursor]


class JobWatcher(Watcher):
    __slots__ = ("_behind", "_room", "_told", "cursor")

    def __init__(self, room: JobRoom, cursor: Cursor, **who: Any) -> None:
        super().__init__(**who)
        self._room = room
        self.cursor = cursor
        self._told = 0
        self._behind = True
        room.enter(self)

    def leave(self) -> None:
        self._room.leave(self)

    async def events(self) -> bytes:
        room = self._room
        if not room.told or self.over:
            return b""
        out: list[bytes] = []
        if not self._told and not room.final:
            self._tell(out)
        final = False
        while True:
            # As it was before chunks are read: then there are all of them.
            final = room.final
            if not await self._tell_chunks(out):
                return b"".join(out)
            if final or not room.final:
                break
        if self._told != room.told:
            self._tell(out)
            self.over = final
        return b"".join(out)

    async def _tell_chunks(self, out: list[bytes]) -> bool:
        """Whether that were all."""
        room = self._room
        chunks = None if self._behind else room.after(self.cursor)
        if chunks is None:
            self._behind = True
            chunks = await room.history(self.cursor) if room.attempt else []
        for cursor, body in chunks:
            self.cursor = cursor
            out += (self._id(), body)
        if self._behind and len(chunks) < room.page:
            self._behind = not room.join(self.cursor, certain=not chunks)
        return not self._behind

    def _tell(self, out: list[bytes]) -> None:
        self._told = self._room.told
        out += (self._id(), self._room.body)

    def _id(self) -> bytes:
        return b"id: %d.%d.%d\n" % (self._room.version, *self.cursor)


class FinalWatcher(Watcher):
    """Waits for the end of a job, and wants nothing else of it."""

    __slots__ = ("_room",)

    def __init__(self, room: JobRoom) -> None:
        super().__init__()
        self._room = room
        room.enter(self)

    def leave(self) -> None:
        self._room.leave(self)

    async def events(self) -> bytes:
        return b""

    async def until_final(self) -> bool:
        while not self._room.final and not self.closed:
            await self.wait()
        return self._room.final


class BatchRoom(Room):
    """A batch, told as one."""

    def __init__(self, on_empty: Callable[[], None]) -> None:
        super().__init__(on_empty)
        self.print: int | None = None
        self.next_at = 0.0
        """Not read before: a large one takes its time."""
        self.again_at = 0.0
        """Read by then in any case: its place in the queue changes."""
        self.body = b""
        self.told = 0

    def tell(self, body: bytes) -> None:
        news = not is_sign_of_life(self.body, body, jobs=BATCH_ITEMS)
        self.body = body
        if news:
            self.told += 1
            self.wake()


class BatchWatcher(Watcher):
    __slots__ = ("_room", "_told")

    def __init__(self, room: BatchRoom, **who: Any) -> None:
        super().__init__(**who)
        self._room = room
        self._told = 0
        room.enter(self)

    def leave(self) -> None:
        self._room.leave(self)

    async def events(self) -> bytes:
        if self._told == self._room.told:
            return b""
        self._told = self._room.told
        return self._room.body


def is_sign_of_life(old: bytes, new: bytes, *, jobs: int = 1) -> bool:
    """Whether a job, or a batch of them, is as it was told, but for version and `updated_at`.

    A model writes a few words in a tenth of a second, and each time the job would follow them.
    """
    return abs(len(new) - len(old)) < LIFE_BYTES * jobs and _visible(old) == _visible(new)


def _visible(body: bytes) -> dict[str, Any]:
    data = body.partition(b"\ndata: ")[2]
    found: dict[str, Any] = json.loads(data) if data else {}
    for one in (found, *found.get("items", ())):
        one.update(version=None, updated_at=None)
    return found


def print_of(seen: Seen) -> tuple[int, str, int | None]:
    """What has to change before a job is told again; a slightly shorter wait is no news."""
    eta = None if seen.eta_seconds is None else round(log(1 + seen.eta_seconds) * 6)
    return seen.version, seen.mark, eta


class ScopeRoom(Room):
    """The jobs of a topic or an account: a snapshot for who comes, and then what changes."""

    def __init__(self, on_empty: Callable[[], None], scope: Scope) -> None:
        super().__init__(on_empty)
        self.scope = scope
        self.print: int | None = None
        """As of the last look; None: there was none."""
        self.live: Mapping[UUID, int] = {}
        self.started: Mapping[UUID, int] = {}
        self.known: dict[UUID, tuple[int, str, int | None]] = {}
        self.log = Log()
        self.account = b""
        """The account itself, where it is one that is watched."""
        self.wanted_at: float | None = None
        """Somebody came and there was nothing to show."""
        self.placed_at = 0.0
        """When the positions of all its waiting jobs were read together."""
        self._ended: dict[UUID, None] = {}
        self._running: dict[UUID, bytes] = {}
        """What was told of these, MOST_JOBS of them: theirs are the signs of life."""
        self._texts: dict[UUID, bytes] | None = None
        self._bytes = 0
        self._joined: bytes | None = None
        self._cut = False
        self._read_at = 0.0
        self._used_at = 0.0

    def changed(self, live: Mapping[UUID, int], ended: Sequence[UUID]) -> list[UUID]:
        """Which of its jobs have to be read, by what a look has found."""
        known = self.known
        found = [job for job, version in live.items() if known.get(job, _NONE)[0] != version]
        found += [job for job in known if job not in live]
        if self.print is not None:  # else all that has ended did so before anybody watched
            found += [job for job in ended if job not in self._ended and job not in known]
        return found

    def adopt(self, glance: Glance | None, started: Mapping[UUID, int]) -> None:
        """That was told. What ended once does not change again."""
        if glance is not None:
            self.print, self.live = glance.print, glance.live
            self._ended.update(dict.fromkeys(glance.ended))
            while len(self._ended) > 3 * MOST_JOBS:
                del self._ended[next(iter(self._ended))]
        self.started = started
        here = {**started, **self.live}
        known = self.known
        self.known = {job: known.get(job, (version, "", None)) for job, version in here.items()}
        self._running = {job: body for job, body in self._running.items() if job in here}

    def show(self, now: float) -> bytes | None:
        """Everything, for who comes; None: it has to be read first."""
        self._used_at = now
        if self._texts is None or now - self._read_at > FRESH_SECONDS:
            self.wanted_at = self.wanted_at or now
            return None
        if self._joined is None:
            parts = [self._texts[job] for job in sorted(self._texts)]
            if self._cut or self._bytes > SNAPSHOT_BYTES or len(parts) > MOST_JOBS:
                parts = [RESYNC]
            self._joined = self.account + b"".join(parts)
        return self._joined

    def begin_snapshot(self, now: float, ended: Iterable[UUID], *, cut: bool) -> None:
        """What is told next is all there is, unless it is `cut`. `ended`: no news to the others."""
        self._texts, self._bytes, self._read_at = {}, 0, now
        self._cut, self._joined, self.wanted_at = cut, None, None
        self._ended.update(dict.fromkeys(ended))

    def tell(self, seen: Seen, body: bytes) -> bool:
        """Whether it is a job that has not been told before."""
        if self._texts is not None and self._texts.get(seen.id) != body:
            self._bytes += len(body) - len(self._texts.get(seen.id, b""))
            self._texts[seen.id] = body
            self._joined = None
        told = print_of(seen)
        if self.known.get(seen.id) == told or seen.id in self._ended:
            return False
        if not is_sign_of_life(self._running.pop(seen.id, b""), body):
            self.log.add(seen.id, body)
        if seen.status == "running" and len(self._running) < MOST_JOBS:
            self._running[seen.id] = body
        if seen.status in FINAL:
            self._ended[seen.id] = None
            return False
        new = seen.id not in self.known
        self.known[seen.id] = told
        return new

    def tell_account(self, text: str) -> None:
        body = encode("account", text)
        if body != self.account:
            self.account = body
            self._joined = None
            self.log.add(None, body)

    def tell_resync(self) -> None:
        self.log.add(RESYNC, RESYNC)

    def settle(self, now: float) -> None:
        """Keep no more than somebody still needs."""
        self.log.forget(
            min(
                (one.at for one in self.watchers if isinstance(one, ScopeWatcher)),
                default=self.log.end,
            )
        )
        if self._texts is not None and now - self._used_at > KEPT_SECONDS:
            self._texts = self._joined = None
            self._bytes = 0


class ScopeWatcher(Watcher):
    __slots__ = ("_greeted", "_room", "at")

    def __init__(self, room: ScopeRoom, **who: Any) -> None:
        super().__init__(**who)
        self._room = room
        self._greeted = False
        self.at = room.log.end
        room.enter(self)

    def leave(self) -> None:
        self._room.leave(self)

    async def events(self) -> bytes:
        room = self._room
        if not self._greeted:
            shown = room.show(self._loop.time())
            self.at = room.log.end
            if shown is None:
                return b""
            self._greeted = True
            return shown
        if self.at == room.log.end:
            return b""
        told = room.log.since(self.at)
        self.at = room.log.end
        return RESYNC if told is None else told


_NONE: tuple[None, None, None] = (None, None, None)
_END: Cursor = (2**31, 0)
