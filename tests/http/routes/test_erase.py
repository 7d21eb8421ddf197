"""Erasing an account over HTTP: refused while it is busy, then a receipt, then nothing is left."""

import asyncpg

from support import factory
from support.http.site import Site, problem


async def test_an_erased_account_is_removed_with_everything_it_owned(site: Site) -> None:
    queue = site.penstock.queue("q")

    @site.penstock.job(queue=queue)
    async def mark(answer: str) -> str:
        return answer

    own = await site.account_client("u1")
    done = (await own.post("/v1/jobs", json={"kind": "mark", "payload": {"answer": "a"}})).json()
    await site.work()
    waits = (await own.post("/v1/jobs", json={"kind": "mark", "payload": {"answer": "b"}})).json()
    answer = await site.admin.post("/v1/accounts/u1/erase")
    assert answer.status_code == 200, answer.text
    receipt = answer.json()
    assert receipt.items() >= {"jobs": 2, "keys": 1, "uploads": 0, "webhooks": 0}.items()
    assert receipt["pseudonym"].startswith("erased-")
    assert receipt["at"].endswith("Z")
    assert "u1" not in answer.text
    for job in (done, waits):
        problem(await site.admin.get(f"/v1/jobs/{job['id']}"), 404, "unknown_job")
    problem(await site.admin.get("/v1/accounts/u1"), 404, "unknown_account")
    problem(await site.admin.post("/v1/accounts/u1/erase"), 404, "unknown_account")


async def test_its_keys_are_refused_from_the_first_call_on(site: Site) -> None:
    key = await site.make_key("account", "u1")
    await site.admin.post("/v1/accounts/u1/erase")
    problem(await site.client(key).get("/v1/accounts/u1"), 401, "unauthorized")


async def test_an_account_with_running_jobs_is_busy_until_they_have_finished(
    site: Site, conn: asyncpg.Connection
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn, account="u1")
    started = await factory.claim(conn, worker)
    answer = await site.admin.post("/v1/accounts/u1/erase")
    refusal = problem(answer, 409, "account_busy")
    assert answer.headers["retry-after"] == "10"
    assert (refusal["running"], refusal["retry_after"]) == (1, 10)
    assert (await factory.read(conn, started[0]["id"]))["cancel_requested"]
    await factory.finish(conn, worker, started, "cancelled")
    assert (await site.admin.post("/v1/accounts/u1/erase")).json()["jobs"] == 1


async def test_only_operators_may_erase(site: Site) -> None:
    own = await site.account_client("u1")
    problem(await site.app_client.post("/v1/accounts/u1/erase"), 403, "not_allowed")
    problem(await own.post("/v1/accounts/u1/erase"), 403, "not_allowed")
    problem(await site.anonymous.post("/v1/accounts/u1/erase"), 401, "unauthorized")
