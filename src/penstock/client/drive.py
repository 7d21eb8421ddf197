"""Start the calls of driven queues, which have no standing workers (`drive="http"`).

A submit starts the first call after its commit and does not wait for it. A lost call delays jobs
but loses none: the next submit, any other call and every standing server start a new one.
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

# Between two calls for one queue by one process: a second call is answered at once anyway while the
# first one works.
PAUSE_SECONDS = 0.5
# How long the list of driven queues is cached.
FRESH_SECONDS = 5.0
MOST_KNOWN = 10_000
# How often a standing server polls for driven queues that have work and no call.
POLL_SECONDS = 3.0


def driver(settings: Settings) -> Notifier:
    """Return the notifier that calls the API for queues with work; it coalesces its calls.

    It holds no reference to the app, which may be dropped before it.
    """

    async def send(queues: Sequence[str]) -> None:
        if settings.public_url is not None:
            roots = read_roots(settings)
            for queue in queues:
                await call(roots, settings.public_url, queue)

    return Notifier(send, pause_seconds=PAUSE_SECONDS)


class Drives:
    """Starts the calls in a server, which reads from the database which queues are driven."""

    def __init__(
        self,
        engine: Engine,
        roots: Roots,
        base: str | None,
        own: Collection[str] | None = None,
        *,
        kinds: Callable[[], Sequence[str]],
    ) -> None:
        """Call `base` for driven queues.

        `own`: the queues with a handler in this server, if `base` is this server itself.
        `kinds`: the kinds for which this server has handlers.
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
        """Start calls for jobs of these kinds; call it after the commit. Returns at once."""
        self._drive("kind", kinds)

    def due(self, queues: Collection[str | None]) -> None:
        """Start calls for these queues. Returns at once."""
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
        """Start a call now, at the configured address; without an address, warn and return."""
        if self._base is None:
            warn(queue, "PENSTOCK_PUBLIC_URL is not set, so this server cannot call the API")
            return False
        return await call(self._roots, self._base, queue, body)

    async def poll(self) -> None:
        """Start calls for driven queues that have work and no call, for ever."""
        while True:
            with suppress(PenstockError, OSError):
                self._notify(await self._engine.drive.due(self._kinds()))
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._notifier.close()

    async def _learn(self, what: str, name: str) -> None:
        """Read which queues of this kind or name are driven, and start calls for them at once."""
        until = time.monotonic() + FRESH_SECONDS
        # Cached before the answer, so that many submits at once send one query.
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
