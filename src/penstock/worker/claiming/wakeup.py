"""Waiting for news, with a limit."""

import asyncio


class Wake:
    """One waits, with a limit. asyncio's own way takes a task and three turns of the loop."""

    def __init__(self) -> None:
        self._told = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._told = True
        self._end()

    def clear(self) -> None:
        self._told = False

    async def wait(self, seconds: float) -> None:
        if self._told:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        limit = loop.call_later(seconds, self._end)
        try:
            await self._waiter
        finally:
            limit.cancel()
            self._waiter = None

    def _end(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
