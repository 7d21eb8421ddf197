"""Batches over HTTP: many jobs, all or none, in order, with their totals."""

from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from penstock import server
from support.http import kinds
from support.http.site import Site, problem


@pytest.fixture(autouse=True)
def _kinds(site: Site) -> None:
    kinds.declare(site)


async def submit(client: httpx.AsyncClient, jobs: list[dict[str, Any]]) -> httpx.Response:
    return await client.post("/v1/jobs/batch", json={"jobs": jobs})


def mark(answer: str = "a", **options: Any) -> dict[str, Any]:
    return {"kind": "mark", "payload": {"answer": answer}, **options}


async def test_a_batch_is_accepted_in_order_with_its_duplicates(site: Site) -> None:
    jobs = [mark(), {"kind": "twin", "payload": {"key": "k"}}] * 2
    answer = await submit(site.app_client, jobs)
    assert answer.status_code == 201, answer.text
    submitted = answer.json()
    assert (submitted["accepted"], submitted["deduplicated"]) == (3, 1)
    assert [one["deduplicated"] for one in submitted["items"]] == [False, False, False, True]
    assert submitted["items"][3]["id"] == submitted["items"][1]["id"]
    assert {one["status"] for one in submitted["items"]} == {"queued"}
    await site.work()
    seen = (await site.app_client.get(f"/v1/batches/{submitted['batch']}")).json()
    assert (seen["id"], seen["total"], seen["succeeded"]) == (submitted["batch"], 3, 3)
    assert seen["progress"]["done"] == 3
    assert [one["id"] for one in seen["items"]] == [one["id"] for one in submitted["items"][:3]]
    assert all("attempts" not in one for one in seen["items"])


async def test_only_duplicates_make_no_batch(site: Site) -> None:
    await submit(site.app_client, [{"kind": "twin", "payload": {"key": "k"}}])
    submitted = (await submit(site.app_client, [{"kind": "twin", "payload": {"key": "k"}}])).json()
    assert (submitted["batch"], submitted["accepted"], submitted["deduplicated"]) == (None, 0, 1)


async def test_each_job_has_its_own_options(site: Site) -> None:
    await kinds.declare_foreign(site)
    submitted = await submit(
        site.app_client,
        [
            mark(account="u1", priority=5, metadata={"n": 1}, topic="t"),
            {"kind": "computed", "payload": {"n": 3}, "delay_seconds": 60},
            {"kind": "foreign", "payload": {"free": True}, "max_attempts": 7},
            {"kind": "computed", "payload": {"n": 3}, "topic": "said"},
        ],
    )
    assert submitted.status_code == 201, submitted.text
    seen = (await site.app_client.get(f"/v1/batches/{submitted.json()['batch']}")).json()["items"]
    assert [one["topic"] for one in seen] == ["t", "by-3", None, "said"]
    assert [one["account"] for one in seen] == ["u1", None, None, None]
    assert [one["status"] for one in seen] == ["queued", "scheduled", "queued", "queued"]
    assert (seen[0]["priority"], seen[0]["metadata"], seen[2]["max_attempts"]) == (5, {"n": 1}, 7)


@pytest.mark.parametrize(
    ("bad", "status", "code", "field"),
    [
        ({"kind": "mark", "payload": {"answer": 1}}, 422, "invalid_payload", "payload.answer"),
        ({"kind": "mark", "payload": {}}, 422, "invalid_payload", "payload.answer"),
        ({"kind": "mark"}, 422, "invalid_payload", "payload"),
        ({"kind": "no", "payload": {}}, 404, "unknown_kind", "kind"),
        ({"kind": "coded", "payload": {}}, 422, "kind_needs_code", "topic"),
        (mark(priority="5"), 422, "invalid_job", "priority"),
        (mark(priority=2000), 422, "invalid_job", "priority"),
        (mark(topic="\0"), 422, "invalid_job", "topic"),
        (mark(dedupe_key=""), 422, "invalid_job", "dedupe_key"),
        (mark(nonsense=1), 422, "invalid_job", "nonsense"),
        (mark(metadata={"a": "\0"}), 422, "invalid_job", "metadata"),
        ({"kind": "foreign", "payload": {"a": "\0"}}, 422, "invalid_payload", "payload"),
        (mark(webhook_url="ftp://a"), 422, "address_not_allowed", "webhook_url"),
    ],
)
async def test_one_wrong_job_refuses_all_and_is_named(  # noqa: PLR0917
    site: Site,
    conn: asyncpg.Connection,
    bad: dict[str, Any],
    status: int,
    code: str,
    field: str,
) -> None:
    """`jobs.17.payload.answer`, and the index; nothing is stored."""
    await kinds.declare_foreign(site)
    refused = await submit(site.app_client, [mark()] * 17 + [bad, mark()])
    refusal = problem(refused, status, code)
    assert refusal["field"] == f"jobs.17.{field}"
    assert refusal["index"] == 17
    assert await conn.fetchval("select count(*) from penstock.job") == 0


