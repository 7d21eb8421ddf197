"""Short-lived tokens that an app makes for its own pages, without a call over HTTP."""

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

from penstock.client.config.declared import Duration
from penstock.client.tickets import read_id
from penstock.engine.options.forms import Seconds, Text, wrong
from penstock.errors import Invalid
from penstock.http.auth import tokens
from penstock.security.roots import Roots

Right = Literal["read", "cancel"]


def make_token(  # noqa: PLR0913  # all named
    roots: Roots,
    *,
    job: UUID | str | None,
    topic: str | None,
    account: str | None,
    ttl: Duration,
    allow: Sequence[Right],
) -> str:
    named = {"job": job, "topic": topic, "account": account}
    if sum(value is not None for value in named.values()) != 1:
        raise Invalid(
            "a token is for one of job, topic and account: name exactly one",
            code="invalid_request",
            field="job",
        )
    seconds = int(Seconds().read(ttl, "ttl") or 0)
    if not 1 <= seconds <= tokens.LONGEST_SECONDS:
        raise wrong("ttl", ttl, "it may be 1s to 24h")
    if not allow or set(allow) - {"read", "cancel"}:
        raise wrong("allow", allow, 'it may be "read" and "cancel"')
    claims = tokens.Claims(
        job=None if job is None else str(read_id(job, "job")),
        topic=Text().read(topic, "topic"),
        account=Text().read(account, "account"),
        allow=frozenset(allow),
        expires=tokens.expiry(seconds),
    )
    return tokens.make(roots, claims)
