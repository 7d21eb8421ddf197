"""Calling coroutines from code without an event loop: Django, Flask, Streamlit, scripts.

Nothing is written twice: the engine's own coroutines run, in one background loop. Only a call with
the caller's own blocking connection runs in the caller's thread, where that connection lives: its
coroutine never waits for a loop, so it ends at the first step.
"""

import asyncio
import atexit
import functools
import os
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from penstock.errors import Misconfigured

STOP_SECONDS = 15.0
"""How long the loop may take to close what it holds."""


class LoopThread:
    """An event loop in a thread of its own, started by the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        _all.add(self)

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the loop, from any other thread, and wait for it."""
        if _in_loop():
            # It would stand still until the answer is there, and all that it runs with it.
            call.close()
            message = (
                "app.sync was called inside a running event loop, which it would block: await the"
                " async form there (`await kind.submit(...)`, `await ticket.result()`), or call it"
                " in a thread: `await asyncio.to_thread(app.sync.submit, kind, ...)`"
            )
            raise Misconfigured(message)
        return self.run_anywhere(call)

    def run_anywhere(self, call: Coroutine[Any, Any, Any]) -> Any:
        """The same, also where a loop runs that it blocks."""
        waiting = asyncio.run_coroutine_threadsafe(call, self._started())
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()  # nobody waits any more, as after Ctrl-C
            raise

    def begin(self, call: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the loop, from any other thread, and do not wait for it."""
        asyncio.run_coroutine_threadsafe(call, self._started())

    def close(self) -> None:
        """End the loop in good order, which closes what it holds. The next call starts another."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            _stop(loop)
            thread.join(STOP_SECONDS)

    @property
    def running(self) -> bool:
        return self._loop is not None

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                started: Future[asyncio.AbstractEventLoop] = Future()
                self._thread = threading.Thread(
                    target=_serve, args=(started,), name="penstock-sync", daemon=True
                )
                self._thread.start()
                self._loop = started.result()
                # An app that is gone without a word, as a script that is run again and again in
                # one process leaves it, takes its loop along.
                weakref.finalize(self, _stop, self._loop).atexit = False
                _close_all_at_exit()
            return self._loop

    def _forget(self) -> None:
        _the_parents.append(self._loop)
        self._lock = threading.Lock()  # another thread may have held it while we were forked
        self._loop = self._thread = None


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def step(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    call.close()
    message = "a call on a blocking connection waited for an event loop"
    raise RuntimeError(message)


def _serve(started: "Future[asyncio.AbstractEventLoop]") -> None:
    # Newer Pythons refuse to start the threads that end an executor once the program is ending;
    # by then everything else is closed.
    with suppress(RuntimeError), asyncio.Runner() as runner:
        loop = runner.get_loop()
        started.set_result(loop)
        loop.run_forever()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # it has ended before
        loop.call_soon_threadsafe(loop.stop)


_all: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()
_the_parents: list[object] = []  # kept, or their end would be felt in the parent


@functools.cache
def _close_all_at_exit() -> None:
    # Registered by the first loop that starts, and so called before what was registered earlier:
    # connections are closed while their database still runs.
    atexit.register(_close_all)


def _close_all() -> None:
    for thread in list(_all):
        thread.close()


def _forget_in_child() -> None:
    # No thread but the forking one lives on in a child: a call would wait for ever.
    for thread in _all:
        thread._forget()  # noqa: SLF001


os.register_at_fork(after_in_child=_forget_in_child)
