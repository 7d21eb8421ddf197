"""Submitting over HTTP: every answer of the contract's table (E1, E14, G9, G18)."""

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from support.factory import contents
from support.http import kinds
from support.http.site import Site, problem
from support.waiting import eventually

KEY = "Idempotency-Key"


@pytest.fixture(autouse=True)
def _kinds(site: Site) -> None:
    kinds.declare(site)


async def submit(client: httpx.AsyncClient, kind: str = "mark", **body: Any) -> httpx.Response:
    """Submit a job; the default `payload` is a valid one of the kind."""
    headers = body.pop("headers", {})
    body.setdefault("payload", {"answer": "a"})
    return await client.post("/v1/jobs", json={"kind": kind, **body}, headers=headers)


async def test_a_submit_returns_the_job_with_its_position(site: Site) -> None:
    """E1, G9: the answer is a queued job, with position and balance."""
    answer = await submit(site.app_client, account="u1", metadata={"a": 1}, topic="t")
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert job["status"] == "queued"
    assert job["position"] == 1
    assert (job["account"], job["topic"], job["metadata"]) == ("u1", "t", {"a": 1})
    assert (job["deduplicated"], job["replayed"], job["balance"]) == (False, False, 0)
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    await site.work()
    shown = (await site.app_client.get(answer.headers["location"])).json()
    assert (shown["status"], shown["result"]) == ("succeeded", {"points": 8})


