"""Tokens of an erased account, and of a new account with the same name."""

from typing import Any

import asyncpg
import httpx
import pytest

from support.http import kinds
from support.http.listening import listening
from support.http.site import Site, problem

BODY: dict[str, Any] = {"kind": "mark", "payload": {"answer": "a"}}


@pytest.fixture(autouse=True)
def _kinds(site: Site) -> None:
    kinds.declare(site)


async def submit(site: Site, account: str, **options: Any) -> str:
    answer = await site.app_client.post("/v1/jobs", json=BODY | {"account": account, **options})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


async def browser(site: Site, **body: Any) -> httpx.AsyncClient:
    answer = await site.app_client.post("/v1/tokens", json=body)
    assert answer.status_code == 201, answer.text
    return site.client(answer.json()["token"])


async def erase(site: Site, account: str) -> None:
    answer = await site.admin.post(f"/v1/accounts/{account}/erase")
    assert answer.status_code == 200, answer.text


async def test_a_token_of_an_erased_account_does_not_open_a_new_account_of_its_name(
    site: Site,
) -> None:
    """G14"""
    await submit(site, "u1")
    old = [
        await browser(site, account="u1"),
        await browser(site, account="u1", allow=["read", "cancel"]),
        site.client(site.penstock.token(account="u1")),
    ]
    for one in old:
        assert (await one.get("/v1/accounts/u1")).status_code == 200
    await erase(site, "u1")
    job = await submit(site, "u1")
    for one in old:
        for path in (f"/v1/jobs/{job}", "/v1/jobs", "/v1/accounts/u1", "/v1/accounts/u1/events"):
            problem(await one.get(path), 401, "unauthorized")
        problem(await one.post(f"/v1/jobs/{job}/cancel"), 401, "unauthorized")
    for new in (await browser(site, account="u1"), site.client(site.penstock.token(account="u1"))):
        assert (await new.get(f"/v1/jobs/{job}")).status_code == 200


async def test_its_open_stream_ends(site: Site) -> None:
    await submit(site, "u1")
    old = await browser(site, account="u1")
    async with listening(old, "/v1/accounts/u1/events") as listener:
        await listener.next()
        await erase(site, "u1")
        await submit(site, "u1", topic="of the next")
        await listener.over(seconds=3)
    assert not [event for event in listener.had if event.data.get("topic") == "of the next"]


async def test_a_token_of_an_accounts_own_key_is_refused_after_the_erasure(site: Site) -> None:
    own = await site.account_client("u1")
    made = await own.post("/v1/tokens", json={"topic": "t"})
    old = site.client(made.json()["token"])
    assert (await old.get("/v1/jobs")).status_code == 200
    await erase(site, "u1")
    await submit(site, "u1", topic="t")
    problem(await old.get("/v1/jobs"), 401, "unauthorized")


async def test_a_key_of_an_erased_account_does_not_create_it_again(site: Site) -> None:
    """G14: also at once, although keys are looked up only once a second."""
    own = [await site.account_client("u1") for _ in range(2)]
    other = await site.account_client("u2")
    for client in (*own, other):
        assert (await client.get("/v1/jobs")).status_code == 200
    await erase(site, "u1")
    for client in own:
        problem(await client.post("/v1/jobs", json=BODY), 401, "unauthorized")
    problem(await site.admin.get("/v1/accounts/u1"), 404, "unknown_account")
    assert (await other.get("/v1/jobs")).status_code == 200


async def test_a_token_may_be_older_than_its_account(site: Site) -> None:
    """A page may get its token before the first job creates the account."""
    await submit(site, "u2")
    await erase(site, "u2")
    early = [await browser(site, account="u1"), site.client(site.penstock.token(account="u1"))]
    job = await submit(site, "u1")
    for one in early:
        assert (await one.get(f"/v1/jobs/{job}")).status_code == 200


async def test_tokens_of_other_accounts_stay_valid(site: Site, conn: asyncpg.Connection) -> None:
    job = await submit(site, "u1")
    other = await submit(site, "u2", topic="t")
    mine = [
        await browser(site, account="u1"),
        site.client(site.penstock.token(account="u1")),
        await browser(site, job=job),
    ]
    topic = await browser(site, topic="t")
    late = await browser(site, account="u3")
    third = await submit(site, "u3")
    await erase(site, "u2")
    assert await conn.fetchval("select count(*) from penstock.erasure") == 1
    for one in mine:
        assert (await one.get(f"/v1/jobs/{job}")).status_code == 200
    assert (await topic.get("/v1/jobs")).json()["items"] == []
    problem(await topic.get(f"/v1/jobs/{other}"), 404, "unknown_job")
    await conn.execute(
        "update penstock.erasure set at = at + interval '2 minutes'"
    )  # long after u3 was created, so u3 is not the successor of an erased account
    assert (await late.get(f"/v1/jobs/{third}")).status_code == 200
