"""Who is there: a customer, and perhaps the operator as well, each in a signed cookie.

No passwords: anybody may be any of the customers. The operator comes by a link with a code that is
printed at the start. A real app puts its own sign-in here.
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

from studio.customers import CUSTOMERS
from studio.errors import Wrong

Role = Literal["customer", "operator"]

COOKIES: dict[Role, str] = {"customer": "studio_customer", "operator": "studio_operator"}
LASTS_SECONDS = 7 * 86_400
# Only our own pages can send this header: other sites need permission (CORS), which they never get.
HEADER = ("x-requested-with", "studio")
# For whom the page was made: another one may have signed in since, in another tab.
ACCOUNT_HEADER = "x-account"

# Without a configured secret, people have to sign in again after a restart.
_SECRET = (os.environ.get("STUDIO_SECRET") or secrets.token_hex(32)).encode()
# Without a code nobody can sign in as the operator.
_CODE = os.environ.get("STUDIO_OPERATOR_CODE") or ""


def check_customer(account: str) -> str:
    if account not in CUSTOMERS:
        raise Wrong("customer", "Choose one of the customers.")
    return account


def is_code(said: str) -> bool:
    return bool(_CODE) and hmac.compare_digest(said.encode(), _CODE.encode())


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
    told, name, expires = json.loads(base64.urlsafe_b64decode(text))
    return str(name) if told == role and expires > time.time() else None


def is_another(request: Request) -> bool:
    """Whether a page asks for a customer who is not the one that is signed in now."""
    meant, account = request.headers.get(ACCOUNT_HEADER), signed_in(request, "customer")
    return meant is not None and account is not None and meant != account


def sign_out(response: Response) -> None:
    for cookie in COOKIES.values():
        response.delete_cookie(cookie)


def _signature(text: str) -> str:
    return hmac.new(_SECRET, text.encode(), hashlib.sha256).hexdigest()


async def _customer(request: Request) -> str:
    account = signed_in(request, "customer")
    if account not in CUSTOMERS:
        raise Wrong(None, "Choose a customer first.", status=401)
    return account


async def _operator(request: Request) -> str:
    name = signed_in(request, "operator")
    if name is None:
        raise Wrong(None, "This is for the operator.", status=401)
    return name


Account = Annotated[str, Depends(_customer)]
"""The type of a route parameter with the account; without a session the answer is 401."""
Operator = Annotated[str, Depends(_operator)]


def refuse_other_sites(request: Request, *, script: bool) -> None:
    """Refuse a POST request that a page of another site sends with our cookie."""
    origin = request.headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign or (script and request.headers.get(HEADER[0]) != HEADER[1]):
        raise Wrong(None, "This request did not come from our page.", status=403)
