"""Who is signed in to the dashboard: a signed cookie says it, the database who signed out since.

Signed in is an operator: whoever had PENSTOCK_SECRET, an admin key, or the link that was printed
once. A session ends by signing out or in again, with its key, with the secret that signed it, or
after twelve hours.
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
# A link is printed when a server starts, and used in the next minutes.
LINK_SECONDS = 3_600
_SESSION, _LINK, _NOTICE = "dashboard session 1", "dashboard link 1", "dashboard notice 1"
_FORM = "dashboard form 1"
_NONCE_BYTES = 16
_ID_LENGTH = 32
_MADE_HERE = re.compile(r"[\w-]{22}", re.ASCII)
_MOST_USED = 10_000
# A link counts where it was printed: another process would not know that it was used.
_PROCESS = secrets.token_urlsafe(_NONCE_BYTES)


@dataclass(frozen=True, slots=True)
class Session:
    key: str | None
    """The id of the admin key; None: the operator's secret, or the printed link."""
    nonce: str
    expires: int

    @property
    def id(self) -> str:
        """Names the session where others may read it: its forms cannot be signed with it."""
        return hashlib.sha256(self.nonce.encode()).hexdigest()[:_ID_LENGTH]


class SignInTokens:
    """Makes and reads what opens the dashboard: cookies, tokens of forms, one-time links."""

    def __init__(self, roots: Roots) -> None:
        self._sessions = roots.keys(_SESSION)
        self._links = roots.keys(_LINK)
        self._forms = roots.keys(_FORM)
        self._notices = roots.keys(_NOTICE)
        # Two installations on one host differ by port, which cookies do not.
        installation = hashlib.sha256(self._sessions[-1]).hexdigest()[:8]
        self.cookie = f"penstock_session_{installation}"
        self._used: dict[str, int] = {}

    def open(self, key: str | None) -> tuple[Session, str]:
        """A new session, and its cookie."""
        session = Session(key, _nonce(), int(time.time()) + SESSION_SECONDS)
        claims = {"k": session.key, "n": session.nonce, "x": session.expires}
        return session, signed.sign(self._sessions[0], claims)

    def read(self, cookie: str) -> Session | None:
        claims = signed.verify(self._sessions, cookie)
        return None if claims is None else Session(claims["k"], claims["n"], claims["x"])

    def form_tokens(self, nonce: str) -> list[str]:
        """What a form may bring, the newest first: who cannot read our pages cannot know it."""
        macs = (hmac.digest(key, nonce.encode(), hashlib.sha256) for key in self._forms)
        return [signed.text(mac) for mac in macs]

    def fits(self, nonce: str, given: str) -> bool:
        tokens = self.form_tokens(nonce)
        return any(hmac.compare_digest(token.encode(), given.encode()) for token in tokens)

    def make_notice(self, text: str, seconds: int, *, bad: bool) -> str:
        """Signed: a site beside ours, on the same domain, can set a cookie that we get."""
        claims = {"text": text, "bad": bad, "x": int(time.time()) + seconds}
        return signed.sign(self._notices[0], claims)

    def read_notice(self, cookie: str) -> dict[str, Any] | None:
        return signed.verify(self._notices, cookie)

    def make_link(self) -> str:
        """The code of a link that signs in once."""
        until = int(time.time()) + LINK_SECONDS
        return signed.sign(self._links[0], {"n": _nonce(), "p": _PROCESS, "x": until})

    def use_link(self, code: str) -> bool:
        """Whether it is one of ours, and the first time."""
        claims = signed.verify(self._links, code)
        if claims is None or claims["p"] != _PROCESS or claims["n"] in self._used:
            return False
        now = time.time()
        if len(self._used) >= _MOST_USED:
            self._used = {nonce: until for nonce, until in self._used.items() if until > now}
        self._used[claims["n"]] = claims["x"]
        return True


def visit_token(cookie: str) -> str:
    """The token of the form before anybody is signed in, in the form and in the visitor's cookie.

    It is random, and not derived from the secret: anybody may have as many as they like.
    """
    return cookie if _MADE_HERE.fullmatch(cookie) else _nonce()


def fits_visit(cookie: str, given: str) -> bool:
    """Whether the form came from a page of ours: another site can send a form, and not our cookie.

    A site beside ours on the same domain can set one; its forms are known by Sec-Fetch-Site.
    """
    return bool(_MADE_HERE.fullmatch(cookie)) and hmac.compare_digest(
        cookie.encode(), given.encode()
    )


def doors(request: Request) -> SignInTokens:
    state = request.app.state
    if not hasattr(state, "doors"):
        state.doors = SignInTokens(state.backend.roots)
    kept: SignInTokens = state.doors
    return kept


async def signed_in(request: Request) -> Session | None:
    """The session of a request, if its cookie is good and its key still opens."""
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
    """End the session of a request, if it has one: copies of its cookie open nothing either."""
    session = _session_of(request)
    if session is not None:
        grants = request.app.state.backend.engine.grants
        await grants.end_session(session.id, session.expires)


def _session_of(request: Request) -> Session | None:
    """What its cookie says, if we signed it."""
    return doors(request).read(request.cookies.get(doors(request).cookie, ""))


def remember(request: Request, response: Response, name: str, value: str, seconds: int) -> None:
    """A cookie for our own pages only, and never for their scripts."""
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
