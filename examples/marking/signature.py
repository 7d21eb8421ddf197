"""The signature of Standard Webhooks, which any language can check in a few lines."""

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping

# Messages outside of this tolerance may be replayed.
SPREAD_SECONDS = 300
_PREFIX = "whsec_"


class Forged(Exception):  # noqa: N818  # named for what it is
    """A call without a valid signature; the message says why."""


def check(secret: str, headers: Mapping[str, str], body: bytes) -> str:
    """The message's id, or Forged. Signed is what was sent, byte by byte, with id and time."""
    given = {name.lower(): value for name, value in headers.items()}
    message, sent = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    if not message or not sent.isdecimal():
        raise Forged("webhook-id and webhook-timestamp are missing")
    if abs(time.time() - int(sent)) > SPREAD_SECONDS:
        raise Forged("webhook-timestamp is not of now")
    content = b".".join((message.encode(), sent.encode(), body))
    right = base64.b64encode(hmac.digest(_key(secret), content, hashlib.sha256))
    # Several signatures, separated by spaces, during a rotation of the secret.
    for one in given.get("webhook-signature", "").split():
        version, _, signature = one.partition(",")
        if version == "v1" and hmac.compare_digest(signature.encode(), right):
            return message
    raise Forged("webhook-signature does not fit")


def _key(secret: str) -> bytes:
    if secret.startswith(_PREFIX):
        return base64.b64decode(secret.removeprefix(_PREFIX))
    return secret.encode()
