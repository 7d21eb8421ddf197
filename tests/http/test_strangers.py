"""Callers without a key obtain nothing that depends on the secret of the installation."""

import re
import secrets
from uuid import UUID

import pytest
from starlette.routing import Mount, Route

from penstock import Penstock
from penstock.engine.engine import Engine
from support.clock import Clock
from support.http.site import Site
from support.signing import NEXT_SECRET, SECRET

_ID = UUID("0199c2f0-7c1e-7b3a-9d52-5f7a3c1e8b44")
# In the form of a session, a visitor's form, a notice and a browser token.
_VISIT = "A" * 22
_SIGNED = "eyJ4IjogMX0.AAAA"
_ASK = {
    "nothing": {},
    "a visitor": {"cookie": f"penstock_visit={_VISIT}; penstock_notice={_SIGNED}"},
    "a wrong token": {"authorization": f"Bearer pt_{_SIGNED}"},
    "a wrong drive token": {"authorization": f"Bearer pd_{_SIGNED}"},
    "a wrong key": {"authorization": "Bearer nonsense"},
    "a browser": {"accept": "text/html"},
}

Obtained = dict[tuple[str, str, str], tuple[int, list[tuple[str, str]], bytes]]


async def _obtain(site: Site) -> Obtained:
    """The answers to all calls of a stranger, by method, path and credential."""
    await site.start()
    paths = {("GET", "/nothing"), ("GET", "/login?code=a.b"), ("GET", "/login?next=jobs")}
    for route in site.api.router.routes:
        if isinstance(route, Route):
            path = re.sub(r"\{[^}]+\}", str(_ID), route.path)
            paths |= {(method, path) for method in route.methods or ()}
        else:
            assert isinstance(route, Mount), f"{route}: a walk knows no such route"
    assert ("GET", "/login") in paths
    found = {}
    for number, (method, path) in enumerate(sorted(paths)):
        for what, headers in _ASK.items():
            client = site.client(None, address=f"198.51.{number // 256}.{number % 256}")
            sent = {"x-request-id": "walk", **headers}
            for body in (b"", b"{}", f"form_token={_VISIT}&key=nonsense".encode()):
                if body and method in ("GET", "HEAD"):
                    continue
                answer = await client.request(method, path, headers=sent, content=body)
                headers_of_it = sorted(answer.headers.multi_items())
                found[method, path, f"{what} {body!r}"] = (
                    answer.status_code,
                    headers_of_it,
                    answer.content,
                )
    return found


async def test_answers_to_strangers_do_not_depend_on_the_secret(
    database: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise guesses of the secret could be tried offline. All routes, with fixed randomness."""
    monkeypatch.setattr(secrets, "token_urlsafe", lambda n=32: "r" * n)
    walks = []
    for secret in (SECRET, NEXT_SECRET):
        monkeypatch.setenv("PENSTOCK_SECRET", secret)
        async with await Engine.open(database, max_connections=2) as engine:
            site = Site(database, Penstock(database, name="tests"), engine, clock)
            walks.append(await _obtain(site))
            await site.close()
    one, other = walks
    assert one.keys() == other.keys()
    differs = {call: (one[call], other[call]) for call in one if one[call] != other[call]}
    assert differs == {}
    opened = {call for call, (status, _, _) in one.items() if status == 200}
    assert {path for _, path, _ in opened} >= {"/login", "/docs", "/healthz", "/openapi.json"}
