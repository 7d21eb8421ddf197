"""For pages that show everything: that something has changed, and not what.

A page is told at most once a second, however much happens; and once in a while without a hint,
since what depends on time alone (a wait, a silence) changes without one.
"""

from typing import Any

from penstock.http.live.watchers import Room, Watcher

PAUSE_SECONDS = 1.0
SILENCE_SECONDS = 5.0

_EVENT = b"event: change\ndata: {}\n\n"


class PulseRoom(Room):
    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.beat = 0
        self._told_at = 0.0
        self._due = False

    def hint(self, now: float) -> None:
        """Something has changed."""
        self._due = True
        self.settle(now)

    def settle(self, now: float) -> None:
        """Tell what is due; the hub asks once a second."""
        since = now - self._told_at
        if (self._due and since >= PAUSE_SECONDS) or since >= SILENCE_SECONDS:
            self._due = False
            self._told_at = now
            self.beat += 1
            self.wake()


class PulseWatcher(Watcher):
    __slots__ = ("_beat", "_room")

    def __init__(self, room: PulseRoom, **who: Any) -> None:
        super().__init__(**who)
        self._room = room
        self._beat = -1
        room.enter(self)

    async def events(self) -> bytes:
        if self._beat == self._room.beat:
            return b""
        self._beat = self._room.beat
        return _EVENT

    def leave(self) -> None:
        self._room.leave(self)
