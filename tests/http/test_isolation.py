"""Two accounts: no route of the OpenAPI document shows one account anything of the other.

The test walks the document, so new routes are covered. A route whose parameters this file cannot
fill fails the test.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from support.http import kinds
from support.http.listening import listening
from support.http.site import Site, problem

ME, OTHER = "acme", "umbrella"
TOPIC = "shared-topic"
# In all data of the other account. Callers may see what they sent, so no id contains it.
CANARY = "c4n4ry"
BALANCE = 987_654_321
NOWHERE = f"http://127.0.0.1:1/{CANARY}"
STREAM = "text/event-stream"
GONE_OR_NOT_THEIRS = (403, 404)

# Open to everybody: they reveal nothing about accounts.
OPEN = {"GET /healthz", "GET /readyz"}
# Authenticated by the token of the job.
CALLBACKS = {"POST /v1/callbacks", "POST /v1/callbacks/{job_id}"}
# Two accounts may use the same topic: each sees its own jobs.
SHARED = {"GET /v1/topics/{topic}/events"}
# The routes that a token may use, and the permission that it needs.
TOKENS = {
    "GET /v1/jobs": "read",
    "GET /v1/jobs/{job_id}": "read",
    "POST /v1/jobs/{job_id}/cancel": "cancel",
    "GET /v1/jobs/{job_id}/events": "read",
    "GET /v1/batches/{batch_id}": "read",
    "POST /v1/batches/{batch_id}/cancel": "cancel",
    "GET /v1/batches/{batch_id}/events": "read",
    "GET /v1/topics/{topic}/events": "read",
    "GET /v1/accounts/{account_id}/events": "read",
    "GET /v1/accounts/{account}": "read",
    "GET /v1/accounts/{account}/ledger": "read",
    "GET /v1/uploads/{upload_id}": "read",
}
PROCESS = "POST /v1/queues/{name}/process"

BODIES: dict[str, Any] = {
    "POST /v1/jobs": {"kind": "mark", "payload": {"answer": "x"}, "topic": TOPIC},
    "POST /v1/jobs/batch": {"jobs": [{"kind": "mark", "payload": {"answer": "x"}}]},
    "POST /v1/tokens": {"job": "{job_id}"},
    "POST /v1/keys": {"kind": "account", "account": "{account}"},
    "POST /v1/keys/{key_id}/rotate": {},
    "POST /v1/queues/{name}/process": {"seconds": 1},
    "POST /v1/uploads": None,
    "POST /v1/accounts": {"id": "{account}"},
    "PATCH /v1/accounts/{account}": {"plan": "free"},
    "POST /v1/accounts/{account}/credits": {"amount": 5, "reason": "mine"},
    "POST /v1/accounts/{account}/deduct": {"amount": 5, "reason": "mine"},
    "POST /v1/accounts/{account}/refund": {"ref": "r1"},
    "PATCH /v1/queues/{name}": {"concurrency": 1},
    "POST /v1/queues/{name}/pause": {},
    "POST /v1/queues/{name}/resume": {},
    "POST /v1/callbacks/{job_id}": {"job_id": "{job_id}", "token": "1.x", "status": "succeeded"},
    "POST /v1/callbacks": [{"job_id": "{job_id}", "token": "1.x", "status": "succeeded"}],
}


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    parameters: Mapping[str, str]
    """Name and location."""
    has_body: bool
    secured: bool

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Owned:
    """The things of an account, by the name of the parameter."""

    ids: dict[str, str]
    jobs: list[str]

    def fill(self, template: Any) -> Any:
        match template:
            case str():
                return template.format(**self.ids)
            case dict():
                return {name: self.fill(value) for name, value in template.items()}
            case list():
                return [self.fill(one) for one in template]
        return template

    def filters(self) -> dict[str, str]:
        """For lists: the values of query parameters by their names."""
        return {
            "account": self.ids["account"],
            "topic": TOPIC,
            "batch": self.ids["batch_id"],
            "job": self.ids["job_id"],
        }


@pytest.fixture(autouse=True)
def private_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow NOWHERE, the address of the webhooks of these jobs."""
    monkeypatch.setenv("PENSTOCK_ALLOW_PRIVATE", "1")


