"""Short tokens for browsers: what they allow is written in them and signed, nothing is stored."""

import base64
import binascii
import hashlib
import hmac
import json
import time
from dataclasses import dataclass
from typing import Any

from penstock.providers.roots import Roots

PREFIX = "pt_"
LONGEST_SECONDS = 86_400
_PURPOSE = "browser token 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """One of account, job and topic; what may be done with it; until when; by whose key."""

    account: str | None = None
    job: str | None = None
    topic: str | None = None
    allow: frozenset[str] = frozenset({"read"})
    expires: int
    issuer: str = ""
    """The id of the key that made it: revoked, its tokens open nothing. '': an operator."""
    of: str | None = None
    """The account of the key that made it, where it is an account's: the token sees no other."""


def make(roots: Roots, claims: Claims) -> str:
    said = {
        "a": claims.account,
        "j": claims.job,
        "t": claims.topic,
        "w": sorted(claims.allow),
        "x": claims.expires,
        "k": claims.issuer,
        "o": claims.of,
    }
    body = json.dumps({key: value for key, value in said.items() if value is not None}).encode()
    mac = hmac.digest(roots.keys(_PURPOSE)[0], body, hashlib.sha256)
    return f"{PREFIX}{_text(body)}.{_text(mac)}"


def read(roots: Roots, token: str) -> Claims | None:
    """What a token allows; None: it is not ours, or its time is over."""
    try:
        body, mac = (_bytes(part) for part in token.removeprefix(PREFIX).split("."))
    except (ValueError, binascii.Error):
        return None
    known = [hmac.digest(key, body, hashlib.sha256) for key in roots.keys(_PURPOSE)]
    if not any(hmac.compare_digest(mac, one) for one in known):
        return None
    said: dict[str, Any] = json.loads(body)
    if said["x"] <= time.time():
        return None
    return Claims(
        account=said.get("a"),
        job=said.get("j"),
        topic=said.get("t"),
        allow=frozenset(said["w"]),
        expires=said["x"],
        issuer=said["k"],
        of=said.get("o"),
    )


def _text(found: bytes) -> str:
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
