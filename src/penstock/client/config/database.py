"""Where an app's database is: the address it was given, or the embedded one, started once."""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from penstock.base.settings import Settings
from penstock.db.embedded.database import Embedded


class Location:
    """One app's use of its database's server."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings

    async def dsn(self) -> str:
        """The address; the first to ask for an embedded database starts it."""
        settings = self._settings()
        if settings.dsn is not None:
            return settings.dsn
        # In a thread, since starting a server takes a second and blocks.
        return await asyncio.to_thread(_servers.join, settings.home, self)

    async def leave(self) -> None:
        """End the use of an embedded server; the last user stops it. Else it is left at exit."""
        settings = self._settings()
        if settings.dsn is None:
            await asyncio.to_thread(_servers.leave, settings.home, self)


class _Servers:
    """The embedded servers this process uses, each once, by however many apps, loops, threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[Path, Embedded] = {}
        # An app that is gone without a word is no user any more.
        self._users: dict[Path, weakref.WeakSet[Location]] = {}

    def join(self, home: Path, user: Location) -> str:
        with self._lock:
            if home not in self._used:
                self._used[home] = Embedded.use(home)
            self._users.setdefault(home, weakref.WeakSet()).add(user)
            return self._used[home].dsn

    def leave(self, home: Path, user: Location) -> None:
        with self._lock:
            users = self._users.get(home)
            if users is None or user not in users:
                return
            users.discard(user)
            if not users:
                self._used.pop(home).leave()


_servers = _Servers()


def _forget_in_child() -> None:
    """A forked child has no part in its parent's use: it must be a user of its own."""
    global _servers  # noqa: PLW0603  # its lock may have been held while we were forked
    _servers = _Servers()


os.register_at_fork(after_in_child=_forget_in_child)
