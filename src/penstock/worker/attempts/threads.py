"""Threads for handlers that are plain functions. They do not keep the process from exiting.

The interpreter joins those of concurrent.futures when it exits: a worker that has released its jobs
and left would stay until the last abandoned function has returned.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

_Call = tuple["Future[Any]", Callable[[], Any]]


class Threads:
    """At most `most` threads, each made when it is first needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made = 0
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, function: Callable[[], Any]) -> "Future[Any]":
        """Run the function in the next free thread. Called from one thread only."""
        future: Future[Any] = Future()
        self._calls.put((future, function))
        if not self._idle.acquire(blocking=False) and self._made < self._most:
            self._made += 1
            name = f"penstock-handler-{self._made}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def close(self) -> None:
        """Let each thread end when it is free."""
        for _ in range(self._made):
            self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            _answer(*call)
            del call  # its arguments may be large, and the next call may come much later
            self._idle.release()


def _answer(future: "Future[Any]", function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except StopIteration as error:
        # No future of an event loop accepts a StopIteration: the caller would wait for ever. A
        # coroutine turns it into a RuntimeError, too.
        future.set_exception(_raised_stop(error))
    except BaseException as error:  # noqa: BLE001  # also SystemExit: it is the handler's, not ours
        future.set_exception(error)
    else:
        future.set_result(result)


def _raised_stop(stop: StopIteration) -> RuntimeError:
    error = RuntimeError("the function raised StopIteration")
    error.__cause__ = stop
    return error.with_traceback(stop.__traceback__)
