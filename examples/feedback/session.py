"""Sign-in: the name of a pupil, or the teacher, in a signed cookie.

There are no passwords: a pupil may enter any name. The teacher uses a link with a code that the
operator knows; pupils do not see the class. A real app has its own sign-in here.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from typing import Annotated, Literal
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.responses import Response

from feedback.errors import Wrong

Role = Literal["pupil", "teacher"]

COOKIES: dict[Role, str] = {"pupil": "feedback_pupil", "teacher": "feedback_teacher"}
LASTS_SECONDS = 7 * 86_400
LONGEST_NAME = 60
# Only our own pages can send this header: other sites need permission (CORS), which they never get.
HEADER = ("x-requested-with", "aufgaben")

# Without a configured secret, people have to sign in again after a restart.
_SECRET = (os.environ.get("FEEDBACK_SECRET") or secrets.token_hex(32)).encode()
# Without a code nobody can sign in as the teacher.
_CODE = os.environ.get("FEEDBACK_TEACHER_CODE") or ""


def check_name(name: str) -> str:
    """Return the cleaned name; raise Wrong if it is invalid."""
    name = " ".join(name.split())
    if not name:
        raise Wrong("name", "Wie heißt du? Schreib deinen Namen in das Feld.")
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise Wrong("name", f"Dein Name darf höchstens {LONGEST_NAME} Buchstaben haben.")
    return name


def is_code(given: str) -> bool:
    return bool(_CODE) and hmac.compare_digest(given.encode(), _CODE.encode())


def sign_in(response: Response, role: Role, name: str, *, secure: bool) -> None:
    body = json.dumps([role, name, int(time.time()) + LASTS_SECONDS]).encode()
    text = base64.urlsafe_b64encode(body).decode()
    response.set_cookie(
        COOKIES[role],
        f"{text}.{_signature(text)}",
        max_age=LASTS_SECONDS,
        httponly=True,
        samesite="lax",
        secure=secure,
    )


def signed_in(request: Request, role: Role) -> str | None:
    """Return the name in the cookie of this role, if it is valid and not expired."""
    text, _, signature = request.cookies.get(COOKIES[role], "").rpartition(".")
    if not text or not hmac.compare_digest(signature.encode(), _signature(text).encode()):
        return None
    kept, name, expires = json.loads(base64.urlsafe_b64decode(text))
    return str(name) if kept == role and expires > time.time() else None


def _signature(text: str) -> str:
    return hmac.new(_SECRET, text.encode(), hashlib.sha256).hexdigest()


async def _pupil(request: Request) -> str:
    name = signed_in(request, "pupil")
    if name is None:
        raise Wrong(None, "Melde dich zuerst an.", status=401)
    return name


async def _teacher(request: Request) -> str:
    name = signed_in(request, "teacher")
    if name is None:
        raise Wrong(None, "Diese Seite ist für die Lehrkraft.", status=401)
    return name


Pupil = Annotated[str, Depends(_pupil)]
"""The type of a route parameter with the pupil's name; without a session the answer is 401."""
Teacher = Annotated[str, Depends(_teacher)]


def refuse_other_sites(request: Request, *, script: bool) -> None:
    """Refuse a POST request that a page of another site sends with our cookie."""
    origin = request.headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign or (script and request.headers.get(HEADER[0]) != HEADER[1]):
        raise Wrong(None, "Diese Anfrage kam nicht von unserer Seite.", status=403)
