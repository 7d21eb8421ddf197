"""Watchers: clients with an open stream. What they watch is in subscriptions.py.

Rooms are told by the hub, once for all; each watcher reads from its room what it has not had yet.
So a client costs a few numbers, a slow one nobody else, and what it missed is the newest state.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.engine.accounts.sessions import Grant

# What a room keeps for who lags behind; then a client has to begin again.
LOG_ENTRIES = 1_000
LOG_BYTES = 524_288

RESYNC = b"event: resync\ndata: {}\n\n"


def encode(event: str, data: str) -> bytes:
    """An event without its id. JSON as Postgres writes it has no line breaks."""
    return f"event: {event}\ndata: {data}\n\n".encode()


class Room:
    """Something watched. It is empty when its last watcher has left."""

    def __init__(self, on_empty: Callable[[], None]) -> None:
        self._on_empty = on_empty
        self.watchers: set[Watcher] = set()
        self.gone = False
        """What is watched is not there any more."""

    def enter(self, watcher: "Watcher") -> None:
        self.watchers.add(watcher)

    def leave(self, watcher: "Watcher") -> None:
        self.watchers.discard(watcher)
        if not self.watchers:
            self._on_empty()

    def wake(self) -> None:
        for watcher in self.watchers:
            watcher.wake()

    def end(self) -> None:
        """What is watched was removed: its streams end."""
        self.gone = True
        for watcher in self.watchers:
            watcher.close()


class Watcher(ABC):
    """One client: how far it is, and what may end it."""

    __slots__ = (
        "_loop",
        "_waiter",
        "closed",
        "expires",
        "grant",
        "key",
        "over",
        "sent_at",
        "stalled",
        "taking_since",
        "task",
    )

    def __init__(
        self,
        *,
        key: str | None = None,
        expires: float | None = None,
        grant: Grant | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        self.key = key
        """Revoked, it closes the stream."""
        self.expires = expires
        self.grant = grant
        """Over before its time, it closes the stream."""
        self.closed = False
        self.over = False
        """It has had the last there is."""
        self.stalled = False
        self.sent_at = self._loop.time()
        self.taking_since: float | None = None
        self.task: asyncio.Task[Any] | None = None

    @abstractmethod
    async def events(self) -> bytes:
        """What it has not had yet; empty: nothing now."""

    @abstractmethod
    def leave(self) -> None:
        """It is not in its room any more."""

    async def wait(self) -> bool:
        """Until there may be news. True: it is time for a sign of life."""
        if self.closed:
            return False
        self._waiter = self._loop.create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def wake(self, *, beat: bool = False) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(beat)

    def close(self) -> None:
        self.closed = True
        self.wake()

    def sending(self) -> None:
        if self.taking_since is None:
            self.taking_since = self._loop.time()
            self.task = asyncio.current_task()

    def sent(self) -> None:
        self.taking_since = self.task = None
        self.sent_at = self._loop.time()

    def give_up(self) -> None:
        """Its client takes nothing: the answer is broken off where it stands."""
        self.closed = self.stalled = True
        if self.task is not None:
            self.task.cancel()


class Log:
    """The last that was told in a room, numbered; what is told again of a job replaces it."""

    def __init__(self) -> None:
        self._entries: deque[tuple[Any, bytes]] = deque()
        self._bytes = 0
        self._joined: dict[int, bytes] = {}
        self.end = 0

    def add(self, key: Any, event: bytes) -> None:
        self._joined.clear()
        self._entries.append((key, event))
        self._bytes += len(event)
        self.end += 1
        while len(self._entries) > LOG_ENTRIES or self._bytes > LOG_BYTES:
            self._drop()

    def forget(self, before: int) -> None:
        """Everybody has had what is before this."""
        self._joined.clear()
        while self._entries and self.end - len(self._entries) < before:
            self._drop()

    def since(self, at: int) -> bytes | None:
        """What was told from there on, of each job the newest only; None: not kept that long."""
        first = self.end - len(self._entries)
        if at < first:
            return None
        # Thousands of watchers are at the same place: it is put together once for all of them.
        found = self._joined.get(at)
        if found is None:
            newest = dict(list(self._entries)[at - first :])
            found = self._joined[at] = b"".join(newest.values())
        return found

    def _drop(self) -> None:
        self._bytes -= len(self._entries.popleft()[1])
