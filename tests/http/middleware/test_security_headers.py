"""Security headers of every answer, checked on all routes."""

import re
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import httpx
import pytest
from starlette.routing import Route

from support.dashboard.visitor import Visitor
from support.http import kinds
from support.http.site import Site

_EVIL = "evil.example"
# Not no-store: answers with an ETag, streams, and the files of the pages.
_KEPT = re.compile(
    r"/v1/jobs/[^/]+|/v1/uploads/[^/]+|/uploads/[^/]+|/static/.*|/live|/v1/.*/events"
)


@pytest.fixture(autouse=True)
def _kinds(site: Site) -> None:
    kinds.declare(site)


@pytest.fixture
async def callers(site: Site) -> dict[str, httpx.AsyncClient]:
    """Callers without a key, with a wrong key, with an admin key, and a person who is signed in."""
    operator = Visitor(site)
    await operator.sign_in()
    return {
        "nobody": site.anonymous,
        "a wrong key": site.client("ps_app_wrong"),
        "admin": site.admin,
        "operator": operator.http,
    }


async def _values(site: Site) -> dict[str, str]:
    """Existing values for each parameter of a path; for `name` by the preceding part."""
    sent = {"kind": "mark", "payload": {"answer": "a"}, "account": "u1"}
    job = (await site.admin.post("/v1/jobs", json=sent)).json()["id"]
    upload = await site.admin.post("/v1/uploads", files={"file": b"a text"})
    return {"job_id": job, "upload_id": upload.json()["id"], "account_id": "u1", "account": "u1"}


def _calls(site: Site, values: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Methods and paths of all routes, with existing and with unknown things."""
    for route in site.api.router.routes:
        if isinstance(route, Route):
            for known in (values, {}):
                path = route.path
                for name in re.findall(r"\{([^}]+)\}", route.path):
                    value = known.get(name.partition(":")[0], str(uuid4()))
                    path = path.replace(f"{{{name}}}", value)
                for method in route.methods or ():
                    yield method, path
    yield from [
        ("GET", "/static/penstock.js"),
        ("GET", "/static/nothing.js"),
        ("GET", "/nothing"),
        ("PUT", "/v1/jobs"),
        ("OPTIONS", "/v1/jobs"),
        ("POST", "/login"),
    ]


async def _answers(
    site: Site, callers: dict[str, httpx.AsyncClient], **headers: str
) -> AsyncIterator[tuple[str, str, httpx.Response]]:
    await site.start()
    values = await _values(site)
    for who, client in callers.items():
        for method, path in dict.fromkeys(_calls(site, values)):
            if path == "/logout" or (who != "nobody" and path.endswith("/erase")):
                continue
            async with client.stream(method, path, headers=headers) as answer:
                yield f"{method} {path} by {who}: {answer.status_code}", path, answer


async def test_every_answer_has_security_headers(
    site: Site, callers: dict[str, httpx.AsyncClient]
) -> None:
    """Of pages, JSON, files, streams and refusals."""
    seen: set[int] = set()
    async for what, path, answer in _answers(site, callers):
        seen.add(answer.status_code)
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], what
        [policy] = answer.headers.get_list("content-security-policy")
        assert "frame-ancestors 'none'" in policy, what
        assert "default-src 'none'" in policy, what
        [kept] = answer.headers.get_list("cache-control")
        if "no-store" not in kept:
            assert _KEPT.fullmatch(path), f"{what}: {kept}"
            assert "no-cache" in kept or path.startswith("/static/"), f"{what}: {kept}"
    assert seen >= {200, 303, 401, 404, 405}


async def test_server_errors_have_them_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.start()
    monkeypatch.setattr(site.api.state.backend.engine.keys, "list", None)
    outside = site.client(None, raises=False)
    outside.headers["authorization"] = site.admin.headers["authorization"]
    answer = await outside.get("/v1/keys")
    assert answer.status_code == 500
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


async def test_no_answer_repeats_the_callers_host_header(
    site: Site, callers: dict[str, httpx.AsyncClient]
) -> None:
    """Nothing leads where a header says: links, redirects, documents, addresses."""
    lies = {"host": _EVIL, "x-forwarded-host": _EVIL, "forwarded": f"host={_EVIL}"}
    async for what, _, answer in _answers(site, callers, **lies):
        assert _EVIL not in str(answer.headers.multi_items()), what
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            await answer.aread()
            assert _EVIL not in answer.text, what
