"""Waiting for an event: a condition with a deadline, never a fixed time."""

import asyncio
from collections.abc import Awaitable, Callable

POLL_SECONDS = 0.005


async def eventually(
    condition: Callable[[], Awaitable[object]],
    what: str,
    *,
    seconds: float = 10,
    poll: float = POLL_SECONDS,
) -> None:
    """Return when `condition` is true; fail with `what` at the deadline.

    `poll`: seconds between two checks; longer if a check costs the tested programs much.
    """
    try:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110  # a database has no event to wait for
                await asyncio.sleep(poll)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None
