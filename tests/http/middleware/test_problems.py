"""Every error is answered in one form: RFC 9457 with a stable code (E14)."""

from urllib.parse import urlsplit

import asyncpg
import pytest

from penstock.errors import RateLimited
from support.cluster import Cluster
from support.http import kinds
from support.http.site import Site, problem
from support.waiting import eventually


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/jobs/", 404, "not_found"),
        ("DELETE", "/v1/jobs", 405, "method_not_allowed"),
        ("PUT", "/v1/jobs/batch", 405, "method_not_allowed"),
        ("GET", "/v1/jobs/not-an-id", 404, "not_found"),
        ("GET", "/v1/jobs/%00", 404, "not_found"),
        ("GET", "/v1/jobs/%FF", 404, "not_found"),
        ("GET", "/v1/batches/1", 404, "not_found"),
        ("POST", "/v1/jobs/../cancel", 404, "not_found"),
    ],
)
async def test_refusals_of_starlette_have_our_form(
    site: Site, method: str, path: str, status: int, code: str
) -> None:
    refusal = problem(await site.app_client.request(method, path), status, code)
    assert refusal["detail"] != refusal["title"], "a sentence, and not the name of the status"


async def test_a_head_request_is_answered_without_a_body(site: Site) -> None:
    answer = await site.app_client.head("/v1/jobs")
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"]


async def test_our_own_error_is_500_without_details(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start()

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the password is 1234")

    monkeypatch.setattr(site.api.state.backend.engine.texts, "jobs", broken)
    answer = await site.client(await site.make_key("app"), raises=False).get("/v1/jobs")
    refusal = problem(answer, 500, "internal_error")
    assert "1234" not in answer.text
    assert refusal["detail"]


async def test_an_unavailable_database_is_503_with_retry_after(
    site: Site, database: str, cluster: Cluster
) -> None:
    """R-F14: a job is never lost silently; the same submit may be repeated."""
    kinds.declare(site)
    await site.app_client.get("/v1/jobs")
    body = {"kind": "mark", "payload": {"answer": "a"}}
    name = urlsplit(database).path[1:]
    conn = await asyncpg.connect(cluster.dsn("postgres"))
    await conn.execute(f'alter database "{name}" connection limit 0')
    await conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1",
        name,
    )
    try:
        refused = await site.app_client.post(
            "/v1/jobs", json=body, headers={"Idempotency-Key": "k"}
        )
        refusal = problem(refused, 503, "unavailable")
        assert "Idempotency-Key" in refusal["hint"]
        assert int(refused.headers["retry-after"]) >= 1
    finally:
        await conn.execute(f'alter database "{name}" connection limit -1')
        await conn.close()

    async def back() -> bool:
        again = await site.app_client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
        return again.status_code == 201

    await eventually(back, "submits are taken again")
    assert len((await site.app_client.get("/v1/jobs")).json()["items"]) == 1


async def test_retry_after_is_in_whole_seconds(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.start()

    async def busy(*_: object, **__: object) -> None:
        raise RateLimited("slow down", code="rate_limited", retry_after=0.2)

    monkeypatch.setattr(site.api.state.backend.engine.texts, "jobs", busy)
    answer = await site.app_client.get("/v1/jobs")
    problem(answer, 429, "rate_limited")
    assert answer.headers["retry-after"] == "1"


async def test_pages_of_configured_origins_may_call(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ORIGINS", "https://app.example.org")
    asked = await site.anonymous.options(
        "/v1/jobs",
        headers={
            "Origin": "https://app.example.org",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,idempotency-key",
        },
    )
    assert asked.headers["access-control-allow-origin"] == "https://app.example.org"
    refused = await site.anonymous.get("/v1/jobs", headers={"Origin": "https://app.example.org"})
    problem(refused, 401, "unauthorized")
    assert refused.headers["access-control-allow-origin"] == "https://app.example.org"
    other = await site.anonymous.get("/v1/jobs", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


async def test_a_caller_who_disconnects_while_sending_is_no_server_error(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await site.start()
    sent: list[dict[str, object]] = []
    key = await site.make_key("app")
    messages: list[dict[str, object]] = [
        {"type": "http.request", "body": b'{"kind"', "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, object]:
        return messages.pop(0)

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/jobs",
        "raw_path": b"/v1/jobs",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {key}".encode())],
        "client": ("192.0.2.1", 1),
        "server": ("penstock.test", 80),
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
    }
    await site.api(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 400
    assert "a request failed" not in caplog.text