async def test_every_field_of_the_contract_is_accepted(
    site: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOW_PRIVATE", "1")
    due = await site.clock.now() + timedelta(hours=1)
    answer = await submit(
        site.app_client,
        account="u1",
        priority=-5,
        run_at=due.isoformat(),
        dedupe_key="d",
        topic="t",
        price=0,
        max_attempts=9,
        timeout_seconds=1.5,
        expires_seconds=60,
        metadata={"m": 1},
        webhook_url="http://127.0.0.1:9/",
    )
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert (job["status"], job["priority"], job["max_attempts"]) == ("scheduled", -5, 9)
    assert (job["account"], job["topic"], job["metadata"]) == ("u1", "t", {"m": 1})
    assert datetime.fromisoformat(job["run_at"]) == due
    row = await conn.fetchrow(
        "select dedupe_key, timeout, expires_at - run_at as expires from penstock.job"
    )
    assert row
    assert tuple(row) == ("d", timedelta(seconds=1.5), timedelta(seconds=60))
    later = await submit(site.app_client, delay_seconds=3600)
    assert later.json()["status"] == "scheduled"


async def test_a_duplicate_of_a_live_job_is_answered_with_200(site: Site) -> None:
    first = await submit(site.app_client, "twin", payload={"key": "k"})
    again = await submit(site.app_client, "twin", payload={"key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["deduplicated"] is True


async def test_a_repetition_with_its_key_gets_the_same_answer(site: Site) -> None:
    """E1: the same status and id, with the present state, and marked as a repetition."""
    first = await submit(site.app_client, headers={KEY: "k"})
    await site.work()
    again = await submit(site.app_client, headers={KEY: "k"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["status"] == "succeeded"
    reused = await submit(site.app_client, payload={"answer": "other"}, headers={KEY: "k"})
    problem(reused, 422, "idempotency_key_reused")


async def test_a_deduplicated_first_answer_is_replayed_as_200(site: Site) -> None:
    await submit(site.app_client, "twin", payload={"key": "k"})
    for replayed in (None, "true"):
        answer = await submit(
            site.app_client, "twin", payload={"key": "k"}, headers={KEY: "second"}
        )
        assert answer.status_code == 200
        assert answer.headers.get("idempotent-replayed") == replayed


async def test_idempotency_keys_belong_to_their_holders(site: Site) -> None:
    """Two customers may choose the same one; two keys of one customer share it."""
    mine, mine_too = await site.account_client("u1"), await site.account_client("u1")
    theirs = await site.account_client("u2")
    first = await submit(mine, headers={KEY: "1"})
    assert (await submit(mine_too, headers={KEY: "1"})).json()["id"] == first.json()["id"]
    assert (await submit(theirs, headers={KEY: "1"})).json()["id"] != first.json()["id"]
    assert (await submit(site.admin, headers={KEY: "1"})).json()["id"] != first.json()["id"]


async def test_a_repetition_during_the_first_submit_waits_and_is_then_refused(
    site: Site, conn: asyncpg.Connection
) -> None:
    await submit(site.app_client)  # starts the server
    key = await site.make_key("app")
    client = site.client(key)
    row = await conn.fetchrow("select holder from penstock.find_key($1)", key.split("_")[2])
    assert row
    async with conn.transaction():
        await conn.execute(
            "insert into penstock.idempotency (scope, key, fingerprint, job_id, deduplicated,"
            " created_at) values ($1, 'k', '', gen_random_uuid(), false, now())",
            row["holder"],
        )
        late = await submit(client, headers={KEY: "k"})
        problem(late, 409, "idempotency_in_progress")
        assert late.headers["retry-after"] == "1"
        await conn.execute("delete from penstock.idempotency where key = 'k'")


@pytest.mark.parametrize(("bad", "status"), [("", 422), ("x" * 256, 422)])
async def test_an_invalid_idempotency_key_is_refused(site: Site, bad: str, status: int) -> None:
    refused = await submit(site.app_client, headers={KEY: bad})
    assert problem(refused, status, "invalid_job")["field"] == "idempotency_key"


async def test_a_refusal_for_missing_credits_has_the_amounts(site: Site) -> None:
    """402 with `balance` and `required`; after a grant it is accepted, with the new balance."""
    await site.make_account("u1", credits=1)
    refused = await submit(site.app_client, "priced", payload={}, account="u1")
    refusal = problem(refused, 402, "insufficient_credits")
    assert (refusal["balance"], refusal["required"]) == (1, 2)
    await site.engine.accounts.grant("u1", 4)
    taken = await submit(site.app_client, "priced", payload={}, account="u1")
    assert (taken.status_code, taken.json()["balance"]) == (201, 3)
    nobody = await submit(site.app_client, "priced", payload={})
    problem(nobody, 422, "account_required")


async def test_a_refusal_of_the_hourly_limit_has_the_next_time(site: Site) -> None:
    site.penstock.plan("few", per_hour=1)
    await site.make_account("u1", plan="few")
    assert (await submit(site.app_client, account="u1")).status_code == 201
    refused = await submit(site.app_client, account="u1")
    refusal = problem(refused, 429, "rate_limited")
    assert 1 <= int(refused.headers["retry-after"]) <= 3600
    assert refusal["next_at"]


async def test_an_unknown_kind_is_404_and_a_large_payload_413(site: Site) -> None:
    assert problem(await submit(site.app_client, "no"), 404, "unknown_kind")["field"] == "kind"
    large = await submit(site.app_client, payload={"answer": "x" * 1_100_000})
    assert problem(large, 413, "payload_too_large")["field"] == "payload"
    huge = await site.app_client.post("/v1/jobs", content=b"x" * 4_200_000)
    problem(huge, 413, "payload_too_large")


@pytest.mark.parametrize(
    ("kind", "payload", "field"),
    [
        ("mark", {}, "payload.answer"),
        ("mark", {"answer": 5}, "payload.answer"),
        ("mark", {"answer": "a", "nonsense": 1}, "payload.nonsense"),
        ("nested", {"answers": [{"text": "a"}, {"points": 2}]}, "payload.answers.1.text"),
        ("mark", {"answer": "a\0b"}, "payload"),
    ],
)
async def test_a_wrong_payload_is_refused_by_its_path(
    site: Site, kind: str, payload: dict[str, Any], field: str
) -> None:
    refusal = problem(await submit(site.app_client, kind, payload=payload), 422, "invalid_payload")
    assert refusal["field"] == field
    assert "index" not in refusal
    if "faults" in refusal:
        assert refusal["faults"][0]["field"] == field


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "invalid_job", "kind"),
        ({"kind": "mark"}, "invalid_payload", "payload"),
        ({"kind": "mark", "payload": []}, "invalid_payload", "payload"),
        ({"kind": "mark", "payload": None}, "invalid_payload", "payload"),
        ({"kind": 5, "payload": {}}, "invalid_job", "kind"),
        ({"priority": "5"}, "invalid_job", "priority"),
        ({"priority": 1001}, "invalid_job", "priority"),
        ({"delay_seconds": -1}, "invalid_job", "delay_seconds"),
        ({"timeout_seconds": 0}, "invalid_job", "timeout_seconds"),
        ({"run_at": "tomorrow"}, "invalid_job", "run_at"),
        ({"run_at": "2030-01-01T00:00:00"}, "invalid_job", "run_at"),
        ({"run_at": 1893456000}, "invalid_job", "run_at"),
        ({"run_at": "0001-01-01T00:00:00+14:00"}, "invalid_job", "run_at"),
        ({"run_at": "2100-01-01T00:00:00+02:00"}, "invalid_job", "run_at"),
        ({"kind": "x" * 101, "payload": {}}, "invalid_job", "kind"),
        ({"run_at": "2027-01-01T00:00:00Z", "delay_seconds": 1}, "invalid_job", "run_at"),
        ({"dedupe_key": ""}, "invalid_job", "dedupe_key"),
        ({"topic": "a\0b"}, "invalid_job", "topic"),
        ({"account": "x" * 201}, "invalid_job", "account"),
        ({"price": -1}, "invalid_job", "price"),
        ({"price": 10**13}, "invalid_job", "price"),
        ({"metadata": {"a": "\0"}}, "invalid_job", "metadata"),
        ({"metadata": []}, "invalid_job", "metadata"),
        ({"webhook_url": "http://169.254.169.254/"}, "address_not_allowed", "webhook_url"),
        # C2: internal columns are not fields of a body.
        ({"state": "succeeded"}, "invalid_job", "state"),
        ({"tenant_id": 1}, "invalid_job", "tenant_id"),
        ({"cost": 0}, "invalid_job", "cost"),
        ({"attempt": 3}, "invalid_job", "attempt"),
        ({"status": "failed"}, "invalid_job", "status"),
    ],
)
async def test_a_wrong_field_is_named_in_the_refusal(
    site: Site, body: dict[str, Any], code: str, field: str
) -> None:
    """C2, E14: strict forms, unknown fields too; nothing is stored."""
    if "kind" not in body and len(body) > 0:
        body = {"kind": "mark", "payload": {"answer": "a"}} | body
    refusal = problem(await site.app_client.post("/v1/jobs", json=body), 422, code)
    assert refusal["field"] == field
    assert field.split(".", maxsplit=1)[0] in refusal["detail"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"kind": "mark", "payload": {"answer": "\xff"}}', "invalid_json"),
        (b'{"kind": "mark", "payload": {"answer": "\\ud800"}}', "invalid_json"),
        (b'{"kind": "mark", "payload": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}", None),
        (b'{"kind": "mark", "payload": {"answer": NaN}}', "invalid_payload"),
        (b'{"kind": "foreign", "payload": {"n": NaN}}', "invalid_payload"),
        (b'{"kind": "foreign", "payload": {"n": 1e999}}', "invalid_payload"),
        (b'{"kind": "foreign", "payload": {"n": ' + b"9" * 5000 + b"}}", None),
        (b"[1]", "invalid_job"),
        (b"null", "invalid_job"),
    ],
)
async def test_invalid_json_is_422_and_never_500(
    site: Site, content: bytes, code: str | None
) -> None:
    """E14"""
    await kinds.declare_foreign(site)
    refused = await site.app_client.post("/v1/jobs", content=content)
    assert refused.status_code == 422, refused.text
    refusal = problem(refused, 422, code or refused.json()["code"])
    assert content or "empty" in refusal["detail"]


async def test_a_body_of_another_content_type_is_read_nevertheless(site: Site) -> None:
    taken = await site.app_client.post(
        "/v1/jobs",
        content=b'{"kind": "mark", "payload": {"answer": "a"}}',
        headers={"Content-Type": "text/plain"},
    )
    assert taken.status_code == 201


async def test_a_kind_of_another_app_is_checked_by_the_database(site: Site) -> None:
    await kinds.declare_foreign(site)
    taken = await submit(site.app_client, "foreign", payload={"anything": [1]})
    assert (taken.status_code, taken.json()["queue"]) == (201, "elsewhere")
    refused = problem(await submit(site.app_client, "coded", payload={}), 422, "kind_needs_code")
    assert refused["field"] == "topic"


async def test_computed_options_are_computed_by_the_server(site: Site) -> None:
    taken = await submit(site.app_client, "computed", payload={"n": 4})
    assert taken.json()["topic"] == "by-4"
    submitted = await submit(site.app_client, "computed", payload={"n": 4}, topic="said")
    assert submitted.json()["topic"] == "said"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("account", "u1"),
        ("account", "u2"),
        ("price", 0),
        ("priority", 0),
        ("max_attempts", 3),
        ("timeout_seconds", 60),
    ],
)
async def test_an_accounts_key_may_not_set_reserved_fields(
    site: Site, conn: asyncpg.Connection, field: str, value: object
) -> None:
    """G18, C2: not even to their present values; nothing is written."""
    mine = await site.account_client("u1")
    await mine.get("/v1/jobs")
    before = await contents(conn)
    body: dict[str, Any] = {field: value}
    refusal = problem(await submit(mine, **body), 403, "not_allowed")
    assert refusal["field"] == field
    after = await contents(conn)
    del before["penstock.api_key"], after["penstock.api_key"]  # the time of its last use
    assert after == before


