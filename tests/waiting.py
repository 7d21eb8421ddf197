"""Waiting for what is about to happen: a condition with a deadline, never a duration."""

import asyncio
from collections.abc import Awaitable, Callable

POLL_SECONDS = 0.005


async def eventually(
    condition: Callable[[], Awaitable[object]], what: str, *, seconds: float = 10
) -> None:
    """Return when `condition` answers something true; fail with `what` at the deadline."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110  # a database has no event to wait for
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None
