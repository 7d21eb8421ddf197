"""Reading, cancelling and retrying jobs over HTTP."""

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from penstock.http.schemas import answers
from support.factory import claim, worker
from support.http import kinds
from support.http.answering import follows
from support.http.site import Site, problem


@pytest.fixture(autouse=True)
def _kinds(site: Site) -> None:
    kinds.declare(site)


async def make(client: httpx.AsyncClient, kind: str = "mark", **body: Any) -> str:
    body.setdefault("payload", {"answer": "a"})
    answer = await client.post("/v1/jobs", json={"kind": kind, **body})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


async def test_a_job_is_the_same_as_on_every_interface(site: Site) -> None:
    job = await make(site.app_client, account="u1")
    await site.work()
    shown = await site.app_client.get(f"/v1/jobs/{job}")
    assert shown.json() == await site.penstock.ticket(job).status()
    assert shown.json()["result"] == {"points": 8}
    follows(answers.Job, shown.json())


async def test_a_failed_job_has_its_error(site: Site) -> None:
    job = await make(site.app_client, "refuse", payload={"why": "not today"})
    await site.work()
    shown = (await site.app_client.get(f"/v1/jobs/{job}")).json()
    follows(answers.Job, shown)
    assert (shown["status"], shown["error"]["message"]) == ("failed", "not today")
    assert [one["outcome"] for one in shown["attempts"]] == ["failed"]


async def test_an_unchanged_job_is_not_sent_again(site: Site) -> None:
    """304 by ETag; another state, another tag. Retry-After until it has finished."""
    path = f"/v1/jobs/{await make(site.app_client)}"
    first = await site.app_client.get(path)
    assert 1 <= int(first.headers["retry-after"]) <= 30
    tag = first.headers["etag"]
    for header in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        same = await site.app_client.get(path, headers={"If-None-Match": header})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    await site.work()
    changed = await site.app_client.get(path, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag
    assert "retry-after" not in changed.headers


async def test_another_accounts_job_gets_the_same_answer_as_an_unknown_one(site: Site) -> None:
    """E7, G14: reading, cancelling and retrying reveal nothing about other accounts' jobs."""
    job = await make(site.app_client, account="u2")
    nobodys = await make(site.app_client)
    mine, theirs = await site.account_client("u1"), await site.account_client("u2")
    assert (await theirs.get(f"/v1/jobs/{job}")).status_code == 200
    refusals = set()
    for one in (job, nobodys, str(uuid4())):
        for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/retry")):
            answer = await mine.request(method, f"/v1/jobs/{one}{path}")
            refusals.add(str(problem(answer, 404, "unknown_job")).replace(one, "ID"))
    assert len(refusals) == 1
    assert (await theirs.get(f"/v1/jobs/{job}")).json()["status"] == "queued"
    problem(await site.anonymous.get(f"/v1/jobs/{job}"), 401, "unauthorized")
    problem(await site.app_client.get("/v1/jobs/7"), 404, "not_found")


async def test_a_waiting_job_is_cancelled_and_a_finished_one_is_not_changed(site: Site) -> None:
    job = await make(site.app_client)
    cancelled = await site.app_client.post(f"/v1/jobs/{job}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    done = await make(site.app_client)
    await site.work()
    before = (await site.app_client.get(f"/v1/jobs/{done}")).json()
    after = await site.app_client.post(f"/v1/jobs/{done}/cancel")
    assert (after.status_code, after.json()) == (200, before)


async def test_a_running_job_is_asked_to_stop(site: Site, conn: asyncpg.Connection) -> None:
    job = await make(site.app_client)
    await claim(conn, await worker(conn), "line")
    asked = (await site.app_client.post(f"/v1/jobs/{job}/cancel")).json()
    assert (asked["status"], asked["cancel_requested"]) == ("running", True)


async def test_a_finished_job_is_retried_as_a_new_one(site: Site) -> None:
    """201 with `retry_of`; the old one has `retried_by`; a second click gets the same job."""
    job = await make(site.app_client, "refuse", payload={"why": "no"})
    await site.work()
    again = await site.app_client.post(f"/v1/jobs/{job}/retry")
    assert again.status_code == 201
    new = again.json()
    follows(answers.RetriedJob, new)
    assert (new["retry_of"], new["deduplicated"], new["status"]) == (job, False, "queued")
    assert again.headers["location"] == f"/v1/jobs/{new['id']}"
    assert (await site.app_client.get(f"/v1/jobs/{job}")).json()["retried_by"] == new["id"]
    twice = await site.app_client.post(f"/v1/jobs/{job}/retry")
    assert (twice.status_code, twice.json()["id"]) == (200, new["id"])
    assert twice.json()["deduplicated"] is True


async def test_a_scheduled_job_runs_now_and_a_running_one_is_refused(
    site: Site, conn: asyncpg.Connection
) -> None:
    job = await make(site.app_client, delay_seconds=3600)
    now = await site.app_client.post(f"/v1/jobs/{job}/retry")
    assert (now.status_code, now.json()["id"], now.json()["status"]) == (200, job, "queued")
    await claim(conn, await worker(conn), "line")
    problem(await site.app_client.post(f"/v1/jobs/{job}/retry"), 409, "job_not_finished")


async def test_a_retry_is_paid_again(site: Site) -> None:
    await site.make_account("u1", credits=2)
    mine = await site.account_client("u1")
    job = await make(mine, "priced", payload={})
    await site.work()
    refusal = problem(await mine.post(f"/v1/jobs/{job}/retry"), 402, "insufficient_credits")
    assert (refusal["balance"], refusal["required"]) == (0, 2)
    await site.engine.accounts.grant("u1", 2)
    assert (await mine.post(f"/v1/jobs/{job}/retry")).status_code == 201


async def test_of_two_simultaneous_retries_one_creates_a_job(site: Site) -> None:
    job = await make(site.app_client)
    await site.work()
    both = await asyncio.gather(*(site.app_client.post(f"/v1/jobs/{job}/retry") for _ in range(2)))
    assert sorted(one.status_code for one in both) == [200, 201]
    assert len({one.json()["id"] for one in both}) == 1


async def test_every_answer_has_the_documented_form(site: Site) -> None:
    """C2: answers have the documented fields, and no internal columns."""
    await site.make_account("u1", credits=10)
    made = await site.app_client.post(
        "/v1/jobs", json={"kind": "priced", "payload": {}, "account": "u1"}
    )
    follows(answers.SubmittedJob, made.json())
    await site.work()
    page = (await site.app_client.get("/v1/jobs")).json()
    follows(answers.JobPage, page)
    batch = await site.app_client.post(
        "/v1/jobs/batch", json={"jobs": [{"kind": "mark", "payload": {"answer": "a"}}]}
    )
    follows(answers.AcceptedBatch, batch.json())
    shown = await site.app_client.get(f"/v1/batches/{batch.json()['batch']}")
    follows(answers.Batch, shown.json())