async def test_an_accounts_job_is_its_own_whatever_the_payload_names(site: Site) -> None:
    """G14"""
    line = site.penstock.queues["line"]

    @site.penstock.job(queue=line, account="teacher")
    async def teach(teacher: str) -> None: ...

    mine = await site.account_client("u1")
    problem(await submit(mine, "teach", payload={"teacher": "u2"}), 403, "not_allowed")
    taken = await submit(mine, "teach", payload={"teacher": "u1"})
    assert (taken.status_code, taken.json()["account"]) == (201, "u1")
    backend = await submit(site.app_client, "teach", payload={"teacher": "u2"})
    assert backend.json()["account"] == "u2"


async def test_process_keys_and_tokens_submit_nothing(site: Site) -> None:
    process = site.client(await site.make_key("process"))
    problem(await submit(process), 403, "not_allowed")
    token = (await site.app_client.post("/v1/tokens", json={"account": "u1"})).json()["token"]
    problem(await submit(site.client(token)), 403, "not_allowed")
    problem(await submit(site.anonymous), 401, "unauthorized")


async def test_a_split_request_returns_all_its_jobs(site: Site) -> None:
    line = site.penstock.queues["line"]

    @site.penstock.job(queue=line, split=("images", 4))
    async def paint(images: int) -> int:
        return images

    job = (await submit(site.app_client, "paint", payload={"images": 8})).json()
    assert len(job["jobs"]) == 2
    assert job["jobs"][0] == job["id"]
    batch = await site.app_client.get(f"/v1/batches/{job['batch']}")
    assert batch.json()["total"] == 2


