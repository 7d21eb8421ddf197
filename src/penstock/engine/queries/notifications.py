"""NOTIFYs of one event loop, sent after the commits they are about.

A notification only makes things faster: a lost one costs a worker or a watcher a poll interval. A
NOTIFY takes a lock at commit that all of them share, so a storm of commits sends few: the first at
once, or with the commit itself; then at most one per key and pause; and none while nothing happens.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

# Between two notifications for the workers of a queue.
WAKE_PAUSE_SECONDS = 0.005
# Between two notifications for those who watch jobs.
CHANGE_PAUSE_SECONDS = 0.04
# How long the last notification of a server or worker that stops may take.
LAST_SECONDS = 1.0


class Notifier:
    """Sends notifications for keys (queues; one empty key if there is nothing to tell apart)."""

    def __init__(
        self, send: Callable[[Sequence[str]], Awaitable[None]], *, pause_seconds: float
    ) -> None:
        self._send = send
        self._pause_seconds = pause_seconds
        self._unsent: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def notify(self, key: str = "") -> None:
        """Have a notification sent; return at once. Errors of sending are dropped."""
        self._unsent.add(key)
        task = self._tasks.get(key)
        if task is None or task.done():
            self._start(key)

    def may_join_commit(self, key: str) -> bool:
        """Whether the next commit may send the notification itself; then the pause begins."""
        if key in self._tasks:
            return False
        self._start(key)
        return True

    async def close(self, seconds: float | None = None) -> None:
        """Send what is not sent yet, within `seconds`: a script may end right after its submit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while running := [task for task in self._tasks.values() if not task.done()]:
                    await asyncio.wait(running)
                if self._unsent:
                    # The end of `asyncio.run` cancels tasks before it closes anything else.
                    await self._send_now(*self._unsent)

    def _start(self, key: str) -> None:
        self._tasks[key] = asyncio.get_running_loop().create_task(self._keep_sending(key))

    async def _keep_sending(self, key: str) -> None:
        # If the notification went with a commit, there is none to send: the pause comes first.
        if key in self._unsent:
            await self._send_now(key)
        await asyncio.sleep(self._pause_seconds)
        while key in self._unsent:
            await self._send_now(key)
            await asyncio.sleep(self._pause_seconds)
        # Here and not in a callback: a `notify` between the two would find a task that is done.
        del self._tasks[key]

    async def _send_now(self, *keys: str) -> None:
        # Before it is sent: a commit that follows meanwhile needs a notification of its own.
        self._unsent.difference_update(keys)
        try:
            with suppress(Exception):
                await self._send(keys)
        except asyncio.CancelledError:
            self._unsent.update(keys)
            raise
