"""Log lines of requests: an id, a route, a status; never the contents of a request (C15)."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from penstock.base import logs
from support.http.site import SECRET, Site

CANARY = "canary-7f3a"
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """The lines logged since then, as JSON."""
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    kept = root.handlers[:], root.level, ours.level, logging.raiseExceptions
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    logs.configure("debug", "json")
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:] = kept[0]
    root.setLevel(kept[1])
    ours.setLevel(kept[2])
    logging.raiseExceptions = kept[3]


def of_requests(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["message"] == "request"]


async def test_a_request_has_an_id_that_is_in_the_answer_and_the_log(
    site: Site, logged: Lines
) -> None:
    answer = await site.admin.get("/v1/accounts/nobody", headers={"X-Request-ID": "trace-17.a_b"})
    assert answer.headers["x-request-id"] == "trace-17.a_b"
    [line] = of_requests(logged())
    assert (
        line.items()
        >= {
            "request": "trace-17.a_b",
            "method": "GET",
            "route": "/v1/accounts/{account}",
            "status": 404,
            "key": "admin",
            "level": "info",
            "logger": "penstock.http",
        }.items()
    )
    assert line["ms"] > 0


@pytest.mark.parametrize(
    "odd", ["", "x" * 101, "a b", "a\tb", "<script>", '"', "é", "../../etc", "-rf"]
)
async def test_a_malformed_request_id_is_replaced(site: Site, odd: str) -> None:
    first = await site.anonymous.get("/healthz", headers={b"X-Request-ID": odd.encode()})
    second = await site.anonymous.get("/healthz")
    assert first.headers["x-request-id"] not in (odd, second.headers["x-request-id"])
    assert len(first.headers["x-request-id"]) == 16


async def test_a_line_names_the_key_and_the_job(site: Site, logged: Lines) -> None:
    job = uuid4()
    key = await site.make_key("app")
    await site.client(key).get(f"/v1/jobs/{job}")
    [line] = of_requests(logged())
    assert line["job"] == str(job)
    assert line["key"] == key.split("_")[2]


async def test_a_submit_is_logged_with_the_job_it_made(site: Site, logged: Lines) -> None:
    queue = site.penstock.queue("q")

    @site.penstock.job(queue=queue)
    async def mark(answer: str) -> str:
        return answer

    body = {"kind": "mark", "payload": {"answer": "a"}}
    job = await site.app_client.post("/v1/jobs", json=body)
    [line] = of_requests(logged())
    assert (line["route"], line["status"], line["job"]) == ("/v1/jobs", 201, job.json()["id"])


async def test_our_own_errors_are_logged_with_the_id_and_without_the_message(
    site: Site, logged: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start()

    def broken(*_: Any, **__: Any) -> None:
        raise ValueError(CANARY)

    monkeypatch.setattr("penstock.engine.accounts.accounts.Accounts.show", broken)
    client = site.client(SECRET, raises=False)
    answer = await client.get(f"/v1/accounts/{CANARY}", headers={"X-Request-ID": "r1"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.headers["x-request-id"] == "r1"
    assert CANARY not in answer.text
    lines = logged()
    assert [line["status"] for line in of_requests(lines)] == [500]
    [error] = [line for line in lines if line["level"] == "error"]
    assert (error["request"], error["route"]) == ("r1", "/v1/accounts/{account}")
    assert CANARY not in str(lines)


async def test_no_contents_of_a_request_are_logged_c15(site: Site, logged: Lines) -> None:
    """C15: payloads, results, keys, tokens, query strings, names, at the most verbose level."""
    queue = site.penstock.queue("q")

    @site.penstock.job(queue=queue)
    async def mark(answer: str) -> dict[str, str]:
        return {"answer": answer}

    account = f"jane-{CANARY}"
    key = await site.make_key("account", account)
    client = site.client(key)
    made = await site.admin.post(
        "/v1/tokens", json={"account": account, "ttl_seconds": 60, "allow": ["read"]}
    )
    token = made.json()["token"]
    body = {"kind": "mark", "payload": {"answer": CANARY}, "metadata": {"who": CANARY}}
    job = await client.post("/v1/jobs", json=body, headers={"Idempotency-Key": CANARY})
    assert job.status_code == 201, job.text
    await client.post("/v1/jobs", json={"kind": "mark", "payload": {"wrong": CANARY}})
    await client.post("/v1/jobs", content=f'{{"kind": "{CANARY}'.encode())
    await site.work()
    shown = await site.anonymous.get(f"/v1/jobs/{job.json()['id']}", params={"token": token})
    assert shown.json()["result"] == {"answer": CANARY}
    await site.anonymous.get(f"/v1/{CANARY}?token={CANARY}")
    await site.client(f"ps_app_{CANARY}_{CANARY}").get("/v1/jobs")
    await site.admin.get(f"/v1/accounts/{account}", params={"q": CANARY})
    await site.admin.post(
        f"/v1/accounts/{account}/credits", json={"amount": 1, "reason": CANARY, "ref": CANARY}
    )
    lines = logged()
    assert len(of_requests(lines)) >= 9
    logged_text = json.dumps(lines)
    for secret in (CANARY, token, key.split("_", 3)[3], SECRET):
        assert secret not in logged_text


async def test_text_lines_name_the_request_too(
    site: Site, monkeypatch: pytest.MonkeyPatch, logged: Lines
) -> None:
    assert logged() == []
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    logs.configure("info", "text")
    await site.admin.get("/v1/queues", headers={"X-Request-ID": "r1"})
    [line] = stream.getvalue().splitlines()
    assert " INFO penstock.http: request request=r1 method=GET route=/v1/queues status=200" in line


async def test_routine_requests_of_machines_are_not_logged(site: Site, logged: Lines) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        await site.admin.get(path)
    assert [line["level"] for line in of_requests(logged())] == ["debug"] * 3
    await site.anonymous.get("/metrics")
    last = of_requests(logged())[-1]
    assert (last["level"], last["status"]) == ("info", 401)