async def furnish(site: Site, account: str, mark: str) -> Owned:
    """Create one of everything for an account, with `mark` in all its texts."""
    await site.make_account(account, credits=BALANCE if mark == CANARY else 1_000)
    key = await site.make_key("account", account)
    answer = {"answer": mark, "assignment": TOPIC}
    body = {"kind": "mark", "payload": answer, "account": account, "metadata": {"note": mark}}
    more = {"webhook_url": NOWHERE if mark == CANARY else "http://127.0.0.1:1/mine"}
    finished = await _post(site, "/v1/jobs", {**body, **more})
    failed = await _post(
        site, "/v1/jobs", {"kind": "refuse", "payload": {"why": mark}, "account": account}
    )
    await site.work()
    own = {name: value for name, value in body.items() if name != "account"}
    by_themselves = await site.client(key).post(
        "/v1/jobs",
        json={**own, "dedupe_key": "d1", "delay_seconds": 3600},
        headers={"Idempotency-Key": "k1"},
    )
    waiting = by_themselves.json()
    elsewhere = await _post(site, "/v1/jobs", {**body, "topic": "another", "delay_seconds": 3600})
    batch = await _post(site, "/v1/jobs/batch", {"jobs": [{**body, "delay_seconds": 3600}] * 2})
    sent = await site.app_client.post(
        "/v1/uploads", params={"account": account}, files={"file": ("a.txt", mark.encode())}
    )
    await site.engine.accounts.deduct(account, 5, ref=f"{account}-r1", reason=mark)
    [webhook] = (await site.admin.get("/v1/webhooks", params={"account": account})).json()["items"]
    return Owned(
        ids={
            "job_id": waiting["id"],
            "batch_id": batch["batch"],
            "upload_id": sent.json()["id"],
            "key_id": key.split("_")[2],
            "webhook_id": webhook["id"],
            "account": account,
            "account_id": account,
            "topic": TOPIC,
            "name": "line",
        },
        jobs=[waiting["id"], finished["id"], failed["id"], elsewhere["id"]],
    )


@dataclass(frozen=True, slots=True)
class Two:
    site: Site
    operations: list[Operation]
    mine: Owned
    other: Owned

    async def client(self, key: str) -> httpx.AsyncClient:
        return self.site.client(key, address=f"2001:db8:{uuid.uuid4().hex[:4]}::1")

    async def token(self, claims: dict[str, Any], *, account: str | None = ME) -> httpx.AsyncClient:
        """A token, made by a key of the account or of a backend."""
        maker = await self.site.account_client(account) if account else self.site.app_client
        made = await maker.post("/v1/tokens", json=claims)
        assert made.status_code == 201, made.text
        return await self.client(made.json()["token"])


@pytest.fixture
async def two(site: Site) -> AsyncIterator[Two]:
    kinds.declare(site)
    mine = await furnish(site, ME, "mine")
    other = await furnish(site, OTHER, CANARY)
    document = (await site.admin.get("/openapi.json")).json()
    before = await _state(site, other)
    yield Two(site, list(_operations(document)), mine, other)
    assert await _state(site, other) == before, "something of the other account has changed"


def _operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            yield Operation(
                method.upper(),
                path,
                {one["name"]: one["in"] for one in described.get("parameters", ())},
                "requestBody" in described,
                bool(described["security"]),
            )


async def call(
    client: httpx.AsyncClient,
    operation: Operation,
    owned: Owned,
    *,
    query: Mapping[str, str] | None = None,
) -> httpx.Response:
    """Call a route with the ids of `owned`. Of a stream the first piece is read."""
    unknown = [
        name
        for name, location in operation.parameters.items()
        if location == "path" and name not in owned.ids
    ]
    assert not unknown, f"{operation.label}: teach this file what {unknown} may be"
    taught = not operation.has_body or operation.label in BODIES
    assert taught, f"{operation.label}: teach this file a body in BODIES"
    body: dict[str, Any] = {}
    if operation.label == "POST /v1/uploads":
        body["files"] = {"file": ("b.txt", b"text")}
    elif operation.has_body:
        body["json"] = owned.fill(BODIES[operation.label])
    made = client.build_request(
        operation.method, operation.path.format(**owned.ids), params=query, **body
    )
    answer = await client.send(made, stream=True)
    if answer.headers.get("content-type", "").startswith(STREAM):
        async with asyncio.timeout(10):
            first = await anext(answer.aiter_raw())
        await answer.aclose()
        return httpx.Response(
            answer.status_code, headers=answer.headers, content=first, request=made
        )
    await answer.aread()
    await answer.aclose()
    return answer


