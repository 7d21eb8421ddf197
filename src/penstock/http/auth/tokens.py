"""Short tokens for browsers: they contain their permissions, signed; nothing is stored."""

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
    """The contents of a token: an account, job or topic, permissions, expiry and issuing key."""

    account: str | None = None
    job: str | None = None
    topic: str | None = None
    allow: frozenset[str] = frozenset({"read"})
    expires: int
    issuer: str = ""
    """The id of the key that made it; if the key is revoked, its tokens are refused.
    '': an operator made it."""
    of: str | None = None
    """The account of the key that made it, if that key has one: the token sees no other account."""
    session: str | None = None
    """The dashboard session that it was made in; after signing out, the token is refused."""
    issued: float = field(default_factory=time.time)
    """When it was made, by its maker's clock. If the account was erased since and created again
    under the same name, the token does not open the new one."""

    @property
    def grant(self) -> Grant | None:
        """What may end the token before it expires; None: only its key."""
        account = self.account or self.of
        if account is None and self.session is None:
            return None
        return Grant(session=self.session, account=account, issued=self.issued)


def expiry(seconds: int) -> int:
    """Return the expiry of a token made now, rounded up to a whole second."""
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
    """Verify a token and return its claims; None: it is not ours, or it has expired."""
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
        # Tokens of the version before have no time of issue: the earliest possible one is taken.
        issued=members["i"] / 1_000 if "i" in members else members["x"] - LONGEST_SECONDS,
    )
