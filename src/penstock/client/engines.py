"""One engine per event loop, since a connection belongs to the loop it was opened in.

The end of a loop closes its engine, whether anybody calls `close` or not: `asyncio.run` (and
whatever else ends a loop in good order) ends the async generators that are still open, and each
engine is held by one.

An embedded server is used by however many apps, loops and threads, and started once per process.
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
"""How long connections may be in use when a loop ends; then they are cut."""

_Declare = Callable[[Engine], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Opened:
    """An engine of one loop, and what notifies its workers and the API in the background."""

    engine: Engine
    waker: Notifier
    driver: Notifier
    keeper: AsyncGenerator[None, None] | None = None


async def connect(dsn: str, declare: _Declare, *, own: bool) -> Engine:
    """An engine on a database with the present schema that knows what is declared.

    `own`: the embedded one, whose schema is brought up; that of a server is refused if it is old.
    """
    conn = await open_connection(dsn, frugal=not own)
    try:
        if own:
            await migrations.up(conn)
        else:
            # A line that breaks in between breaks the end of the transaction, too.
            with translated():
                async with conn.transaction():
                    await version.admit(conn)
    finally:
        await conn.close()
    # Workers need sessions of their own; to submit, any way to the server will do.
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
        """`driver`: makes what starts the calls of queues that no worker stands by."""
        self._connect = connect
        self._driver = driver
        self._by_loop: dict[asyncio.AbstractEventLoop, asyncio.Task[Opened]] = {}
        _all.add(self)

    async def get(self) -> Engine:
        """The running loop's engine; the first to ask opens it, others wait for that."""
        loop = asyncio.get_running_loop()
        if (opening := self._by_loop.get(loop)) is None:
            self._forget_closed_loops()
            self._by_loop[loop] = opening = loop.create_task(self._open(loop))
            opening.add_done_callback(_retrieve)
        if opened := _result(opening):
            return opened.engine
        # Shielded: one caller may give up while others wait.
        return (await asyncio.shield(opening)).engine

    async def close(self) -> None:
        """Let go of the running loop's engine, if it has one."""
        opening = self._by_loop.get(asyncio.get_running_loop())
        if opening is not None:
            await asyncio.wait([opening])
        if (opened := self.current()) and opened.keeper is not None:
            await opened.keeper.aclose()

    @property
    def any_open(self) -> bool:
        return any(not loop.is_closed() for loop in list(self._by_loop))

    def forget_parent(self) -> None:
        """A forked child must not write to its parent's connections, nor even close them."""
        _the_parents.append(self._by_loop)
        self._by_loop = {}

    def current(self) -> Opened | None:
        """What the running loop has, if it is open."""
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
        """Of loops that were closed without being ended in good order, nothing can be closed."""
        for loop in [loop for loop in list(self._by_loop) if loop.is_closed()]:
            if opened := _result(self._by_loop.pop(loop, None)):
                _keepers.discard(opened.keeper)


def _retrieve(opening: "asyncio.Task[Opened]") -> None:
    """All who waited for it may have given up: then nobody else asks how it went."""
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
    """The address of the database: the given one, or that of the embedded one, which is started."""
    if settings.dsn is not None:
        return settings.dsn
    # In a thread, since starting a server takes a second and blocks.
    return await asyncio.to_thread(_servers.join, settings.home, user)


async def leave_database(settings: Settings, user: object) -> None:
    """End the use of an embedded server; the last user stops it. Else it is left at exit."""
    if settings.dsn is None:
        await asyncio.to_thread(_servers.leave, settings.home, user)


class _Servers:
    """The embedded servers this process uses, each once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # With their users; an app that was dropped without being closed is no user any more.
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


# Held here and not by the app alone: the connections of an app that was dropped must not be closed
# by the garbage collector, at any moment and in any thread, but by the end of their loop.
_keepers: set[AsyncGenerator[None, None] | None] = set()
_all: "weakref.WeakSet[Engines]" = weakref.WeakSet()
_the_parents: list[object] = []
_servers = _Servers()


def _forget_in_child() -> None:
    """A forked child has no part in its parent's connections, or in its use of a server."""
    global _servers  # noqa: PLW0603  # its lock may have been held while we were forked
    _servers = _Servers()
    for engines in _all:
        engines.forget_parent()


os.register_at_fork(after_in_child=_forget_in_child)
