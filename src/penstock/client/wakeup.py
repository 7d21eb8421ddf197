"""Telling resting workers that there is something to start, off the path of the submit.

A hint: a lost one costs a worker's poll interval, never a job. A NOTIFY takes a lock at commit that
all of them share, so a storm of submits sends few: when it was quiet, with the submit's own commit;
then at most one per queue and pause, after the commits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

PAUSE_SECONDS = 0.005


class Waker:
    """The hints of one event loop."""

    def __init__(
        self,
        send: Callable[[Sequence[str]], Awaitable[None]],
        *,
        pause_seconds: float | None = None,
    ) -> None:
        self._send = send
        self._pause_seconds = PAUSE_SECONDS if pause_seconds is None else pause_seconds
        self._unsent: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def tell(self, queue: str) -> None:
        """Come back at once; what goes wrong later is nobody's trouble."""
        self._unsent.add(queue)
        task = self._tasks.get(queue)
        if task is None or task.done():
            loop = asyncio.get_running_loop()
            self._tasks[queue] = loop.create_task(self._keep_telling(queue))

    def may_ride(self, queue: str) -> bool:
        """Whether a hint may go with the submit's own commit; then the next ones wait a moment."""
        if queue in self._tasks:
            return False
        loop = asyncio.get_running_loop()
        self._tasks[queue] = loop.create_task(self._keep_telling(queue))
        return True

    async def close(self) -> None:
        """Send what is not sent yet: a script may end right after its submit."""
        while busy := [task for task in self._tasks.values() if not task.done()]:
            await asyncio.wait(busy)
        if self._unsent:
            # The end of `asyncio.run` cancels tasks before it closes anything else.
            await self._tell(*self._unsent)

    async def _keep_telling(self, queue: str) -> None:
        # First the pause: a hint has just gone with a submit, or goes now.
        if queue in self._unsent:
            await self._tell(queue)
        await asyncio.sleep(self._pause_seconds)
        while queue in self._unsent:
            await self._tell(queue)
            await asyncio.sleep(self._pause_seconds)
        # Here and not in a callback: a submit between the two would find a task that is over.
        del self._tasks[queue]

    async def _tell(self, *queues: str) -> None:
        # Before it is sent: a submit that commits meanwhile needs a hint of its own.
        self._unsent.difference_update(queues)
        try:
            with suppress(Exception):
                await self._send(queues)
        except asyncio.CancelledError:
            self._unsent.update(queues)
            raise
