"""Ending in good order: a server waits for open requests, and the stream of a page has no end."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fastapi import FastAPI

from penstock import server


@contextmanager
def leaving(api: FastAPI) -> Iterator[None]:
    """When this process is told to stop, streams end and calls give back what they run, first."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are somebody else's there
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(server.leave, api)
        then = before[signal.Signals(number)]
        if callable(then):
            then(number, frame)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, then in before.items():
            signal.signal(number, then)