async def test_the_whole_batch_is_paid_or_nothing_is_queued(
    site: Site, conn: asyncpg.Connection
) -> None:
    await site.make_account("u1", credits=5)
    jobs = [{"kind": "priced", "payload": {}, "account": "u1"}] * 3
    refusal = problem(await submit(site.app_client, jobs), 402, "insufficient_credits")
    assert refusal["required"] >= 2
    assert await conn.fetchval("select count(*) from penstock.job") == 0
    assert (await submit(site.app_client, jobs[:2])).status_code == 201


async def test_ten_thousand_jobs_are_accepted_and_one_more_is_not(site: Site) -> None:
    jobs = [mark()] * 10_000
    taken = await submit(site.app_client, jobs)
    assert (taken.status_code, taken.json()["accepted"]) == (201, 10_000)
    refusal = problem(await submit(site.app_client, [*jobs, mark()]), 413, "batch_too_large")
    assert refusal["field"] == "jobs"
    none = problem(await submit(site.app_client, []), 422, "invalid_job")
    assert none["field"] == "jobs"
    batch = f"/v1/batches/{taken.json()['batch']}"
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await site.app_client.get(batch, params={"limit": 1000, **cursor})).json()
        assert (page["total"], page["queued"]) == (10_000, 10_000)
        found += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found == [one["id"] for one in taken.json()["items"]]
    cancelled = (await site.app_client.post(f"{batch}/cancel")).json()
    assert (cancelled["status"], cancelled["cancelled"]) == ("cancelled", 10_000)


async def test_an_account_sees_a_batch_if_all_its_jobs_are_its_own(site: Site) -> None:
    """G14: another account's batch, a mixed one and an unknown one get the same 404."""
    mine, theirs = await site.account_client("u1"), await site.account_client("u2")
    own = (await submit(mine, [mark(), mark()])).json()["batch"]
    mixed = (await submit(site.app_client, [mark(account="u1"), mark(account="u2")])).json()[
        "batch"
    ]
    assert (await mine.get(f"/v1/batches/{own}")).json()["account"] == "u1"
    for client, batch in ((theirs, own), (mine, mixed), (mine, uuid4())):
        refusal = problem(await client.get(f"/v1/batches/{batch}"), 404, "unknown_batch")
        assert refusal["detail"] == f"there is no batch {batch}"
        problem(await client.post(f"/v1/batches/{batch}/cancel"), 404, "unknown_batch")
    assert (await site.app_client.get(f"/v1/batches/{mixed}")).status_code == 200
    assert (await mine.post(f"/v1/batches/{own}/cancel")).json()["cancelled"] == 2


async def test_an_accounts_key_may_set_nothing_reserved_in_a_batch(site: Site) -> None:
    """G18: no price, priority or other account."""
    mine = await site.account_client("u1")
    refusal = problem(await submit(mine, [mark(), mark(price=0)]), 403, "not_allowed")
    assert refusal["field"] == "jobs.1.price"
    taken = await submit(mine, [mark(), {"kind": "foreign", "payload": {}}])
    problem(taken, 404, "unknown_kind")
    taken = await submit(mine, [mark()])
    page = (await mine.get("/v1/jobs", params={"batch": taken.json()["batch"]})).json()
    assert [one["account"] for one in page["items"]] == ["u1"]


async def test_an_idempotency_key_is_refused_for_a_batch(site: Site) -> None:
    refused = await site.app_client.post(
        "/v1/jobs/batch", json={"jobs": [mark()]}, headers={"Idempotency-Key": "k"}
    )
    assert problem(refused, 422, "invalid_job")["field"] == "idempotency_key"


async def test_tokens_for_an_account_open_its_batches(site: Site) -> None:
    mine = await site.account_client("u1")
    batch = (await submit(mine, [mark()])).json()["batch"]
    token = (await mine.post("/v1/tokens", json={"account": "u1"})).json()["token"]
    browser = site.client(token)
    assert (await browser.get(f"/v1/batches/{batch}")).status_code == 200
    problem(await browser.post(f"/v1/batches/{batch}/cancel"), 403, "not_allowed")
    narrow = (await mine.post("/v1/tokens", json={"topic": "a1"})).json()["token"]
    problem(await site.client(narrow).get(f"/v1/batches/{batch}"), 403, "not_allowed")


async def test_a_large_batch_may_take_longer_than_a_usual_call(
    site: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were cut off at the usual deadline, no repetition would ever succeed."""
    monkeypatch.setattr(server, "ANSWER_SECONDS", 0.4)
    submitted = (await submit(site.app_client, [mark()])).json()
    await conn.execute(
        "create function penstock.slow() returns trigger language plpgsql"
        " as $$ begin perform pg_sleep(0.8); return null; end $$;"
        "create trigger slow after delete on penstock.job execute function penstock.slow();"
        "create trigger slow_too after insert on penstock.job execute function penstock.slow()"
    )
    assert (await submit(site.app_client, [mark()] * 2)).status_code == 201
    plain = await site.app_client.post("/v1/jobs", json=mark())
    assert plain.status_code == 503
    cancelled = await site.app_client.post(f"/v1/batches/{submitted['batch']}/cancel")
    assert (cancelled.status_code, cancelled.json()["cancelled"]) == (200, 1)
