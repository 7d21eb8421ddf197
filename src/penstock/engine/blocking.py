"""The engine for code without an event loop: Django, Flask, Streamlit, scripts.

Nothing is written twice. Each call runs the engine's own coroutine, in one background loop per
engine; only a call with the caller's own blocking connection runs in the caller's thread, where
that connection lives: its coroutine never waits for a loop, so it ends at the first step.
"""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from penstock.db.borrowed import blocks
from penstock.engine import Engine
from penstock.errors import Unavailable


class BlockingEngine:
    """`with BlockingEngine(dsn) as engine: engine.jobs.submit(...)`: same names, same answers."""

    def __init__(self, dsn: str, *, max_connections: int = 10) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="penstock-blocking", daemon=True
        )
        self._thread.start()
        try:
            self._engine: Engine = self._run(Engine.open(dsn, max_connections=max_connections))
        except BaseException:
            self._stop_loop()
            raise
        self.jobs = _Part(self._engine.jobs, self._run)
        self.queues = _Part(self._engine.queues, self._run)
        self.accounts = _Part(self._engine.accounts, self._run)
        self.workers = _Part(self._engine.workers, self._run)
        self.upkeep = _Part(self._engine.upkeep, self._run)

    def close(self) -> None:
        """Let go of connections and thread. A second call does nothing."""
        if not self._loop.is_closed():
            self._run(self._engine.close())
            self._stop_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, call: Coroutine[Any, Any, Any], conn: Any = None) -> Any:
        if conn is not None and blocks(conn):
            return _step(call)
        if self._loop.is_closed():
            call.close()
            message = "the engine is closed"
            raise Unavailable(message)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Part:
    """One part of the engine, its methods blocking."""

    def __init__(self, part: Any, run: Callable[..., Any]) -> None:
        self._part = part
        self._run_call = run

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._part, name)

        @functools.wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            return self._run_call(method(*args, **options), options.get("conn"))

        return call


def _step(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    call.close()
    message = "a call on a blocking connection waited for an event loop"
    raise RuntimeError(message)
