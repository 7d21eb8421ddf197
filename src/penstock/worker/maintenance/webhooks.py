"""Sending messages about ended jobs: what is due, a few to each host at once, beside the work.

The database says what is due and to how many of one host (webhooks.sql); a receiver that hangs has
its own messages wait and nobody else's. What a worker that dies was sending is due again soon.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Self

from penstock.db.connections.listener import AWAY
from penstock.engine.engine import Engine
from penstock.engine.webhooks import Answer, Delivery
from penstock.errors import Misconfigured
from penstock.models.handlers.handler import Handler
from penstock.security.callback_token import Outside
from penstock.worker.maintenance.webhook_message import SEND_SECONDS, send

AT_ONCE = 64
LOOK_SECONDS = 0.5
# Longer than a try takes: then somebody else may send it.
LEASE = timedelta(seconds=SEND_SECONDS + 20)
AWAY_SECONDS = 0.5
LEAVE_SECONDS = 2.0
# For who sends what is due and leaves; what hangs then is sent by the next one.
ROUND_SECONDS = 5.0

_log = logging.getLogger("penstock.webhooks")


class Webhooks:
    def __init__(self, engine: Engine, outside: Callable[[], Outside]) -> None:
        self._engine = engine
        self._read_outside = outside
        self._sending: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._last_host = ""

    @classmethod
    def of(cls, engine: Engine, handlers: Mapping[str, Handler]) -> Self | None:
        """For an app's handlers; None where nobody says what to sign with."""
        outside = next((one.outside for one in handlers.values() if one.outside), None)
        return None if outside is None else cls(engine, outside)

    async def run(self) -> None:
        """For ever."""
        try:
            outside = self._read_outside()
        except Misconfigured as error:
            await self._complain(str(error))
            return
        try:
            while True:
                self._room.clear()
                try:
                    begun = await self._begin_due(outside)
                except AWAY:
                    begun = 0
                if not begun:
                    await self._rest()
        finally:
            await self._leave()

    async def send_due(self) -> None:
        """Send what is due now, once, and come back; for a worker that does not stay."""
        try:
            outside = self._read_outside()
        except Misconfigured:
            return
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                while await self._begin_due(outside) or self._sending:
                    if self._sending:
                        await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        except (TimeoutError, *AWAY):
            await self._leave()

    async def _leave(self) -> None:
        """Let what is on its way arrive; what does not is due again when its lease is over."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=LEAVE_SECONDS)
        for task in self._sending:
            task.cancel()

    async def _begin_due(self, outside: Outside) -> int:
        """Take what is due, as far as there is room for it; how many that were."""
        room = AT_ONCE - len(self._sending)
        if room <= 0:
            return 0
        due = await self._engine.webhooks.claim(room, lease=LEASE, after=self._last_host)
        for delivery in due:
            self._last_host = delivery.host
            task = asyncio.create_task(self._send(delivery, outside))
            self._sending.add(task)
            task.add_done_callback(self._ended)
        return len(due)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._room.set()

    async def _rest(self) -> None:
        """Until one was sent, which may have held up others to its host; or for a while."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._room.wait()
        except TimeoutError:
            return

    async def _send(self, delivery: Delivery, outside: Outside) -> None:
        answer = await send(delivery, outside)
        status = await self._report(delivery, answer)
        said = {"webhook": delivery.id, "job": delivery.job_id, "status": answer.status}
        if status == "given_up":
            _log.warning("a webhook was given up after %d tries", delivery.attempt, extra=said)
        elif not answer.taken:
            _log.info("a webhook was not taken", extra=said)

    async def _report(self, delivery: Delivery, answer: Answer) -> str | None:
        while True:
            try:
                return await self._engine.webhooks.report(delivery, answer)
            except AWAY:
                await asyncio.sleep(AWAY_SECONDS)

    async def _complain(self, why: str) -> None:
        """Without a secret nothing can be signed: said once there is something to send."""
        while not await self._engine.webhooks.any_due():  # noqa: ASYNC110  # a database has no event
            await asyncio.sleep(LOOK_SECONDS * 10)
        _log.error("webhooks are due and cannot be sent: %s", why)
        await asyncio.Event().wait()
