"""Short tokens for browsers: what they give access to, and what not."""

import base64
import time
from typing import Any
from uuid import uuid4

import httpx
import pytest

from support.http import kinds
from support.http.site import Site, problem


@pytest.fixture(autouse=True)
def _kinds(site: Site) -> None:
    kinds.declare(site)


async def make(client: httpx.AsyncClient, **options: Any) -> str:
    body = {"kind": "mark", "payload": {"answer": "a"}, **options}
    answer = await client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


async def token(client: httpx.AsyncClient, **body: Any) -> str:
    answer = await client.post("/v1/tokens", json=body)
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["token"]
    return found


async def test_a_token_for_a_job_opens_that_job(site: Site) -> None:
    job, other = await make(site.app_client), await make(site.app_client)
    browser = site.client(await token(site.app_client, job=job))
    assert (await browser.get(f"/v1/jobs/{job}")).json()["id"] == job
    problem(await browser.get(f"/v1/jobs/{other}"), 404, "unknown_job")
    problem(await browser.post(f"/v1/jobs/{job}/cancel"), 403, "not_allowed")
    problem(await browser.post(f"/v1/jobs/{job}/retry"), 403, "not_allowed")
    problem(await browser.post("/v1/tokens", json={"job": job}), 403, "not_allowed")
    may = site.client(await token(site.app_client, job=job, allow=["read", "cancel"]))
    assert (await may.post(f"/v1/jobs/{job}/cancel")).json()["status"] == "cancelled"
    problem(await may.post(f"/v1/jobs/{other}/cancel"), 404, "unknown_job")
    only = site.client(await token(site.app_client, job=job, allow=["cancel"]))
    problem(await only.get(f"/v1/jobs/{job}"), 403, "not_allowed")


async def test_a_token_is_accepted_in_the_address(site: Site) -> None:
    job = await make(site.app_client)
    found = await token(site.app_client, job=job)
    shown = await site.anonymous.get(f"/v1/jobs/{job}", params={"token": found})
    assert shown.status_code == 200


async def test_a_token_for_an_account_or_a_topic_opens_its_jobs(site: Site) -> None:
    job = await make(site.app_client, account="u1", topic="t")
    other = await make(site.app_client, account="u2", topic="t")
    account = site.client(await token(site.app_client, account="u1"))
    assert (await account.get(f"/v1/jobs/{job}")).status_code == 200
    problem(await account.get(f"/v1/jobs/{other}"), 404, "unknown_job")
    topic = site.client(await token(site.app_client, topic="t"))
    for one in (job, other):
        assert (await topic.get(f"/v1/jobs/{one}")).status_code == 200
    problem(await topic.get(f"/v1/jobs/{await make(site.app_client)}"), 404, "unknown_job")


async def test_an_accounts_key_makes_tokens_for_its_own_things_only(site: Site) -> None:
    """G14: other accounts and their jobs are unknown, and a topic shows only its own jobs."""
    mine = await site.account_client("u1")
    own = await make(mine, topic="t")
    other = await make(site.app_client, account="u2", topic="t")
    assert await token(mine, job=own)
    assert await token(mine, account="u1")
    refusal = problem(await mine.post("/v1/tokens", json={"job": other}), 404, "unknown_job")
    nobody = str(uuid4())
    same = problem(await mine.post("/v1/tokens", json={"job": nobody}), 404, "unknown_job")
    assert refusal["detail"].replace(other, "") == same["detail"].replace(nobody, "")
    problem(await mine.post("/v1/tokens", json={"account": "u2"}), 404, "unknown_account")
    problem(await mine.post("/v1/tokens", json={"account": "nobody"}), 404, "unknown_account")
    browser = site.client(await token(mine, topic="t"))
    assert (await browser.get(f"/v1/jobs/{own}")).status_code == 200
    problem(await browser.get(f"/v1/jobs/{other}"), 404, "unknown_job")


async def test_a_token_expires(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = (await site.app_client.post("/v1/tokens", json={"topic": "t"})).json()
    browser = site.client(answer["token"])
    assert (await browser.get("/v1/jobs")).status_code == 200
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3_599)
    assert (await browser.get("/v1/jobs")).status_code == 200
    monkeypatch.setattr(time, "time", lambda: now + 3_601)
    problem(await browser.get("/v1/jobs"), 401, "unauthorized")


async def test_a_token_is_valid_for_the_whole_requested_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It expires at a whole second, rounded up, so no token loses time."""
    now = float(int(time.time())) + 0.98
    monkeypatch.setattr(time, "time", lambda: now)
    answer = await site.app_client.post("/v1/tokens", json={"topic": "t", "ttl_seconds": 1})
    browser = site.client(answer.json()["token"])
    monkeypatch.setattr(time, "time", lambda: now + 0.9)
    assert (await browser.get("/v1/jobs")).status_code == 200


async def test_a_changed_token_is_refused(site: Site) -> None:
    found = await token(site.app_client, account="u1")
    body, mac = found.removeprefix("pt_").split(".")
    claims = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    forged = base64.urlsafe_b64encode(claims.replace(b'"u1"', b'"u2"')).rstrip(b"=").decode()
    for wrong in (f"pt_{forged}.{mac}", f"pt_{body}.{mac[:-2]}AA", f"pt_{body}", f"pt_{body}."):
        problem(await site.client(wrong).get("/v1/jobs"), 401, "unauthorized")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "account"),
        ({"account": "a", "topic": "t"}, "topic"),
        ({"account": ""}, "account"),
        ({"account": "a\0"}, "account"),
        ({"job": "x"}, "job"),
        ({"topic": "t", "ttl_seconds": 0}, "ttl_seconds"),
        ({"topic": "t", "ttl_seconds": 86_401}, "ttl_seconds"),
        ({"topic": "t", "ttl_seconds": "60"}, "ttl_seconds"),
        ({"topic": "t", "allow": []}, "allow"),
        ({"topic": "t", "allow": ["write"]}, "allow.0"),
        ({"topic": "t", "expires_at": 1}, "expires_at"),
    ],
)
async def test_a_wrong_request_is_refused_by_its_field(
    site: Site, body: dict[str, Any], field: str
) -> None:
    refusal = problem(await site.app_client.post("/v1/tokens", json=body), 422, "invalid_request")
    assert refusal["field"] == field
