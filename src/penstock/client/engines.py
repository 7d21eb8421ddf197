"""One engine per event loop, since a connection belongs to the loop in which it was opened.

The end of a loop closes its engine, even if the app does not call `close`: `asyncio.run` (and
everything else that ends a loop in good order) closes the async generators that are still open,
and one of them holds the engine.

An embedded server is started once per process and shared by all its apps, loops and threads.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.base.settings import Settings
from penstock.db.connections.connect import open_connection
from penstock.db.connections.driver_errors import translated
from penstock.db.connections.pooler import is_pooled
from penstock.db.embedded.database import Embedded
from penstock.db.schema import migrations, version
from penstock.engine.engine import Engine
from penstock.engine.queries.events import WAKE_PAUSE_SECONDS, Notifier

CLOSE_SECONDS = 10.0
"""How long connections may stay in use when a loop ends; then they are cut."""

_Declare = Callable[[Engine], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Opened:
    """An engine of one loop, with the notifiers that wake workers and call the API."""

    engine: Engine
    waker: Notifier
    driver: Notifier
    keeper: AsyncGenerator[None, None] | None = None


async def connect(dsn: str, declare: _Declare, *, own: bool) -> Engine:
    """Open an engine on a database with the current schema, and send the declarations.

    `own`: it is the embedded database, whose schema is migrated. A server with an old schema is
    refused.
    """
    conn = await open_connection(dsn, frugal=not own)
    try:
        if own:
            await migrations.up(conn)
        else:
            # If the connection breaks in between, ending the transaction fails, too.
            with translated():
                async with conn.transaction():
                    await version.admit(conn)
    finally:
        await conn.close()
    # Workers need sessions of their own; submits also work through a pooler.
    with translated():
        frugal = not own and await is_pooled(dsn)
    engine = await Engine.open(dsn, frugal=frugal)
    try:
        await declare(engine)
    except BaseException:
        await engine.close()
        raise
    return engine


class Engines:
    """The engines of one app, by loop."""

    def __init__(
        self, connect: Callable[[], Awaitable[Engine]], driver: Callable[[], Notifier]
    ) -> None:
        """`driver`: makes the notifier that starts the calls of driven queues."""
        self._connect = connect
        self._driver = driver
        self._by_loop: dict[asyncio.AbstractEventLoop, asyncio.Task[Opened]] = {}
        _all.add(self)

    async def get(self) -> Engine:
        """Return the running loop's engine; the first caller opens it, the others wait."""
        loop = asyncio.get_running_loop()
        if (opening := self._by_loop.get(loop)) is None:
            self._forget_closed_loops()
            self._by_loop[loop] = opening = loop.create_task(self._open(loop))
            opening.add_done_callback(_retrieve)
        if opened := _result(opening):
            return opened.engine
        # Shielded, since one caller may give up while others wait.
        return (await asyncio.shield(opening)).engine

    async def close(self) -> None:
        """Close the running loop's engine, if it has one."""
        opening = self._by_loop.get(asyncio.get_running_loop())
        if opening is not None:
            await asyncio.wait([opening])
        if (opened := self.current()) and opened.keeper is not None:
            await opened.keeper.aclose()

    @property
    def any_open(self) -> bool:
        return any(not loop.is_closed() for loop in list(self._by_loop))

    def forget_parent(self) -> None:
        """Keep a forked child from using its parent's connections, or even closing them."""
        _the_parents.append(self._by_loop)
        self._by_loop = {}

    def current(self) -> Opened | None:
        """Return the running loop's engine and notifiers, if they are open."""
        try:
            opening = self._by_loop.get(asyncio.get_running_loop())
        except RuntimeError:
            return None
        return _result(opening)

    async def _open(self, loop: asyncio.AbstractEventLoop) -> Opened:
        try:
            engine = await self._connect()
        except BaseException:
            # The next caller tries again.
            self._by_loop.pop(loop, None)
            raise
        waker = Notifier(engine.jobs.wake, pause_seconds=WAKE_PAUSE_SECONDS)
        opened = Opened(engine, waker, self._driver())
        opened.keeper = _keep(self._by_loop, loop, opened)
        await anext(opened.keeper)
        _keepers.add(opened.keeper)
        return opened

    def _forget_closed_loops(self) -> None:
        """Forget loops that were closed without a shutdown: nothing of theirs can be closed."""
        for loop in [loop for loop in list(self._by_loop) if loop.is_closed()]:
            if opened := _result(self._by_loop.pop(loop, None)):
                _keepers.discard(opened.keeper)


def _retrieve(opening: "asyncio.Task[Opened]") -> None:
    """Retrieve the exception: if all callers have given up, asyncio would log it as unread."""
    if not opening.cancelled():
        opening.exception()


def _result(opening: "asyncio.Task[Opened] | None") -> Opened | None:
    if opening is None or not opening.done() or opening.cancelled() or opening.exception():
        return None
    return opening.result()


async def _keep(
    by_loop: dict[asyncio.AbstractEventLoop, asyncio.Task[Opened]],
    loop: asyncio.AbstractEventLoop,
    opened: Opened,
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        by_loop.pop(loop, None)
        _keepers.discard(opened.keeper)
        async with asyncio.timeout(CLOSE_SECONDS):
            for part in (opened.waker, opened.driver, opened.engine):
                await part.close()


async def join_database(settings: Settings, user: object) -> str:
    """Return the configured address, or start the embedded database and return its address."""
    if settings.dsn is not None:
        return settings.dsn
    # In a thread, since starting a server takes a second and blocks.
    return await asyncio.to_thread(_servers.join, settings.home, user)


async def leave_database(settings: Settings, user: object) -> None:
    """End this app's use of an embedded server; the last user stops it.

    A process that does not call this ends its use at exit.
    """
    if settings.dsn is None:
        await asyncio.to_thread(_servers.leave, settings.home, user)


class _Servers:
    """The embedded servers that this process uses, each once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # With their users. Weak references: a dropped app is no user, even if it was not closed.
        self._used: dict[Path, tuple[Embedded, weakref.WeakSet[object]]] = {}

    def join(self, home: Path, user: object) -> str:
        with self._lock:
            if home not in self._used:
                self._used[home] = Embedded.use(home), weakref.WeakSet()
            server, users = self._used[home]
            users.add(user)
            return server.dsn

    def leave(self, home: Path, user: object) -> None:
        with self._lock:
            if home not in self._used or user not in self._used[home][1]:
                return
            server, users = self._used[home]
            users.discard(user)
            if not users:
                del self._used[home]
                server.leave()


# Held here and not by the app alone: the end of their loop must close the connections of a dropped
# app, not the garbage collector, which runs at any moment and in any thread.
_keepers: set[AsyncGenerator[None, None] | None] = set()
_all: "weakref.WeakSet[Engines]" = weakref.WeakSet()
_the_parents: list[object] = []
_servers = _Servers()


def _forget_in_child() -> None:
    """Drop the parent's connections and embedded servers in a forked child."""
    global _servers  # noqa: PLW0603  # its lock may have been held while we were forked
    _servers = _Servers()
    for engines in _all:
        engines.forget_parent()


os.register_at_fork(after_in_child=_forget_in_child)
