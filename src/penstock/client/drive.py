"""Starting the calls of queues that no worker stands by (`drive="http"`).

A submit begins the first call after its commit, and waits for nothing: a call that gets lost costs
time and no job, since the next submit, any call and every standing server begin one again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

from penstock.base.settings import Settings
from penstock.engine.engine import Engine
from penstock.engine.queries.events import Notifier
from penstock.errors import PenstockError
from penstock.net.drive_call import call, warn
from penstock.security.roots import Roots, read_roots

# Calls for one queue, by one process: a second one while the first works is answered at once.
PAUSE_SECONDS = 0.5
# How long what is known of a database's driven queues is taken for true.
FRESH_SECONDS = 5.0
MOST_KNOWN = 10_000
# How often a standing server polls for work that nobody drives.
POLL_SECONDS = 3.0


def driver(settings: Settings) -> Notifier:
    """What notifies the API of queues with work, as workers are notified: few times, and late.

    It knows nothing of the app, which may be dropped before it.
    """

    async def send(queues: Sequence[str]) -> None:
        if settings.public_url is not None:
            roots = read_roots(settings)
            for queue in queues:
                await call(roots, settings.public_url, queue)

    return Notifier(send, pause_seconds=PAUSE_SECONDS)


class Drives:
    """The same in a server, which learns from the database which queues are driven."""

    def __init__(
        self,
        engine: Engine,
        roots: Roots,
        base: str | None,
        own: Collection[str] | None = None,
        *,
        kinds: Callable[[], Sequence[str]],
    ) -> None:
        """`own`: the queues that are worked on at `base`, where that is this server itself.

        `kinds`: those that this server has handlers for.
        """
        self._own = own
        self._kinds = kinds
        self._engine = engine
        self._roots = roots
        self._base = base
        self._notifier = Notifier(self._send, pause_seconds=PAUSE_SECONDS)
        self._known: dict[tuple[str, str], tuple[float, list[str]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submitted(self, kinds: Collection[str]) -> None:
        """Jobs of these kinds may be due now; after commit. Comes back at once."""
        self._drive("kind", kinds)

    def due(self, queues: Collection[str | None]) -> None:
        """The same of these queues."""
        self._drive("queue", queues)

    def _drive(self, what: str, names: Collection[str | None]) -> None:
        for name in names:
            if name is None or self._base is None:
                continue
            until, driven = self._known.get((what, name), (0.0, []))
            if until <= time.monotonic():
                self._in_background(self._learn(what, name))
            self._notify(driven)

    def _notify(self, queues: Sequence[str]) -> None:
        for queue in queues:
            self._notifier.notify(queue)

    @property
    def knows_address(self) -> bool:
        return self._base is not None

    async def call(self, queue: str, *, body: dict[str, object] | None = None) -> bool:
        """Begin a call now, at the address that is configured; without one, nothing is called."""
        if self._base is None:
            warn(queue, "PENSTOCK_PUBLIC_URL is not set, so this server cannot call the API")
            return False
        return await call(self._roots, self._base, queue, body)

    async def poll(self) -> None:
        """For ever: begin calls for driven queues with work that nobody drives."""
        while True:
            with suppress(PenstockError, OSError):
                self._notify(await self._engine.drive.due(self._kinds()))
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._notifier.close()

    async def _learn(self, what: str, name: str) -> None:
        """Which queues are driven that it names; then a call begins at once."""
        until = time.monotonic() + FRESH_SECONDS
        # At once known as not known: a storm of submits asks once.
        self._known[what, name] = (until, self._known.get((what, name), (0.0, []))[1])
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        with suppress(PenstockError, OSError):
            if what == "kind":
                queues = await self._engine.drive.driven([name])
            else:
                queues = [name] if await self._engine.drive.is_driven(name) else []
            self._known[what, name] = (until, queues)
            self._notify(queues)

    async def _send(self, queues: Sequence[str]) -> None:
        for queue in queues:
            if self._own is None or queue in self._own:
                await self.call(queue)

    def _in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
