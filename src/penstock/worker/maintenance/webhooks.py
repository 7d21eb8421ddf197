"""Sending messages about ended jobs: what is due, a few to each host at once, beside the work.

The database says what is due and to how many of one host (webhooks.sql); a receiver that hangs has
its own messages wait and nobody else's. What a worker that dies was sending is due again soon.

No redirects are followed, and an address that a caller gave has to be public
(public_addresses.py).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Self

from penstock.db.connections.listener import DATABASE_UNAVAILABLE
from penstock.engine.engine import Engine
from penstock.engine.webhooks import Answer, Delivery
from penstock.errors import Invalid, Misconfigured
from penstock.failures.retry_after import retry_after
from penstock.models.handlers.handler import Handler
from penstock.net.endpoint import Endpoint, read_endpoint
from penstock.net.provider_errors import ProviderError
from penstock.net.public_addresses import read_public
from penstock.security import signature
from penstock.security.callback_token import Outside
from penstock.worker.attempts.attempt import until_available

SEND_SECONDS = 10.0
"""For a receiver to take a message: it should note it, and work afterwards."""
AT_ONCE = 64
POLL_SECONDS = 0.5
# Longer than a try takes: then somebody else may send it.
LEASE = timedelta(seconds=SEND_SECONDS + 20)
LEAVE_SECONDS = 2.0
# For who sends what is due and leaves; what hangs then is sent by the next one.
ROUND_SECONDS = 5.0

_GOOD = range(200, 300)
_MOVED = range(300, 400)
_GONE = 410

_log = logging.getLogger("penstock.webhooks")


class Webhooks:
    def __init__(self, engine: Engine, outside: Callable[[], Outside]) -> None:
        self._engine = engine
        self._read_outside = outside
        self._sending: set[asyncio.Task[None]] = set()
        self._sent = asyncio.Event()
        self._last_host = ""

    @classmethod
    def of(cls, engine: Engine, handlers: Mapping[str, Handler]) -> Self | None:
        """For an app's handlers; None where nobody says what to sign with."""
        outside = next((each.outside for each in handlers.values() if each.outside), None)
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
                self._sent.clear()
                if not await until_available(lambda: self._begin_due(outside)):
                    # Until one was sent, which may have held up others to its host; or for a while.
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._sent.wait(), POLL_SECONDS)
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
        except (TimeoutError, *DATABASE_UNAVAILABLE):
            await self._leave()

    async def _leave(self) -> None:
        """Let what is on its way arrive; what does not is due again when its lease is over."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=LEAVE_SECONDS)
        for task in self._sending:
            task.cancel()

    async def _begin_due(self, outside: Outside) -> int:
        """Begin to send what is due, AT_ONCE at the same time at most; how many that were."""
        more = AT_ONCE - len(self._sending)
        if more <= 0:
            return 0
        due = await self._engine.webhooks.claim(more, lease=LEASE, after=self._last_host)
        for delivery in due:
            self._last_host = delivery.host
            task = asyncio.create_task(self._send(delivery, outside))
            self._sending.add(task)
            task.add_done_callback(self._end)
        return len(due)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._sent.set()

    async def _send(self, delivery: Delivery, outside: Outside) -> None:
        answer = await send(delivery, outside)
        status = await until_available(lambda: self._engine.webhooks.report(delivery, answer))
        fields = {"webhook": delivery.id, "job": delivery.job_id, "status": answer.status}
        if status == "given_up":
            _log.warning("a webhook was given up after %d tries", delivery.attempt, extra=fields)
        elif not answer.taken:
            _log.info("a webhook was not taken", extra=fields)

    async def _complain(self, why: str) -> None:
        """Without a secret nothing can be signed: said once there is something to send."""
        while not await self._engine.webhooks.any_due():  # noqa: ASYNC110  # a database has no event
            await asyncio.sleep(POLL_SECONDS * 10)
        _log.error("webhooks are due and cannot be sent: %s", why)
        await asyncio.Event().wait()


async def send(delivery: Delivery, outside: Outside) -> Answer:
    """Try once; what became of it. Raises nothing but what ends the task."""
    try:
        endpoint = _endpoint(delivery, outside)
    except Invalid as error:
        return Answer(taken=False, error=error.message, over=True)
    body = body_of(delivery)
    signer = signature.of_webhooks(outside.roots, delivery.account, trusted=delivery.trusted)
    # By the server's clock: a receiver refuses what a worker with a wrong one has signed.
    moment = time.time() if delivery.taken_at is None else delivery.taken_at.timestamp()
    headers = signature.signed(signer, str(delivery.id), int(moment), body)
    try:
        async with asyncio.timeout(SEND_SECONDS):
            return await _post(endpoint, body, dict(headers))
    except TimeoutError:
        return Answer(
            taken=False, error=f"{endpoint.address} did not take it in {SEND_SECONDS:g} s"
        )
    except ProviderError as error:
        return Answer(taken=False, error=str(error))
    except Exception as error:  # noqa: BLE001  # one odd receiver must not stop the others
        _log.warning("a webhook could not be sent: %s", type(error).__name__)
        return Answer(taken=False, error=f"it could not be sent: {type(error).__name__}")


def body_of(delivery: Delivery) -> bytes:
    """The same bytes at each try, as far as the job is the same."""
    moment = delivery.created_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    text = f'{{"type": "{delivery.event}", "timestamp": "{moment}", "data": {delivery.job}}}'
    return text.encode()


def _endpoint(delivery: Delivery, outside: Outside) -> Endpoint:
    if delivery.trusted:
        return read_endpoint(delivery.url, from_variable=True)
    return read_public(delivery.url, allow_private=outside.allow_private)


async def _post(endpoint: Endpoint, body: bytes, headers: dict[str, str]) -> Answer:
    # Here: its library takes a quarter of a second to load.
    from penstock.net.transport import Transport

    transport = await Transport.here()
    async with transport.post(endpoint, body, headers) as answer:
        status = answer.status
        if status in _GOOD:
            await answer.finish()
            return Answer(taken=True, status=status)
        message = f"{endpoint.address} answered with status {status}"
        if status in _MOVED:
            message += "; redirects are not followed"
        after = retry_after(answer.headers, datetime.now(UTC))
        return Answer(taken=False, status=status, error=message, over=status == _GONE, after=after)
