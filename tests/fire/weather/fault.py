"""What every fault is: a function that tells when it begins, and returns when it is over."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fire.world import World


class Tell(Protocol):
    def __call__(self, **what: Any) -> None:
        """The fault begins at this moment, and this is whom it hits."""


Fault = Callable[[World, random.Random, Tell], Awaitable[None]]


class Missed(Exception):  # noqa: N818  # named for what happened
    """There is nothing for it to hit now."""


async def lasts(
    world: World, chance: random.Random, least: float, most: float, brief: float | None = None
) -> float:
    """Wait for so long, `brief` seconds at most in a short run; how long it was."""
    limit = most if brief is None or not world.brief else brief
    seconds = chance.uniform(min(least, limit), limit)
    await asyncio.sleep(seconds)
    return seconds


def one_of(world: World, chance: random.Random, names: tuple[str, ...]) -> str:
    """One that no other fault is about."""
    found = world.free(names)
    if not found:
        raise Missed
    return chance.choice(found)
