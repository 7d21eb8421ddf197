"""An API that another app has mounted gives the same answers as a standalone one."""

from typing import Any

import httpx
import pytest

from support.http import kinds
from support.http.site import Site, problem

MARK = {"kind": "mark", "payload": {"answer": "a"}}
NOBODYS = "01999999-0000-7000-8000-000000000000"


@pytest.fixture(autouse=True)
def _kinds(site: Site) -> None:
    kinds.declare(site)


class Ways:
    """The same call twice: to the API alone, and to the API below the path of another app."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def both(
        self, method: str, path: str, *, key: str | None, **more: Any
    ) -> tuple[httpx.Response, httpx.Response]:
        alone = self._site.client(key)
        mounted = self._site.client(key, prefix="/mounted")
        return (
            await alone.request(method, path, **more),
            await mounted.request(method, path, **more),
        )

    async def same(self, method: str, path: str, *, key: str | None, **more: Any) -> httpx.Response:
        first, second = await self.both(method, path, key=key, **more)
        assert first.status_code == second.status_code
        assert first.content == second.content
        assert _headers(first) == _headers(second)
        return first


def _headers(response: httpx.Response) -> dict[str, str]:
    """All headers except those that identify the request."""
    return {name: value for name, value in response.headers.items() if name != "x-request-id"}


@pytest.fixture
def ways(site: Site) -> Ways:
    return Ways(site)


async def job_of(site: Site, **more: Any) -> str:
    answer = await site.app_client.post("/v1/jobs", json={**MARK, **more})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


async def test_a_read_is_the_same(site: Site, ways: Ways) -> None:
    key = await site.make_key("app")
    lives = await job_of(site)
    finished = await job_of(site)
    await site.app_client.post(f"/v1/jobs/{finished}/cancel")
    for job in (lives, finished, lives.upper()):
        response = await ways.same("GET", f"/v1/jobs/{job}", key=key)
        assert response.status_code == 200
        assert response.headers["x-request-id"]
        known = {"If-None-Match": response.headers["etag"]}
        again = await ways.same("GET", f"/v1/jobs/{job}", key=key, headers=known)
        assert (again.status_code, again.content) == (304, b"")
    waited = await ways.same("GET", f"/v1/jobs/{finished}", key=key, headers={"Prefer": "wait=5"})
    assert waited.headers["preference-applied"] == "wait=5"


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/jobs/{NOBODYS}",
        "/v1/jobs/x",
        f"/v1/jobs/{'x' * 36}",
        f"/v1/jobs/{'x' * 30}/batch",
        f"/v1/nothing/{NOBODYS}",
        f"/v1/jobs/{NOBODYS}/",
    ],
)
async def test_an_unknown_path_is_the_same(site: Site, ways: Ways, path: str) -> None:
    problem(await ways.same("GET", path, key=await site.make_key("app")), 404, _code(path))


def _code(path: str) -> str:
    is_job = path.startswith("/v1/jobs/") and len(path) == 45 and "x" not in path
    return "unknown_job" if is_job else "not_found"


async def test_a_refusal_for_missing_rights_is_the_same(site: Site, ways: Ways) -> None:
    job = await job_of(site, account="u1")
    theirs = await site.make_key("account", "u2")
    drives = await site.make_key("process")
    made = await site.app_client.post("/v1/tokens", json={"job": job, "allow": ["cancel"]})
    token = made.json()["token"]
    path = f"/v1/jobs/{job}"
    problem(await ways.same("GET", path, key=None), 401, "unauthorized")
    problem(await ways.same("GET", path, key="ps_app_nobody"), 401, "unauthorized")
    problem(await ways.same("GET", path, key=drives), 403, "not_allowed")
    problem(await ways.same("GET", path, key=token), 403, "not_allowed")
    problem(await ways.same("GET", f"{path}?token={token}", key=None), 403, "not_allowed")
    problem(await ways.same("GET", path, key=theirs), 404, "unknown_job")
    for key, status in ((None, 401), (drives, 403), (token, 403)):
        assert (await ways.same("POST", "/v1/jobs", key=key, json=MARK)).status_code == status


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"kind": "mark"}',
        b'{"kind": "mark", "payload": {}, "nonsense": 1}',
        b'{"kind": "nothing", "payload": {}}',
        b'{"kind": "mark", "payload": {"answer": 5}}',
        b'{"kind": "mark", "payload": {"answer": "a"}, "topic": ""}',
        b'{"kind": "priced", "payload": {}}',
        b"x" * 4_200_000,
    ],
    ids=lambda body: str(body[:40]),
)
async def test_a_refused_submit_is_the_same(site: Site, ways: Ways, body: bytes) -> None:
    refused = await ways.same("POST", "/v1/jobs", key=await site.make_key("app"), content=body)
    problem(refused, refused.status_code, refused.json()["code"])
    assert refused.status_code in (404, 413, 422)


async def test_an_accepted_submit_has_the_same_form(site: Site, ways: Ways) -> None:
    key = await site.make_key("app")
    for more in ({}, {"account": "u1"}, {"delay_seconds": 60}):
        first, second = await ways.both("POST", "/v1/jobs", key=key, json={**MARK, **more})
        assert (first.status_code, second.status_code) == (201, 201), first.text
        assert first.json().keys() == second.json().keys()
        assert first.headers.keys() == second.headers.keys()
        assert first.headers["location"] == f"/v1/jobs/{first.json()['id']}"


async def test_refused_methods_are_the_same(site: Site, ways: Ways) -> None:
    key = await site.make_key("app")
    for method in ("HEAD", "PUT", "DELETE"):
        refused = await ways.same(method, f"/v1/jobs/{NOBODYS}", key=key)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


async def test_answers_to_other_origins_are_the_same(
    site: Site, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ORIGINS", "https://app.example.org")
    key, origin = await site.make_key("app"), {"Origin": "https://app.example.org"}
    response = await ways.same("GET", f"/v1/jobs/{await job_of(site)}", key=key, headers=origin)
    assert response.headers["access-control-allow-origin"] == origin["Origin"]


async def test_our_own_error_is_500(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await job_of(site)

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the password is 1234")

    monkeypatch.setattr(site.api.state.backend.engine.texts, "jobs_together", broken)
    key = await site.make_key("app")
    answer = await site.client(key, raises=False).get(f"/v1/jobs/{job}")
    problem(answer, 500, "internal_error")
    assert "1234" not in answer.text
    assert answer.headers["x-request-id"]


async def test_requests_are_counted_by_their_routes(site: Site) -> None:
    job = await job_of(site)
    await site.app_client.get(f"/v1/jobs/{job}")
    await site.app_client.get(f"/v1/jobs/{NOBODYS}")
    counted = site.api.state.requests.answers
    assert counted["POST", "/v1/jobs", 201] == 1
    assert counted["GET", "/v1/jobs/{job_id}", 200] == 1
    assert counted["GET", "/v1/jobs/{job_id}", 404] == 1
