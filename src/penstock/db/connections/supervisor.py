"""The background loops of a process: named, restarted after a failure, stopped together."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.base.error_location import error_location
from penstock.db.connections.listener import DATABASE_UNAVAILABLE

OUTAGE_SECONDS = 0.5
FAILED_SECONDS = 1.0
# A loop that ran this long has recovered from the last outage, so the next outage is logged again.
RECOVERED_SECONDS = 30.0

Work = Callable[[], Coroutine[Any, Any, object]]


class Supervisor:
    """Starts background loops, restarts each after a failure, and stops them all."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Work, *, every: float | None = None) -> None:
        """Run `work` until `stop`; with `every`, pause for so many seconds before each call."""
        self._tasks.append(asyncio.create_task(self._run(name, work, every), name=name))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, name: str, work: Work, every: float | None) -> None:
        loop = asyncio.get_running_loop()
        outage = False
        while True:
            begun = loop.time()
            try:
                if every is not None:
                    await asyncio.sleep(every)
                    begun = loop.time()
                await work()
                outage = False
            except DATABASE_UNAVAILABLE as error:
                if not outage or loop.time() - begun > RECOVERED_SECONDS:
                    self._log.info("%s waits for the database: %s", name, type(error).__name__)
                outage = True
                await asyncio.sleep(OUTAGE_SECONDS)
            except Exception as error:  # noqa: BLE001  # the failure of one loop must not end the process
                outage = False
                self._log.error("%s failed and is restarted: %s", name, error_location(error))
                await asyncio.sleep(FAILED_SECONDS)
