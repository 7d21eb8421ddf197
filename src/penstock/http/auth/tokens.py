"""Short tokens for browsers: what they allow is written in them and signed, nothing is stored."""

import math
import time
from dataclasses import dataclass, field

from penstock.engine.accounts.sessions import Grant
from penstock.security import signed
from penstock.security.roots import Roots

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
    session: str | None = None
    """The session of the dashboard that it was made in: signed out, it opens nothing."""
    issued: float = field(default_factory=time.time)
    """When it was made, by its maker's clock: it opens no account that took the place of one erased
    since."""

    @property
    def grant(self) -> Grant | None:
        """What may end it before its time; None: only its key."""
        account = self.account or self.of
        if account is None and self.session is None:
            return None
        return Grant(session=self.session, account=account, issued=self.issued)


def expiry(seconds: int) -> int:
    """When a token expires that is made now for so many seconds: a whole second, and not before."""
    return math.ceil(time.time()) + seconds


def make(roots: Roots, claims: Claims) -> str:
    members = {
        "a": claims.account,
        "j": claims.job,
        "t": claims.topic,
        "w": sorted(claims.allow),
        "x": claims.expires,
        "k": claims.issuer,
        "o": claims.of,
        "s": claims.session,
        "i": int(claims.issued * 1_000),
    }
    present = {key: value for key, value in members.items() if value is not None}
    return PREFIX + signed.sign(roots.keys(_PURPOSE)[0], present)


def read(roots: Roots, token: str) -> Claims | None:
    """What a token allows; None: it is not ours, or its time is over."""
    members = signed.verify(roots.keys(_PURPOSE), token.removeprefix(PREFIX))
    if members is None:
        return None
    return Claims(
        account=members.get("a"),
        job=members.get("j"),
        topic=members.get("t"),
        allow=frozenset(members["w"]),
        expires=members["x"],
        issuer=members["k"],
        of=members.get("o"),
        session=members.get("s"),
        # Of the version before, which did not say: as early as it can have been.
        issued=members["i"] / 1_000 if "i" in members else members["x"] - LONGEST_SECONDS,
    )
