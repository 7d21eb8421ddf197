"""Checks whether unavailable providers can be reached again, by connecting to them once a second.

No request is sent, so nothing is charged and no model works. When a provider is back, a job tries
it at once, instead of when the next probe is due.
"""

import asyncio
import json
import logging
from collections.abc import Sequence

from penstock.engine.engine import Engine

# Each provider is checked once a second by one of the workers (circuit.sql). This is how often each
# worker asks which checks are due.
ASK_SECONDS = 0.5
CONNECT_SECONDS = 2.0
_LONGEST_MESSAGE = 500

_log = logging.getLogger("penstock.worker")


class ProviderWatch:
    def __init__(self, engine: Engine, queues: Sequence[str]) -> None:
        self._circuits = engine.circuits
        self._queues = list(queues)
        self._unavailable = self._queues

    def watch_all(self) -> None:
        """Check all queues again: which circuits opened before a new connection is not known."""
        self._unavailable = self._queues

    def on_notify(self, payload: str) -> None:
        """Log that a circuit has opened or closed, where operators read.

        Any role that may connect can send this. So it causes only a log line and a query; the
        database says which circuits are open.
        """
        change = json.loads(payload)
        queue, state, message = (str(change[name]) for name in ("queue", "state", "message"))
        message = " ".join(message.split())[:_LONGEST_MESSAGE]
        if queue not in self._queues:
            return
        if state == "open":
            self.watch_all()
            _log.warning("%s", message, extra={"queue": queue, "class": str(change["class"])})
        elif state == "closed":
            _log.warning("%s", message, extra={"queue": queue})

    async def poll(self) -> None:
        if not self._unavailable:
            return
        due = await self._circuits.due_checks(self._unavailable)
        self._unavailable = [queue for queue, _ in due]
        await asyncio.gather(*(self._check(queue, address) for queue, address in due if address))

    async def _check(self, queue: str, address: str) -> None:
        await self._circuits.report_check(queue, reachable=await reachable(address))


async def reachable(address: str) -> bool:
    """Whether host:port accepts a connection."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, ValueError, TimeoutError):
        return False
    writer.close()
    return True
