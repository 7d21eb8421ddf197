"""The form of every fault: a function that reports its begin, and returns at its end."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fire.world import World


class Began(Protocol):
    def __call__(self, **what: Any) -> None:
        """Record that the fault begins now, with its victim."""


Fault = Callable[[World, random.Random, Began], Awaitable[None]]


class Missed(Exception):  # noqa: N818  # named for what happened
    """The fault has no possible victim now."""


async def lasts(
    world: World, chance: random.Random, least: float, most: float, brief: float | None = None
) -> float:
    """Wait, in a short run at most `brief` seconds; return how long."""
    limit = most if brief is None or not world.brief else brief
    seconds = chance.uniform(min(least, limit), limit)
    await asyncio.sleep(seconds)
    return seconds


def one_of(world: World, chance: random.Random, names: tuple[str, ...]) -> str:
    """Choose a process that no other fault affects now."""
    found = world.free(names)
    if not found:
        raise Missed
    return chance.choice(found)
