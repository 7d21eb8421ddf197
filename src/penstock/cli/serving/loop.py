"""The event loop and the signals of a command that runs until it is stopped."""

import asyncio
import importlib.util
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

BY_SIGNAL = 128
"""A shell adds this to the number of the signal that killed a program."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_T = TypeVar("_T")


def run_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in a new event loop: uvloop's, if that is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


@contextmanager
def stop_signals(
    on_signal: Callable[[int], object], *, life: int | None = None
) -> Iterator[list[int]]:
    """Call `on_signal` at each SIGTERM or SIGINT, with the count so far; yield the list of them.

    The end of the pipe `life` counts as a SIGTERM: the process that started this one has exited.
    """
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def receive(number: int) -> None:
        received.append(number)
        on_signal(len(received))

    def read_life(pipe: int) -> None:
        if not os.read(pipe, 1):
            loop.remove_reader(pipe)
            receive(signal.SIGTERM)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, receive, number)
    if life is not None:
        loop.add_reader(life, read_life, life)
    try:
        yield received
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
        if life is not None:
            loop.remove_reader(life)
