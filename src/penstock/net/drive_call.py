"""Calls that drive a queue: POST /v1/queues/{name}/process, sent by Penstock to itself.

They have a signed, short-lived token that is valid only for calls of this queue, so that no process
needs a key to begin or continue a chain.
"""

import json
import logging
import time
from asyncio import timeout
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from penstock.net.endpoint import read_endpoint
from penstock.net.provider_errors import ProviderError
from penstock.net.transport import Transport
from penstock.security import signed
from penstock.security.roots import Roots

PREFIX = "pd_"
# Long enough for a host with a cold start.
TOKEN_SECONDS = 300
# A refusal comes at once. An accepted call answers after its work, and is not waited for.
ANSWER_SECONDS = 1.0
_ERRORS = 400
_PURPOSE = "drive 2"

WARN_SECONDS = 60.0

_log = logging.getLogger("penstock.drive")
_warned: dict[str, float] = {}


def make_token(roots: Roots, queue: str) -> str:
    claims = {"q": queue, "x": int(time.time()) + TOKEN_SECONDS}
    return PREFIX + signed.sign(roots.keys(_PURPOSE)[0], claims)


def is_token(roots: Roots, token: str, queue: str) -> bool:
    """Whether the token allows a call to drive this queue now."""
    claims = signed.verify(roots.keys(_PURPOSE), token.removeprefix(PREFIX))
    return claims is not None and claims["q"] == queue


async def call(roots: Roots, base: str, queue: str, body: Mapping[str, Any] | None = None) -> bool:
    """Begin a call to the API at `base`; return False if it is refused within a second."""
    endpoint = read_endpoint(
        f"{base.rstrip('/')}/v1/queues/{quote(queue, safe='')}/process", from_variable=True
    )
    headers = {"Authorization": f"Bearer {make_token(roots, queue)}"}
    # Not the shared one: a script's last call is made while its loop ends, which closes that.
    transport = Transport()
    try:
        async with (
            timeout(ANSWER_SECONDS),
            transport.post(endpoint, json.dumps(body or {}).encode(), headers) as answer,
        ):
            if answer.status >= _ERRORS:
                warn(queue, f"{endpoint.address} refused the call with status {answer.status}")
                return False
            await answer.finish()
            return True
    except TimeoutError:
        return True  # accepted: it is running jobs
    except ProviderError as error:
        warn(queue, str(error))
        return False
    finally:
        await transport.close()


def warn(queue: str, why: str) -> None:
    """Log a warning, once per WARN_SECONDS: while the API is unavailable, calls fail often."""
    now = time.monotonic()
    if _warned.get(queue, 0.0) <= now:
        _warned[queue] = now + WARN_SECONDS
        _log.warning("queue %s is not driven: %s", queue, why)
