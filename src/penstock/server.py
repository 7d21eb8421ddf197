"""The server: an app's database, kinds and handlers behind the HTTP API."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from types import FrameType
from typing import Any

from starlette.applications import Starlette

from penstock.client.app import Penstock
from penstock.client.drive import Drives
from penstock.dashboard import app as dashboard
from penstock.db.connections.driver_errors import fetching
from penstock.db.connections.listener import open_session
from penstock.db.connections.supervisor import Supervisor
from penstock.engine.driven_queues import Drive
from penstock.engine.engine import Engine
from penstock.errors import Invalid
from penstock.http.app import create
from penstock.http.auth.caller import Auth
from penstock.http.backend import Backend, Worked
from penstock.http.live.hub import Hub
from penstock.security.roots import read_roots
from penstock.worker.maintenance.upkeep import UpkeepLoop
from penstock.worker.reporting.on_finish import DueCallbacks
from penstock.worker.worker import Options, Worker

# How long the database may take to answer a request. A commit takes longer if it waits for a
# standby that hangs; its outcome is then unknown.
ANSWER_SECONDS = 10.0
# How long a worker in a server may take to stop: jobs that have not finished by then are released.
DRAIN_SECONDS = 6.0
# How often a standing server polls for finished jobs whose on_finish is due.
CALLBACK_POLL_SECONDS = 1.0

_log = logging.getLogger("penstock.server")


class AppKinds:
    """The kinds declared in this process: they check payloads by type and compute options."""

    def __init__(self, app: Penstock) -> None:
        self._app = app

    def check(
        self, kind: str, payload: Mapping[str, Any], *, index: int = 0
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        declared = self._app.kinds.get(kind)
        if declared is None:
            return None
        checked = declared.sources.complete(declared.parameters.check(payload, index=index))
        return checked, declared.sources.compute(checked, index=index)

    def queue_of(self, kind: str) -> str | None:
        declared = self._app.kinds.get(kind)
        return None if declared is None else declared.queue

    def names(self) -> list[str]:
        return list(self._app.kinds)


class AppRunner:
    """Runs the jobs of one queue for as long as a call lasts; one call per queue at a time."""

    def __init__(self, app: Penstock, engine: Engine) -> None:
        self._app = app
        self._engine = engine
        self._working: set[Worker] = set()

    async def work(self, queue: str, seconds: float, most: int | None) -> Worked:
        await self._engine.drive.state(queue)  # refuses a queue that does not exist
        handlers = {
            kind.name: kind.handler for kind in self._app.kinds.values() if kind.queue == queue
        }
        if not handlers:
            raise Invalid(
                f"this server has no handler for the jobs of queue {queue}",
                code="no_handler",
                field="queue",
                hint="Start it with the app that declares them: penstock serve APP.",
            )
        dsn = await self._app.dsn()
        conn = await open_session(dsn, name="penstock drive")
        try:
            drive = Drive(fetching(conn))
            if not await drive.begin(queue):
                return Worked(0, busy=True)
            options = Options(
                name=f"{self._app.settings.worker_id} process",
                queues=(queue,),
                max_jobs=most,
                run_for=timedelta(seconds=seconds),
                tracebacks=self._app.settings.tracebacks,
            )
            worker = Worker(dsn, handlers, options)
            self._working.add(worker)
            try:
                ran = await worker.run()
            finally:
                self._working.discard(worker)
            # Closing the session is not enough: Postgres releases its lock a moment later, and the
            # next call may come before that.
            await drive.end(queue)
        finally:
            conn.terminate()
        # A job whose handler did not stop counts as neither: it is recovered after its lease.
        return Worked(max(0, ran.processed - ran.released), ran.released)

    def leave(self) -> None:
        """Release the running jobs, since the server stops."""
        for worker in self._working:
            worker.stop_at_once()


async def _deliver(due: asyncio.Event, callbacks: DueCallbacks, pause: float | None) -> None:
    """Call on_finish for finished jobs: at once for those of this process, and by polling.

    Every `pause` seconds it polls for jobs that others finished, by a cancel for example.
    """
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await due.wait()
        due.clear()
        try:
            await callbacks.deliver()
        except BaseException:
            due.set()  # the database is unavailable: try again when it is back
            raise


def api(
    app: Penstock, *, base: str | None = None, worker: bool = False, standing: bool = False
) -> Starlette:
    """Return the HTTP API of an app, as an ASGI app: for `penstock serve`, tests, or to be mounted.

    base      where this server reaches itself, if PENSTOCK_PUBLIC_URL is not set
    worker    also run the app's jobs
    standing  it keeps running: it does upkeep, and polls for driven queues that need a call
    """
    if base is not None:
        app.base = base

    @asynccontextmanager
    async def lifespan(api: Starlette) -> AsyncIterator[None]:
        roots = read_roots(app.settings)
        engine = (await app.engine()).within(ANSWER_SECONDS)
        runner = AppRunner(app, engine)
        public = app.settings.public_url
        own = None if public else {kind.queue for kind in app.kinds.values()}
        drives = Drives(engine, roots, public or base, own, kinds=lambda: list(app.kinds))
        live = Hub(engine, app.dsn)
        due = asyncio.Event()
        callbacks = DueCallbacks(engine, app.handlers(), tracebacks=app.settings.tracebacks)
        pause = CALLBACK_POLL_SECONDS if standing else None
        api.state.backend = Backend(
            engine=engine,
            settings=replace(app.settings),
            roots=roots,
            kinds=AppKinds(app),
            auth=Auth(engine.keys, engine.grants, roots),
            runner=runner,
            drives=drives,
            live=live,
            callback_signers={
                name: handler.signer for name, handler in app.handlers().items() if handler.signer
            },
            on_leave=[runner.leave, live.close],
            may_notify_in_commit=app.may_ride,
            wake=app.wake,
            notify_app=due.set,
        )
        live.start()
        loops = Supervisor(_log)
        loops.start("the delivery of on_finish callbacks", lambda: _deliver(due, callbacks, pause))
        if standing:
            loops.start("the watch of driven queues", drives.poll)
        if standing and not worker:
            loops.start("upkeep", UpkeepLoop(await app.dsn(), engine, app.queues).run)
        working = await _begin_worker(app, api) if worker else None
        try:
            yield
        finally:
            leave(api)
            await loops.stop()
            if working is not None:
                await working
            await live.stop()
            await drives.close()
            await app.close()

    served = create(app.settings, lifespan)
    dashboard.install(served)
    return served


@asynccontextmanager
async def running(api: Starlette) -> AsyncIterator[None]:
    """Run the API inside an app that mounts it: use it as that app's lifespan.

    On a signal to stop, it first ends streams and has calls release their jobs. Otherwise the
    server would wait for open requests, and the stream of a page never ends.
    """
    loop = asyncio.get_running_loop()
    is_main = threading.current_thread() is threading.main_thread()
    # Only the main thread may set signal handlers.
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    handlers = {number: signal.getsignal(number) for number in numbers}
    # A signal without a handler ends the process; a handler of ours would swallow it.
    before = {number: handler for number, handler in handlers.items() if callable(handler)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(leave, api)
        before[signal.Signals(number)](number, frame)

    async with api.router.lifespan_context(api):
        for number in before:
            signal.signal(number, on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def leave(api: Starlette) -> None:
    """End open streams, and have calls release the jobs they run, before the server stops."""
    backend: Backend = api.state.backend
    while backend.on_leave:
        backend.on_leave.pop(0)()


def leave_now(api: Starlette) -> None:
    """At the second signal: also have the worker in this process release its jobs."""
    leave(api)
    worker: Worker | None = getattr(api.state, "worker", None)
    if worker is not None:
        worker.stop_at_once()


async def _begin_worker(app: Penstock, api: Starlette) -> "asyncio.Task[object]":
    options = Options(name=app.settings.worker_id, drain=timedelta(seconds=DRAIN_SECONDS))
    worker = Worker(await app.dsn(), app.handlers(), options)
    api.state.worker = worker
    api.state.backend.on_leave.append(worker.stop)
    return asyncio.create_task(worker.run())
