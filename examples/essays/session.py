"""Who is there: a name in a signed cookie. No passwords: anybody may say any name.

The signature keeps people from writing a cookie by hand; it does not prove who they are. A real
app puts its own sign-in here and keeps the two functions that the routes use.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.responses import Response

from essays.errors import Wrong

COOKIE = "essays_session"
LASTS_SECONDS = 7 * 86_400
LONGEST_NAME = 60

# Without a configured secret, people have to sign in again after a restart.
_SECRET = (os.environ.get("ESSAYS_SECRET") or secrets.token_hex(32)).encode()


def check_name(name: str) -> str:
    """Return the cleaned name; raise Wrong if it is invalid."""
    name = " ".join(name.split())
    if not name:
        raise Wrong("name", "The name is empty. Type the name you want to practise under.")
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise Wrong("name", f"The name may have up to {LONGEST_NAME} letters, no control signs.")
    return name


def sign_in(response: Response, name: str, *, secure: bool) -> None:
    body = json.dumps([name, int(time.time()) + LASTS_SECONDS]).encode()
    text = base64.urlsafe_b64encode(body).decode()
    response.set_cookie(
        COOKIE,
        f"{text}.{_signature(text)}",
        max_age=LASTS_SECONDS,
        httponly=True,
        samesite="lax",
        secure=secure,
    )


def signed_in_name(request: Request) -> str | None:
    """Return the name in the cookie, if it is valid and not expired."""
    text, _, signature = request.cookies.get(COOKIE, "").rpartition(".")
    if not text or not hmac.compare_digest(signature.encode(), _signature(text).encode()):
        return None
    name, expires = json.loads(base64.urlsafe_b64decode(text))
    return str(name) if expires > time.time() else None


def _signature(text: str) -> str:
    return hmac.new(_SECRET, text.encode(), hashlib.sha256).hexdigest()


async def _required(request: Request) -> str:
    name = signed_in_name(request)
    if name is None:
        raise Wrong(None, "Sign in first.", status=401)
    return name


User = Annotated[str, Depends(_required)]
"""The type of a route parameter with the name; without a session the answer is 401."""


def refuse_other_sites(request: Request) -> None:
    """Refuse a POST request that a page of another site sends with our cookie."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise Wrong(None, "This request came from another site and was not taken.", status=403)
