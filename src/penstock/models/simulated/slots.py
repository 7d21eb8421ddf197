"""How many answers a model gives at once, and the line before it."""

import asyncio
from types import TracebackType


class LineFull(Exception):  # noqa: N818
    """Nobody more may wait: `max_queue` do already."""


class Slots:
    """First come, first served.

    Without `max_queue` the line has no end: as in Ollama, whose own bound does not count requests
    for a model that is loaded.
    """

    def __init__(self, size: int, max_queue: int | None) -> None:
        self.size = size
        self.max_queue = max_queue
        self.most_in_use = 0
        self.waiting = 0
        self.in_use = 0
        self._free = asyncio.Semaphore(size)

    async def __aenter__(self) -> None:
        if self._free.locked():
            if self.max_queue is not None and self.waiting >= self.max_queue:
                raise LineFull
            self.waiting += 1
            try:
                await self._free.acquire()
            finally:
                self.waiting -= 1
        else:
            await self._free.acquire()
        self.in_use += 1
        self.most_in_use = max(self.most_in_use, self.in_use)

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        self.in_use -= 1
        self._free.release()
