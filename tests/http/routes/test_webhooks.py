"""Webhooks over HTTP: list the messages about finished jobs, and send one again."""

from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from support import factory
from support.http.site import Site, problem

MINE = "https://app.example.org/hooks/secret-path"
THEIRS = "https://caller.example.com/told/another-secret?job=1"


@pytest.fixture
async def finished(site: Site, conn: asyncpg.Connection) -> Site:
    """Finished jobs of two accounts, with pending webhooks."""
    queue = site.penstock.queue("q")

    @site.penstock.job(queue=queue, name="f", webhook=MINE)
    async def plain() -> None: ...

    assert plain.name
    await site.start()
    worker = await factory.worker(conn)
    for account in ("u1", "u2"):
        await factory.submit(conn, "f", account=account, webhook_url=THEIRS)
        started = await factory.claim(conn, worker, "q")
        await factory.finish(conn, worker, started)
    return site


async def items(client: Any, query: str = "") -> list[dict[str, Any]]:
    response = await client.get(f"/v1/webhooks{query}")
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["items"]
    return found


async def test_operators_see_all_of_them(finished: Site) -> None:
    """E15"""
    found = await items(finished.admin)
    assert [one["account"] for one in found] == ["u2", "u2", "u1", "u1"]
    assert {one["url"] for one in found} == {MINE, THEIRS}
    first = found[0]
    assert (first["status"], first["tries"], first["type"]) == ("pending", 0, "job.succeeded")
    assert await items(finished.app_client, "?account=u1&status=pending") == found[2:]
    assert await items(finished.admin, f"?job={first['job']}") == found[:2]
    assert await items(finished.admin, "?status=delivered") == []
    assert await items(finished.admin, "?account=nobody") == []


async def test_pages(finished: Site) -> None:
    seen: list[str] = []
    cursor = ""
    while True:
        page = (await finished.admin.get(f"/v1/webhooks?limit=1{cursor}")).json()
        seen += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [one["id"] for one in await items(finished.admin)]


@pytest.mark.parametrize("query", ["?limit=0", "?limit=1001", "?status=odd", "?job=x", "?cursor=x"])
async def test_invalid_filters_are_refused(finished: Site, query: str) -> None:
    response = await finished.admin.get(f"/v1/webhooks{query}")
    assert response.status_code == 422
    assert response.json()["field"] == query[1:].split("=", maxsplit=1)[0]


async def test_an_account_sees_its_own(finished: Site) -> None:
    """G14: not the operator's addresses, nor other accounts'; its own without the path."""
    mine = await finished.account_client("u1")
    [one] = await items(mine)
    assert (one["account"], one["url"]) == ("u1", "https://caller.example.com")
    assert await items(mine, "?account=u2") == []
    everything = await items(finished.admin)
    foreign = [other["id"] for other in everything if other["id"] != one["id"]]
    for webhook in (*foreign, str(uuid4())):
        refusal = problem(await mine.post(f"/v1/webhooks/{webhook}/replay"), 404, "unknown_webhook")
        assert refusal["detail"] == f"there is no webhook {webhook}"
    response = await mine.post(f"/v1/webhooks/{one['id']}/replay")
    assert response.json()["status"] == "pending"
    job = next(other["job"] for other in everything if other["account"] == "u2")
    assert await items(mine, f"?job={job}") == []


async def test_a_webhook_is_sent_again(finished: Site, conn: asyncpg.Connection) -> None:
    first = (await items(finished.admin))[0]
    await conn.execute(
        "update penstock.delivery set delivered_at = penstock.clock(), next_at = null"
        " where id = $1",
        UUID(first["id"]),
    )
    assert (await items(finished.admin, "?status=delivered"))[0]["id"] == first["id"]
    response = await finished.app_client.post(f"/v1/webhooks/{first['id']}/replay")
    assert response.status_code == 200
    assert (response.json()["status"], response.json()["delivered_at"]) == ("pending", None)


async def test_other_callers_are_refused(finished: Site) -> None:
    problem(await finished.anonymous.get("/v1/webhooks"), 401, "unauthorized")
    driver = finished.client(await finished.make_key("process"))
    problem(await driver.get("/v1/webhooks"), 403, "not_allowed")
    problem(await driver.post(f"/v1/webhooks/{uuid4()}/replay"), 403, "not_allowed")


@pytest.mark.parametrize("url", ["http://example.org/", "https://127.0.0.1/x", "https://10.0.0.1/"])
async def test_a_submit_with_a_private_address_is_refused(finished: Site, url: str) -> None:
    """C5"""
    body = {"kind": "f", "payload": {}, "webhook_url": url}
    for response in (
        await finished.app_client.post("/v1/jobs", json=body),
        await finished.app_client.post("/v1/jobs/batch", json={"jobs": [body]}),
    ):
        refusal = problem(response, 422, "address_not_allowed")
        assert refusal["field"].endswith("webhook_url")
