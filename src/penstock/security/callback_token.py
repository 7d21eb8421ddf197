"""Callback tokens, derived from job and attempt: any process with the root can verify them."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from uuid import UUID

from penstock.security import signed
from penstock.security.roots import Roots

DEFAULT_URL = "http://127.0.0.1:8484"
"""The address of the API if PENSTOCK_PUBLIC_URL is not set."""

_PURPOSE = "callback 1"
_FORM = re.compile(r"([1-9][0-9]{0,8})\.([A-Za-z0-9_-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Outside:
    """The settings that a worker needs for calls of outside functions and webhooks."""

    roots: Roots
    base: str = DEFAULT_URL
    allow_private: bool = False
    """Addresses that callers give may be in private networks."""

    def callback_url(self, job_id: UUID) -> str:
        return f"{self.base}/v1/callbacks/{job_id}"


def make(roots: Roots, job_id: UUID, attempt: int) -> str:
    """Make the token of a dispatched attempt."""
    return all_of(roots, job_id, attempt)[0]


def all_of(roots: Roots, job_id: UUID, attempt: int) -> list[str]:
    """Make a token with each root, the current first: the attempt may be older than a rotation."""
    content = f"{job_id}:{attempt}".encode()
    digests = [hmac.digest(key, content, hashlib.sha256) for key in roots.keys(_PURPOSE)]
    return [f"{attempt}.{signed.text(digest)}" for digest in digests]


def attempt_of(roots: Roots, job_id: UUID, token: str) -> int | None:
    """Return the attempt of this job that a token is for; None: it is not a token of this job."""
    match = _FORM.fullmatch(token)
    if match is None:
        return None
    attempt = int(match[1])
    known = all_of(roots, job_id, attempt)
    return attempt if any(hmac.compare_digest(each, token) for each in known) else None
