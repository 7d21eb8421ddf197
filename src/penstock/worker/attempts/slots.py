"""How much this worker may run at once: a claim asks for free slots only."""

import asyncio
from collections.abc import Iterable, Mapping

from penstock.models.handlers.handler import Mode


class Slots:
    def __init__(self, free: Mapping[Mode, int]) -> None:
        self._total = dict(free)
        self._free = dict(free)
        self._freed = asyncio.Event()

    def take(self, modes: Iterable[Mode], most: int) -> int:
        """Take as many slots as are free in every one of these modes, up to `most`; how many."""
        wanted = list(modes)
        n = max(0, min([most, *(self._free[mode] for mode in wanted)]))
        for mode in wanted:
            self._free[mode] -= n
        return n

    def total(self, mode: Mode) -> int:
        """How many slots there are, free or not."""
        return self._total[mode]

    def least_free(self, modes: Iterable[Mode]) -> int:
        """How many slots are free in every one of these modes."""
        return min(self._free[mode] for mode in modes)

    def release(self, mode: Mode, n: int = 1) -> None:
        if n:
            self._free[mode] += n
            self._freed.set()

    def overdraw(self, mode: Mode) -> None:
        """Take one slot, free or not."""
        self._free[mode] -= 1

    async def freed(self) -> None:
        """Wait until a slot is released."""
        self._freed.clear()
        await self._freed.wait()
