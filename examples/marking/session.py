"""Who is there: the teacher, in a signed cookie, by a link with a code printed at the start.

Nobody else sees what pupils wrote. A real app puts its own sign-in here.
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

from marking.errors import Wrong

COOKIE = "marking_teacher"
TEACHER = "teacher"
LASTS_SECONDS = 7 * 86_400
# Only our own pages can send this header: other sites need permission (CORS), which they never get.
HEADER = ("x-requested-with", "marking")

# Without a configured secret, people have to sign in again after a restart.
_SECRET = (os.environ.get("MARKING_SECRET") or secrets.token_hex(32)).encode()
# Without the code nobody is the teacher; without the secret nobody drives the queue.
_CODE = os.environ.get("MARKING_TEACHER_CODE") or ""
_QUEUE_SECRET = os.environ.get("MARKING_QUEUE_SECRET") or ""


def is_code(said: str) -> bool:
    return bool(_CODE) and hmac.compare_digest(said.encode(), _CODE.encode())


def sign_in(response: Response, *, secure: bool) -> None:
    body = json.dumps([TEACHER, int(time.time()) + LASTS_SECONDS]).encode()
    text = base64.urlsafe_b64encode(body).decode()
    response.set_cookie(
        COOKIE,
        f"{text}.{_signature(text)}",
        max_age=LASTS_SECONDS,
        httponly=True,
        samesite="lax",
        secure=secure,
    )


def is_signed_in(request: Request) -> bool:
    """Whether the cookie is valid and not expired."""
    text, _, signature = request.cookies.get(COOKIE, "").rpartition(".")
    if not text or not hmac.compare_digest(signature.encode(), _signature(text).encode()):
        return False
    who, expires = json.loads(base64.urlsafe_b64decode(text))
    return bool(who == TEACHER and expires > time.time())


def _signature(text: str) -> str:
    return hmac.new(_SECRET, text.encode(), hashlib.sha256).hexdigest()


async def _teacher(request: Request) -> str:
    if not is_signed_in(request):
        raise Wrong(None, "Open this with the link that is printed at the start.", status=401)
    return TEACHER


async def _driver(request: Request) -> str:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    fits = hmac.compare_digest(given.strip().encode(), _QUEUE_SECRET.encode())
    if not _QUEUE_SECRET or scheme.lower() != "bearer" or not fits:
        raise Wrong(
            "Authorization", "This needs Authorization: Bearer MARKING_QUEUE_SECRET.", status=401
        )
    return "driver"


Teacher = Annotated[str, Depends(_teacher)]
"""A route with a parameter of this type is the teacher's; to others the answer is 401."""
Driver = Annotated[str, Depends(_driver)]


def refuse_other_sites(request: Request) -> None:
    """Refuse a POST request that a page of another site sends with our cookie."""
    origin = request.headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign or request.headers.get(HEADER[0]) != HEADER[1]:
        raise Wrong(None, "This request did not come from our page.", status=403)