def assert_nothing_seen(operation: Operation, answer: httpx.Response) -> None:
    seen = answer.text + str(answer.headers)
    for secret in (CANARY, str(BALANCE), str(BALANCE - 5)):
        assert secret not in seen, f"{operation.label} shows what is another's: {seen}"


async def attackers(two: Two) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    yield "key", await two.client(await two.site.make_key("account", ME))
    every = ["read", "cancel"]
    yield "token of the account", await two.token({"account": ME, "allow": every})
    yield "token of a job", await two.token({"job": two.mine.jobs[0], "allow": every})
    yield "token of the topic", await two.token({"topic": TOPIC, "allow": every})
    by_backend = {"account": ME, "allow": every}
    yield "token by a backend", await two.token(by_backend, account=None)


async def test_no_route_shows_or_changes_another_accounts_things(two: Two) -> None:
    """G14: an account's key and its tokens, on every route with every id of the other account."""
    async for name, client in attackers(two):
        for operation in two.operations:
            targets = [two.other]
            if "job_id" in operation.parameters:
                ids = two.other.ids
                targets = [Owned({**ids, "job_id": job}, []) for job in two.other.jobs]
            for target in targets:
                answer = await call(client, operation, target)
                assert_nothing_seen(operation, answer)
                message = f"{name}: {operation.label}: {answer.status_code} {answer.text[:500]}"
                named = "path" in operation.parameters.values()
                if operation.label in CALLBACKS:
                    assert answer.status_code == 401, message
                elif operation.label in SHARED:
                    assert answer.status_code in (200, 403), message
                elif named or operation.label == "POST /v1/tokens":
                    assert answer.status_code in GONE_OR_NOT_THEIRS, message


async def test_another_accounts_things_get_the_same_answer_as_unknown_ones(two: Two) -> None:
    """The same text, code and headers, except for the requested id."""
    client = await two.client(await two.site.make_key("account", ME))
    nobody = {
        "job_id": str(uuid.uuid4()),
        "batch_id": str(uuid.uuid4()),
        "upload_id": str(uuid.uuid4()),
        "webhook_id": str(uuid.uuid4()),
        "key_id": "nokey",
        "account": "nobody",
        "account_id": "nobody",
        "topic": TOPIC,
        "name": "line",
    }
    for operation in two.operations:
        if operation.label in SHARED or "path" not in operation.parameters.values():
            continue
        theirs = await call(client, operation, two.other)
        none = await call(client, operation, Owned(nobody, []))
        message = f"{operation.label}: {theirs.text} and {none.text}"
        for name, value in nobody.items():
            assert value != two.other.ids[name] or name in ("topic", "name")
        assert _without_ids(theirs, two.other.ids) == _without_ids(none, nobody), message


async def test_lists_have_only_the_accounts_own_things(two: Two) -> None:
    """With each query parameter that could name another account's things."""
    client = await two.client(await two.site.make_key("account", ME))
    known = two.other.filters()
    asked = 0
    for operation in two.operations:
        for name, location in operation.parameters.items():
            if location != "query" or operation.method != "GET" or name not in known:
                continue
            answer = await call(client, operation, two.mine, query={name: known[name]})
            assert_nothing_seen(operation, answer)
            if answer.status_code == 200 and name != "topic":
                assert answer.json()["items"] == [], f"{operation.label}?{name}: {answer.text}"
            elif answer.status_code != 200:
                assert answer.status_code in GONE_OR_NOT_THEIRS, answer.text
            asked += 1
    assert asked >= 6


