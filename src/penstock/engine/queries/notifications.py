"""Telling who watches that something has changed: a hint, sent after the commits it is about.

A NOTIFY takes a lock at commit that all of them share, so there are few: the first one at once,
then at most one per pause, and none while nothing happens. A lost one costs a watcher a second.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

PAUSE_SECONDS = 0.04
# What is left to send when its owner leaves may take so long.
LAST_SECONDS = 1.0


class Hints:
    """The hints of one event loop."""

    def __init__(self, send: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._untold = False
        self._task: asyncio.Task[None] | None = None

    def tell(self) -> None:
        """Come back at once. Called for every end: a flag while a hint is on its way."""
        self._untold = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_telling())

    async def close(self) -> None:
        """Send what is not sent yet."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=LAST_SECONDS)

    async def _keep_telling(self) -> None:
        try:
            while self._untold:
                # Before it is sent: what commits meanwhile needs a hint of its own.
                self._untold = False
                with suppress(Exception):
                    await self._send()
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._task = None
