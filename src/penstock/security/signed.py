"""Small signed claims that clients keep and send back: readable, but not forgeable."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from typing import Any


def sign(key: bytes, claims: dict[str, Any]) -> str:
    """Sign claims; `x` in them is the Unix time at which they expire."""
    body = json.dumps(claims).encode()
    return f"{text(body)}.{text(hmac.digest(key, body, hashlib.sha256))}"


def verify(keys: Sequence[bytes], given: str) -> dict[str, Any] | None:
    """Return the claims; None: they were not signed with one of these keys, or have expired."""
    try:
        body, mac = (content(part) for part in given.split("."))
    except ValueError:
        return None
    known = [hmac.digest(key, body, hashlib.sha256) for key in keys]
    if not any(hmac.compare_digest(mac, each) for each in known):
        return None
    claims: dict[str, Any] = json.loads(body)
    return claims if claims["x"] > time.time() else None


def text(content: bytes) -> str:
    """Encode bytes as base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def content(text: str) -> bytes:
    """Decode the output of `text`; ValueError: it is not such an output."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