async def test_idempotency_and_dedupe_keys_of_others_have_no_effect(two: Two) -> None:
    """Each account has its own keys; another account's upload is unknown."""
    client = await two.client(await two.site.make_key("account", "newcomer"))
    body = {"kind": "mark", "payload": {"answer": "x"}, "dedupe_key": "d1"}
    answer = await client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["id"] not in two.other.jobs
    assert answer.json()["account"] == "newcomer"
    theirs = {"kind": "mark", "payload": {"answer": {"upload": two.other.ids["upload_id"]}}}
    refused = await client.post("/v1/jobs", json=theirs)
    assert refused.status_code == 422
    batch = await client.post("/v1/jobs/batch", json={"jobs": [theirs]})
    assert batch.status_code == 422
    for made in (refused, batch):
        assert CANARY not in made.text


async def test_a_stream_of_a_shared_topic_has_only_the_accounts_own_jobs(two: Two) -> None:
    client = await two.client(await two.site.make_key("account", ME))
    job = two.mine.jobs[0]
    async with listening(client, f"/v1/topics/{TOPIC}/events") as heard:
        await heard.status("scheduled", job)
        extra = await _post(
            two.site,
            "/v1/jobs",
            {
                "kind": "mark",
                "payload": {"answer": CANARY, "assignment": TOPIC},
                "account": OTHER,
                "delay_seconds": 3600,
            },
        )
        await _post(two.site, f"/v1/jobs/{extra['id']}/cancel", None)
        await _post(two.site, f"/v1/jobs/{job}/cancel", None)
        await heard.status("cancelled", job)
    assert {event.data["account"] for event in heard.had if event.name == "job"} == {ME}
    assert CANARY not in str(heard.had)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("price", 0),
        ("priority", -5),
        ("account", ME),
        ("max_attempts", 2),
        ("timeout_seconds", 5),
    ],
)
async def test_an_accounts_key_may_not_set_reserved_fields(
    site: Site, field: str, value: Any
) -> None:
    kinds.declare(site)
    client = await site.account_client(ME)
    body = {"kind": "mark", "payload": {"answer": "x"}, field: value}
    refusal = problem(await client.post("/v1/jobs", json=body), 403, "not_allowed")
    assert refusal["field"] == field
    refusal = problem(
        await client.post("/v1/jobs/batch", json={"jobs": [body]}), 403, "not_allowed"
    )
    assert refusal["field"] == f"jobs.0.{field}"


async def test_an_accounts_key_may_not_change_its_plan_or_credits(two: Two) -> None:
    client = await two.client(await two.site.make_key("account", ME))
    before = (await client.get(f"/v1/accounts/{ME}")).json()
    for path, body in (
        (f"/v1/accounts/{ME}/credits", {"amount": 5, "reason": "please"}),
        (f"/v1/accounts/{ME}/deduct", {"amount": 5}),
        (f"/v1/accounts/{ME}/refund", {"ref": f"{ME}-r1"}),
        (f"/v1/accounts/{ME}/erase", None),
        ("/v1/accounts", {"id": "mine too"}),
        ("/v1/keys", {"kind": "admin"}),
    ):
        problem(await client.post(path, json=body), 403, "not_allowed")
    problem(await client.patch(f"/v1/accounts/{ME}", json={"plan": "pro"}), 403, "not_allowed")
    assert (await client.get(f"/v1/accounts/{ME}")).json() == before


async def test_a_process_key_drives_queues_and_nothing_else(two: Two) -> None:
    client = await two.client(await two.site.make_key("process"))
    for operation in two.operations:
        if not operation.secured:
            continue
        answer = await call(client, operation, two.other)
        assert_nothing_seen(operation, answer)
        expected = 200 if operation.label == PROCESS else 403
        assert answer.status_code == expected, f"{operation.label}: {answer.text}"


