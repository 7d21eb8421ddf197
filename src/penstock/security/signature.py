"""Standard Webhooks: signatures by which functions verify our calls, and we verify theirs."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Self

from penstock.errors import Invalid
from penstock.security.roots import Roots
from penstock.security.secret import Secret

PREFIX = "whsec_"
TOLERANCE_SECONDS = 300
"""How old a signature may be, or how far in the future."""
_FUNCTIONS = "signing key 1"
_LEAST_BYTES = 8
# How many signatures of one message are checked.
_MOST_SIGNATURES = 10


class Signer:
    """Signs with its secrets: `whsec_` and base64, as in the standard, or any other text.

    During a rotation there are several: a message then has a signature by each.
    """

    def __init__(self, *secrets: Secret) -> None:
        self._secrets = secrets
        self._keys = tuple(_key(secret.reveal()) for secret in secrets)

    @classmethod
    def of_keys(cls, keys: Sequence[bytes]) -> Self:
        return cls(*(Secret(written(key)) for key in keys))

    def __repr__(self) -> str:
        return "Signer(***)"

    @property
    def written(self) -> list[str]:
        """The secrets as texts, to be shown to their receiver."""
        return [secret.reveal() for secret in self._secrets]

    def sign(self, message_id: str, timestamp: int, body: bytes) -> str:
        return " ".join(map(_written, self._digests(message_id, str(timestamp), body)))

    def match(self, headers: Mapping[str, str], body: bytes, now: float) -> bytes | None:
        """Verify a message with these headers; return the digest that identifies it, or None.

        The digest is the one by the first secret, whichever signature matches: so a message with
        several signatures has only one digest.
        """
        message_id = headers.get("webhook-id", "")
        timestamp = headers.get("webhook-timestamp", "")
        if not message_id or not timestamp.isdecimal() or len(timestamp) > 12:  # noqa: PLR2004
            return None
        if abs(now - int(timestamp)) > TOLERANCE_SECONDS:
            return None
        digests = self._digests(message_id, timestamp, body)
        known = [_written(digest).encode() for digest in digests]
        for text in headers.get("webhook-signature", "").split(" ")[:_MOST_SIGNATURES]:
            if any(hmac.compare_digest(signature, text.encode()) for signature in known):
                return digests[0]
        return None

    def is_secret(self, text: str) -> bool:
        """Whether the text is one of the secrets itself."""
        content = text.encode()
        return any(
            hmac.compare_digest(secret.reveal().encode(), content) for secret in self._secrets
        )

    def _digests(self, message_id: str, timestamp: str, body: bytes) -> list[bytes]:
        content = b".".join((message_id.encode(), timestamp.encode(), body))
        return [hmac.digest(key, content, hashlib.sha256) for key in self._keys]


def of_functions(roots: Roots) -> Signer:
    """The signer of calls to functions and of their callbacks, for kinds without a secret."""
    return Signer.of_keys(roots.keys(_FUNCTIONS))


def of_webhooks(roots: Roots, account: str | None, *, trusted: bool) -> Signer:
    """The signer of webhooks: to the operator's own receivers, or to one account's."""
    return Signer.of_keys(roots.keys("webhook" if trusted else f"webhook {account or ''}"))


def written(key: bytes) -> str:
    """Format a key for its receiver."""
    return PREFIX + base64.b64encode(key).decode()


def signed(
    signer: Signer | None, message_id: str, timestamp: int, body: bytes
) -> Mapping[str, str]:
    """Return the headers of a message; without a signer, there is no signature."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    if signer is not None:
        headers["webhook-signature"] = signer.sign(message_id, timestamp, body)
    return headers


def _key(text: str) -> bytes:
    try:
        key = (
            base64.b64decode(text.removeprefix(PREFIX), validate=True)
            if text.startswith(PREFIX)
            else text.encode()
        )
    except binascii.Error:
        raise _wrong("begins with whsec_, but the rest is no base64") from None
    if len(key) < _LEAST_BYTES:
        raise _wrong(f"is shorter than {_LEAST_BYTES} bytes, so it can be guessed")
    return key


def _written(digest: bytes) -> str:
    return f"v1,{base64.b64encode(digest).decode()}"


def _wrong(reason: str) -> Invalid:
    return Invalid(f"secret {reason}", code="invalid_option", field="secret")
