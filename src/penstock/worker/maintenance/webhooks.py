"""Sends messages about finished jobs: due ones, a few to each host at once, in the background.

The database says which messages are due and how many go to one host at a time (webhooks.sql). A
receiver that hangs delays only its own messages. Messages that a dead worker was sending are due
again soon.

No redirects are followed, and an address that a caller gave has to be public (public_addresses.py).
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
"""How long a receiver may take: it should store the message, and process it afterwards."""
AT_ONCE = 64
POLL_SECONDS = 0.5
# Longer than a try takes: after that another worker may send the message.
LEASE = timedelta(seconds=SEND_SECONDS + 20)
LEAVE_SECONDS = 2.0
# For a worker that sends due messages and leaves; a later worker sends those that hang.
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
        """The sender for an app's handlers; None if no handler has a key to sign with."""
        outside = next((each.outside for each in handlers.values() if each.outside), None)
        return None if outside is None else cls(engine, outside)

    async def run(self) -> None:
        """Send due messages, for ever."""
        try:
            outside = self._read_outside()
        except Misconfigured as error:
            await self._complain(str(error))
            return
        try:
            while True:
                self._sent.clear()
                if not await until_available(lambda: self._begin_due(outside)):
                    # Wait until a message was sent, since it may have held up others to its host;
                    # or for a while.
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._sent.wait(), POLL_SECONDS)
        finally:
            await self._leave()

    async def send_due(self) -> None:
        """Send the messages that are due now, once, and return; for a bounded run."""
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
        """Let messages under way arrive; the others are due again when their lease is over."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=LEAVE_SECONDS)
        for task in self._sending:
            task.cancel()

    async def _begin_due(self, outside: Outside) -> int:
        """Begin to send due messages, at most AT_ONCE at the same time; how many."""
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
            _log.warning("a webhook failed for good after %d tries", delivery.attempt, extra=fields)
        elif not answer.taken:
            _log.info("a webhook was not accepted", extra=fields)

    async def _complain(self, why: str) -> None:
        """Log the error when a message is due: without a secret nothing can be signed."""
        while not await self._engine.webhooks.any_due():  # noqa: ASYNC110  # a database has no event
            await asyncio.sleep(POLL_SECONDS * 10)
        _log.error("webhooks are due and cannot be sent: %s", why)
        await asyncio.Event().wait()


async def send(delivery: Delivery, outside: Outside) -> Answer:
    """Try once and return the answer. Raises only what ends the task."""
    try:
        endpoint = _endpoint(delivery, outside)
    except Invalid as error:
        return Answer(taken=False, error=error.message, over=True)
    body = body_of(delivery)
    signer = signature.of_webhooks(outside.roots, delivery.account, trusted=delivery.trusted)
    # The server's clock: a receiver would refuse a signature of a worker whose clock is wrong.
    moment = time.time() if delivery.taken_at is None else delivery.taken_at.timestamp()
    headers = signature.signed(signer, str(delivery.id), int(moment), body)
    try:
        async with asyncio.timeout(SEND_SECONDS):
            return await _post(endpoint, body, dict(headers))
    except TimeoutError:
        return Answer(
            taken=False, error=f"{endpoint.address} did not accept it within {SEND_SECONDS:g} s"
        )
    except ProviderError as error:
        return Answer(taken=False, error=str(error))
    except Exception as error:  # noqa: BLE001  # one receiver must not stop the others
        _log.warning("a webhook could not be sent: %s", type(error).__name__)
        return Answer(taken=False, error=f"it could not be sent: {type(error).__name__}")


def body_of(delivery: Delivery) -> bytes:
    """The message's body: the same bytes at each try while the job stays the same."""
    moment = delivery.created_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    text = f'{{"type": "{delivery.event}", "timestamp": "{moment}", "data": {delivery.job}}}'
    return text.encode()


def _endpoint(delivery: Delivery, outside: Outside) -> Endpoint:
    if delivery.trusted:
        return read_endpoint(delivery.url, from_variable=True)
    return read_public(delivery.url, allow_private=outside.allow_private)


async def _post(endpoint: Endpoint, body: bytes, headers: dict[str, str]) -> Answer:
    # Imported here: its library takes a quarter of a second to load.
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