async def test_of_50_simultaneous_submits_with_one_key_one_creates_a_job(
    site: Site, conn: asyncpg.Connection
) -> None:
    """E1: a double click, a proxy that repeats."""
    answers = await asyncio.gather(
        *(submit(site.app_client, headers={KEY: "k"}) for _ in range(50))
    )
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    assert await conn.fetchval("select count(*) from penstock.job") == 1


async def test_idle_workers_are_notified_of_a_submit(site: Site, conn: asyncpg.Connection) -> None:
    await kinds.declare_foreign(site)
    heard: list[str] = []
    await conn.add_listener("penstock_job", lambda *notified: heard.append(notified[3]))
    for kind, queue in (("mark", "line"), ("mark", "line"), ("foreign", "elsewhere")):
        heard.clear()
        await submit(site.app_client, kind)

        async def notified(queue: str = queue) -> bool:
            await conn.fetchval("select 1")
            return queue in heard

        await eventually(notified, f"workers of {queue} are notified")


async def test_a_webhook_address_is_kept_with_a_new_job_only(
    site: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOW_PRIVATE", "1")
    url = "http://127.0.0.1:9/told"
    first = await submit(site.app_client, "twin", payload={"key": "k"}, webhook_url=url)
    assert first.status_code == 201, first.text
    again = await submit(site.app_client, "twin", payload={"key": "k"}, webhook_url=url + "2")
    assert again.status_code == 200
    rows = await conn.fetch("select job_id, url from penstock.job_webhook")
    assert [tuple(row) for row in rows] == [(UUID(first.json()["id"]), url)]
    await submit(site.app_client, headers={KEY: "w"}, webhook_url=url)
    other = await submit(site.app_client, headers={KEY: "w"}, webhook_url=url + "2")
    problem(other, 422, "idempotency_key_reused")
