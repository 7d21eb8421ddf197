"""Standard Webhooks: how a function knows that a call is ours, and is told once."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

from penstock.errors import Invalid
from penstock.providers.secret import Secret

_PREFIX = "whsec_"
_LEAST_BYTES = 8


class Signer:
    """Signs with one secret: `whsec_` and base64, as the standard has it, or any other text."""

    def __init__(self, secret: Secret) -> None:
        written = secret.reveal()
        try:
            key = (
                base64.b64decode(written.removeprefix(_PREFIX), validate=True)
                if written.startswith(_PREFIX)
                else written.encode()
            )
        except binascii.Error:
            raise _wrong("begins with whsec_, and what follows is no base64") from None
        if len(key) < _LEAST_BYTES:
            raise _wrong(f"is shorter than {_LEAST_BYTES} bytes, and can be guessed")
        self._key = key

    def __repr__(self) -> str:
        return "Signer(***)"

    def sign(self, message_id: str, timestamp: int, body: bytes) -> str:
        content = b".".join((message_id.encode(), str(timestamp).encode(), body))
        digest = hmac.digest(self._key, content, hashlib.sha256)
        return f"v1,{base64.b64encode(digest).decode()}"


def derived(root: Secret) -> Secret:
    """The signing key of an installation: whoever checks signatures need not know its root."""
    digest = hmac.digest(root.reveal().encode(), b"penstock signing key 1", hashlib.sha256)
    return Secret(_PREFIX + base64.b64encode(digest).decode())


def signed(
    signer: Signer | None, message_id: str, timestamp: int, body: bytes
) -> Mapping[str, str]:
    """The headers of a message; without a secret, all but the signature."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    if signer is not None:
        headers["webhook-signature"] = signer.sign(message_id, timestamp, body)
    return headers


def _wrong(said: str) -> Invalid:
    return Invalid(f"secret {said}", code="invalid_option", field="secret")
