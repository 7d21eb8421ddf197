"""The lookout: whether providers that are away can be reached again, by a bare connect a second.

No request is sent, so nobody is charged and no model works. Who comes back is tried by a job at
once, instead of when the next probe is due.
"""

import asyncio
import json
import logging
from collections.abc import Sequence

from penstock.engine.engine import Engine

# A look at each provider comes once a second, whoever makes it (circuit.sql); so often we ask.
ASK_SECONDS = 0.5
CONNECT_SECONDS = 2.0
_LONGEST_MESSAGE = 500

_log = logging.getLogger("penstock.worker")


class Lookout:
    def __init__(self, engine: Engine, queues: Sequence[str]) -> None:
        self._circuits = engine.circuits
        self._queues = list(queues)
        self._away: list[str] = []
        self.look_again()

    def look_again(self) -> None:
        """Whoever has just come, or come back, has not heard what opened before."""
        self._away = self._queues

    def hear(self, word: str) -> None:
        """A circuit has opened or closed: logged here, where operators look.

        Any role that may connect can send this. So it is no more than a line in the log and a
        reason to look; the database says which circuits are open.
        """
        told = json.loads(word)
        queue, state, message = (str(told[name]) for name in ("queue", "state", "message"))
        message = " ".join(message.split())[:_LONGEST_MESSAGE]
        if queue not in self._queues:
            return
        if state == "open":
            self.look_again()
            _log.warning("%s", message, extra={"queue": queue, "class": str(told["class"])})
        elif state == "closed":
            _log.warning("%s", message, extra={"queue": queue})

    async def look(self) -> None:
        if not self._away:
            return
        looks = await self._circuits.due_looks(self._away)
        self._away = [queue for queue, _ in looks]
        await asyncio.gather(*(self._look(queue, address) for queue, address in looks if address))

    async def _look(self, queue: str, address: str) -> None:
        await self._circuits.report_look(queue, reachable=await reachable(address))


async def reachable(address: str) -> bool:
    """Whether a connection to host:port is taken."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, ValueError, TimeoutError):
        return False
    writer.close()
    return True
