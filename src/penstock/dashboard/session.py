"""Sessions of the dashboard: signed cookies, and a table of the sessions that were signed out.

Operators sign in with PENSTOCK_SECRET, an admin key, or a link that works once. A session ends
when its operator signs out or in again, when its key is revoked, when the secret that signed it
changes, or after twelve hours.
"""

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.accounts.sessions import Grant
from penstock.http.auth.caller import Auth, Principal, know_caller
from penstock.security import signed
from penstock.security.roots import Roots

SESSION_SECONDS = 12 * 3_600
# A link is printed when a server starts, and used within minutes.
LINK_SECONDS = 3_600
_SESSION, _LINK, _NOTICE = "dashboard session 1", "dashboard link 1", "dashboard notice 1"
_FORM = "dashboard form 1"
_NONCE_BYTES = 16
_ID_LENGTH = 32
_MADE_HERE = re.compile(r"[\w-]{22}", re.ASCII)
_MOST_USED = 10_000
# A link works only in the process that printed it: another one cannot know that it was used.
_PROCESS = secrets.token_urlsafe(_NONCE_BYTES)


@dataclass(frozen=True, slots=True)
class Session:
    key: str | None
    """The id of the admin key; None for the operator's secret or the printed link."""
    nonce: str
    expires: int

    @property
    def id(self) -> str:
        """A name of the session that is no secret: forms cannot be signed with it."""
        return hashlib.sha256(self.nonce.encode()).hexdigest()[:_ID_LENGTH]


class SignInTokens:
    """Signs and verifies session cookies, form tokens, notices and one-time links."""

    def __init__(self, roots: Roots) -> None:
        self._sessions = roots.keys(_SESSION)
        self._links = roots.keys(_LINK)
        self._forms = roots.keys(_FORM)
        self._notices = roots.keys(_NOTICE)
        # Two installations on one host differ by port, but cookies ignore ports.
        installation = hashlib.sha256(self._sessions[-1]).hexdigest()[:8]
        self.cookie = f"penstock_session_{installation}"
        self._used: dict[str, int] = {}

    def open(self, key: str | None) -> tuple[Session, str]:
        """Return a new session and its cookie."""
        session = Session(key, _nonce(), int(time.time()) + SESSION_SECONDS)
        claims = {"k": session.key, "n": session.nonce, "x": session.expires}
        return session, signed.sign(self._sessions[0], claims)

    def read(self, cookie: str) -> Session | None:
        claims = signed.verify(self._sessions, cookie)
        return None if claims is None else Session(claims["k"], claims["n"], claims["x"])

    def form_tokens(self, nonce: str) -> list[str]:
        """Return the valid tokens of a session's forms, the newest first.

        A site that cannot read the dashboard's pages cannot know them.
        """
        macs = (hmac.digest(key, nonce.encode(), hashlib.sha256) for key in self._forms)
        return [signed.text(mac) for mac in macs]

    def fits(self, nonce: str, given: str) -> bool:
        tokens = self.form_tokens(nonce)
        return any(hmac.compare_digest(token.encode(), given.encode()) for token in tokens)

    def make_notice(self, text: str, seconds: int, *, bad: bool) -> str:
        """Sign a notice, because another site on the same domain can set cookies for ours."""
        claims = {"text": text, "bad": bad, "x": int(time.time()) + seconds}
        return signed.sign(self._notices[0], claims)

    def read_notice(self, cookie: str) -> dict[str, Any] | None:
        return signed.verify(self._notices, cookie)

    def make_link(self) -> str:
        """Return the code of a link that signs in once."""
        until = int(time.time()) + LINK_SECONDS
        return signed.sign(self._links[0], {"n": _nonce(), "p": _PROCESS, "x": until})

    def use_link(self, code: str) -> bool:
        """Mark a code as used; return whether it was valid and unused."""
        claims = signed.verify(self._links, code)
        if claims is None or claims["p"] != _PROCESS or claims["n"] in self._used:
            return False
        now = time.time()
        if len(self._used) >= _MOST_USED:
            self._used = {nonce: until for nonce, until in self._used.items() if until > now}
        self._used[claims["n"]] = claims["x"]
        return True


def visit_token(cookie: str) -> str:
    """Return the token of the sign-in form, which is also in the visitor's cookie.

    It is random and not derived from the secret, because anybody can get any number of them.
    """
    return cookie if _MADE_HERE.fullmatch(cookie) else _nonce()


def fits_visit(cookie: str, given: str) -> bool:
    """Whether a page of the dashboard sent the form: other sites cannot send our cookie with it.

    Another site on the same domain can set the cookie; Sec-Fetch-Site gives its forms away.
    """
    return bool(_MADE_HERE.fullmatch(cookie)) and hmac.compare_digest(
        cookie.encode(), given.encode()
    )


def sign_in_tokens(request: Request) -> SignInTokens:
    state = request.app.state
    if not hasattr(state, "sign_in_tokens"):
        state.sign_in_tokens = SignInTokens(state.backend.roots)
    kept: SignInTokens = state.sign_in_tokens
    return kept


async def signed_in(request: Request) -> Session | None:
    """Return the session of a request if its cookie is valid and its key is not revoked."""
    session = _session_of(request)
    if session is None:
        return None
    auth: Auth = request.app.state.backend.auth
    if session.key is not None and not await auth.is_operators(session.key):
        return None
    if await auth.is_over(Grant(session=session.id)):
        return None
    know_caller(request.scope, Principal(who="admin", holder="session", key=session.key))
    return session


async def sign_out(request: Request) -> None:
    """End the session of a request, if it has one; copies of its cookie become invalid, too."""
    session = _session_of(request)
    if session is not None:
        grants = request.app.state.backend.engine.grants
        await grants.end_session(session.id, session.expires)


def _session_of(request: Request) -> Session | None:
    """Read the session from the cookie, if the signature is valid."""
    return sign_in_tokens(request).read(request.cookies.get(sign_in_tokens(request).cookie, ""))


def remember(request: Request, response: Response, name: str, value: str, seconds: int) -> None:
    """Set a cookie that is sent to the dashboard only and that scripts cannot read."""
    public = request.app.state.backend.settings.public_url or ""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https" or public.startswith("https:"),
    )


def _nonce() -> str:
    return secrets.token_urlsafe(_NONCE_BYTES)
