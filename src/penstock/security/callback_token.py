"""Tokens of callbacks: made of job and attempt, so that anyone with the root can check any."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from uuid import UUID

from penstock.security import signed
from penstock.security.roots import Roots

DEFAULT_URL = "http://127.0.0.1:8484"
"""Where the API is reached unless PENSTOCK_PUBLIC_URL says otherwise."""

_PURPOSE = "callback 1"
_FORM = re.compile(r"([1-9][0-9]{0,8})\.([A-Za-z0-9_-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Outside:
    """What a worker needs to know to work with the world outside."""

    roots: Roots
    base: str = DEFAULT_URL
    allow_private: bool = False
    """Addresses that callers give may lie in private networks."""

    def callback_url(self, job_id: UUID) -> str:
        return f"{self.base}/v1/callbacks/{job_id}"


def make(roots: Roots, job_id: UUID, attempt: int) -> str:
    """The token of a start that is handed over."""
    return all_of(roots, job_id, attempt)[0]


def all_of(roots: Roots, job_id: UUID, attempt: int) -> list[str]:
    """One by each root, the present one first: the start may be older than an exchange."""
    content = f"{job_id}:{attempt}".encode()
    digests = [hmac.digest(key, content, hashlib.sha256) for key in roots.keys(_PURPOSE)]
    return [f"{attempt}.{signed.text(digest)}" for digest in digests]


def attempt_of(roots: Roots, job_id: UUID, token: str) -> int | None:
    """Of which attempt of this job it is; None: it is not ours, or another job's."""
    match = _FORM.fullmatch(token)
    if match is None:
        return None
    attempt = int(match[1])
    known = all_of(roots, job_id, attempt)
    return attempt if any(hmac.compare_digest(each, token) for each in known) else None
