"""One message to an app that a job has ended: signed, and sent where it was told to, nowhere else.

No redirects are followed, and an address that a caller gave has to be public
(public_addresses.py).
"""

import asyncio
import logging
import time
from datetime import UTC, datetime

from penstock.engine.webhooks import Answer, Delivery
from penstock.errors import Invalid
from penstock.failures.retry_after import retry_after
from penstock.net.endpoint import Endpoint, read_endpoint
from penstock.net.provider_errors import ProviderError
from penstock.net.public_addresses import read_public
from penstock.security import signature
from penstock.security.callback_token import Outside
from penstock.security.signature import signed

SEND_SECONDS = 10.0
"""For a receiver to take a message: it should note it, and work afterwards."""

_GOOD = range(200, 300)
_MOVED = range(300, 400)
_GONE = 410

_log = logging.getLogger("penstock.webhooks")


async def send(delivery: Delivery, outside: Outside) -> Answer:
    """Try once; what became of it. Raises nothing but what ends the task."""
    try:
        endpoint = _endpoint(delivery, outside)
    except Invalid as error:
        return Answer(taken=False, error=error.message, over=True)
    body = message(delivery)
    signer = signature.of_webhooks(outside.roots, delivery.account, trusted=delivery.trusted)
    # By the server's clock: a receiver refuses what a worker with a wrong one has signed.
    moment = time.time() if delivery.taken_at is None else delivery.taken_at.timestamp()
    headers = signed(signer, str(delivery.id), int(moment), body)
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


def message(delivery: Delivery) -> bytes:
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
        said = f"{endpoint.address} answered with status {status}"
        if status in _MOVED:
            said += "; redirects are not followed"
        after = retry_after(answer.headers, datetime.now(UTC))
        return Answer(taken=False, status=status, error=said, over=status == _GONE, after=after)
