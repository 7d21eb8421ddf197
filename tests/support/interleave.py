"""Sessions in a chosen order: start a call, see it wait for another's lock, go on.

No sleeps for a fixed time: a step is over when its call has returned or when Postgres reports that
its session waits for a lock of another one.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

import asyncpg

T = TypeVar("T")

DEADLINE_SECONDS = 20.0
POLL_SECONDS = 0.005


class Step(Generic[T]):
    """A call under way on its own connection; await it for its answer."""

    def __init__(self, conn: asyncpg.Connection, call: Coroutine[Any, Any, T]) -> None:
        self._pid = conn.get_server_pid()
        self._task = asyncio.ensure_future(call)

    async def waits(self, watcher: asyncpg.Connection) -> bool:
        """Whether it begins to wait for another session's lock before it returns."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not self._task.done():
                if await watcher.fetchval("select pg_blocking_pids($1) <> '{}'", self._pid):
                    return True
                await asyncio.sleep(POLL_SECONDS)
        return False

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wait_for(self._task, DEADLINE_SECONDS).__await__()