@pytest.mark.parametrize("allow", ["read", "cancel"])
async def test_a_token_does_what_it_allows_and_nothing_else(two: Two, allow: str) -> None:
    """A token of an account, on the account's own things: each route of the document."""
    client = await two.token({"account": ME, "allow": [allow]})
    for operation in two.operations:
        if not operation.secured:
            continue
        answer = await call(client, operation, two.mine)
        needs = TOKENS.get(operation.label)
        message = f"{operation.label}: {answer.status_code} {answer.text[:500]}"
        assert answer.is_success == (needs == allow), message
        assert answer.is_success or answer.status_code == 403, message


async def test_a_token_of_a_job_gives_access_to_that_job(two: Two) -> None:
    job, another = two.mine.jobs[0], two.mine.jobs[1]
    client = await two.token({"job": job, "allow": ["read", "cancel"]})
    assert (await client.get(f"/v1/jobs/{job}")).json()["id"] == job
    for operation in two.operations:
        if not operation.secured:
            continue
        answer = await call(client, operation, Owned({**two.mine.ids, "job_id": another}, []))
        message = f"{operation.label}: {answer.status_code} {answer.text[:500]}"
        assert answer.status_code in GONE_OR_NOT_THEIRS, message


async def test_a_token_of_a_topic_gives_access_to_the_jobs_of_that_topic(two: Two) -> None:
    inside, outside = two.mine.jobs[0], two.mine.jobs[3]
    client = await two.token({"topic": TOPIC, "allow": ["read", "cancel"]})
    assert (await client.get(f"/v1/jobs/{inside}")).json()["id"] == inside
    found = (await client.get("/v1/jobs", params={"limit": 1000})).json()["items"]
    assert {one["topic"] for one in found} == {TOPIC}
    assert {one["account"] for one in found} == {ME}
    for operation in two.operations:
        if not operation.secured or operation.label in (*SHARED, "GET /v1/jobs"):
            continue
        answer = await call(client, operation, Owned({**two.mine.ids, "job_id": outside}, []))
        message = f"{operation.label}: {answer.status_code} {answer.text[:500]}"
        assert answer.status_code in GONE_OR_NOT_THEIRS, message
    other_topic = await client.get("/v1/topics/another/events")
    problem(other_topic, 403, "not_allowed")


async def test_without_a_key_nothing_is_accessible(two: Two) -> None:
    """E14"""
    for operation in two.operations:
        for key in (None, "ps_admin_none_none"):
            client = two.site.client(key, address=f"2001:db8:{uuid.uuid4().hex[:4]}::1")
            answer = await call(client, operation, two.other)
            assert_nothing_seen(operation, answer)
            message = f"{operation.label}: {answer.status_code} {answer.text[:500]}"
            if operation.label in OPEN:
                assert answer.status_code == 200, message
            else:
                assert answer.status_code == 401, message


def _without_ids(answer: httpx.Response, ids: Mapping[str, str]) -> tuple[int, str, set[str]]:
    text = answer.text
    for value in {value for name, value in ids.items() if name not in ("topic", "name")}:
        text = text.replace(value, "ID")
    return answer.status_code, text, set(answer.headers)


async def _state(site: Site, owned: Owned) -> list[Any]:
    """All things of an account that a caller could have changed, as an operator sees them."""
    account = owned.ids["account"]
    found: list[Any] = []
    for path in (
        *(f"/v1/jobs/{job}" for job in owned.jobs),
        f"/v1/batches/{owned.ids['batch_id']}",
        f"/v1/accounts/{account}",
        f"/v1/accounts/{account}/ledger",
        f"/v1/keys?account={account}",
        f"/v1/webhooks?account={account}",
    ):
        answer = await site.admin.get(path)
        assert answer.status_code == 200, answer.text
        found.append(_still(answer.json()))
    upload = await site.admin.get(f"/v1/uploads/{owned.ids['upload_id']}")
    return [*found, upload.content]


def _still(found: Any) -> Any:
    """Without values that change without a call: positions, and the last use of a key."""
    moving = ("position", "eta_seconds", "waiting_for", "last_used_at", "submitted_last_hour")
    match found:
        case dict():
            return {name: _still(one) for name, one in found.items() if name not in moving}
        case list():
            return [_still(one) for one in found]
    return found


async def _post(site: Site, path: str, body: Any) -> dict[str, Any]:
    answer = await site.admin.post(path, json=body)
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found
