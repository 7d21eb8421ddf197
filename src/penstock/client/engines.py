"""One engine per event loop, since a connection belongs to the loop it was opened in.

The end of a loop closes its engine, whether anybody calls `close` or not: `asyncio.run` (and
whatever else ends a loop in good order) ends the async generators that are still open, and each
engine is held by one.
"""

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from penstock.db.connections.connect import open_connection
from penstock.db.connections.driver_errors import translated
from penstock.db.connections.pooler import is_pooled
from penstock.db.schema import migrations, version
from penstock.engine.engine import Engine
from penstock.engine.queries.events import WAKE_PAUSE_SECONDS, Notifier

CLOSE_SECONDS = 10.0
"""How long connections may be in use when a loop ends; then they are cut."""


@dataclass(slots=True, eq=False)
class _Held:
    """What one loop has; without an engine while it is being opened."""

    opening: asyncio.Task[Engine] | None = None
    engine: Engine | None = None
    waker: Notifier | None = None
    driver: Notifier | None = None
    keeper: AsyncGenerator[None, None] | None = None


async def connect(dsn: str, declare: Callable[[Engine], Awaitable[None]], *, own: bool) -> Engine:
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
    def __init__(
        self, connect: Callable[[], Awaitable[Engine]], driver: Callable[[], Notifier]
    ) -> None:
        """`driver`: makes what starts the calls of queues that no worker stands by."""
        self._connect = connect
        self._driver = driver
        self._held: dict[asyncio.AbstractEventLoop, _Held] = {}
        _all.add(self)

    async def get(self) -> Engine:
        """The engine of the running loop. The first caller opens it, others wait for that."""
        loop = asyncio.get_running_loop()
        held = self._held.get(loop)
        if held is None:
            self._forget_closed_loops()
            held = self._held[loop] = _Held()
            held.opening = loop.create_task(self._open(loop, held))
            held.opening.add_done_callback(_retrieve)
        if held.engine is not None:
            return held.engine
        assert held.opening is not None  # noqa: S101  # set in the same step as `held`
        # Shielded: one caller may give up while others wait.
        return await asyncio.shield(held.opening)

    def wake(self, queue: str) -> None:
        """Tell workers, in the background of the running loop."""
        held = self._held.get(asyncio.get_running_loop())
        if held is not None and held.waker is not None:
            held.waker.notify(queue)

    def drive(self, queue: str) -> None:
        """Start a call that drives the queue, in the background of the running loop."""
        held = self._held.get(asyncio.get_running_loop())
        if held is not None and held.driver is not None:
            held.driver.notify(queue)

    def may_ride(self, queue: str) -> bool:
        """Whether the next commit may carry a hint. Not from a thread without a loop of ours."""
        try:
            held = self._held.get(asyncio.get_running_loop())
        except RuntimeError:
            return False
        return held is not None and held.waker is not None and held.waker.may_join_commit(queue)

    async def close(self) -> None:
        """Let go of the running loop's engine, if it has one."""
        held = self._held.get(asyncio.get_running_loop())
        if held is None:
            return
        if held.opening is not None:
            await asyncio.wait([held.opening])
        if held.keeper is not None:
            await held.keeper.aclose()

    @property
    def any_open(self) -> bool:
        return any(not loop.is_closed() for loop in list(self._held))

    async def _open(self, loop: asyncio.AbstractEventLoop, held: _Held) -> Engine:
        try:
            engine = await self._connect()
        except BaseException:
            # The next caller tries again.
            self._held.pop(loop, None)
            raise
        held.waker = Notifier(engine.jobs.wake, pause_seconds=WAKE_PAUSE_SECONDS)
        held.driver = self._driver()
        held.keeper = _keep(self._held, loop, engine, [held.waker, held.driver])
        await anext(held.keeper)
        _keepers.add(held.keeper)
        held.engine = engine
        return engine

    def _forget_closed_loops(self) -> None:
        """Of loops that were closed without being ended in good order, nothing can be closed."""
        for loop in [loop for loop in list(self._held) if loop.is_closed()]:
            held = self._held.pop(loop, None)
            if held is not None and held.keeper is not None:
                _keepers.discard(held.keeper)


def _retrieve(opening: "asyncio.Task[Engine]") -> None:
    """All who waited for it may have given up: then nobody else asks how it went."""
    if not opening.cancelled():
        opening.exception()


async def _keep(
    held: dict[asyncio.AbstractEventLoop, _Held],
    loop: asyncio.AbstractEventLoop,
    engine: Engine,
    wakers: list[Notifier],
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        gone = held.pop(loop, None)
        if gone is not None and gone.keeper is not None:
            _keepers.discard(gone.keeper)
        async with asyncio.timeout(CLOSE_SECONDS):
            for waker in wakers:
                await waker.close()
            await engine.close()


# Held here and not by the app alone: one that is gone without a word must not have its connections
# closed by the garbage collector, at any moment and in any thread, but by the end of their loop.
_keepers: set[AsyncGenerator[None, None]] = set()
_all: "weakref.WeakSet[Engines]" = weakref.WeakSet()
_the_parents: list[object] = []


def _forget_in_child() -> None:
    """A forked child must not speak on its parent's connections, nor even close them."""
    for engines in _all:
        _the_parents.append(engines._held)  # noqa: SLF001
        engines._held = {}  # noqa: SLF001


os.register_at_fork(after_in_child=_forget_in_child)
