"""Callbacks over HTTP: authentication, effects, and refusals."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest
from standardwebhooks import Webhook

from penstock import Job
from penstock.security import callback_token, signature
from penstock.security.roots import Roots
from penstock.security.secret import Secret
from penstock.security.signature import Signer
from support import factory
from support.clock import Clock
from support.http.site import SECRET, Site, problem
from support.shapes import Connect
from support.signing import NEXT_SECRET
from support.waiting import eventually

ROOTS = Roots((SECRET,))
SHARED = "the-secret-of-this-kind"


_ANYONE_BLOCKED = """
select count(*) > 0 from pg_stat_activity
where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0
"""


class Jobs:
    """Dispatched jobs, and a function that calls back about them."""

    def __init__(self, site: Site, conn: asyncpg.Connection, worker: int) -> None:
        self.site = site
        self.conn = conn
        self.worker = worker
        self.client = site.anonymous

    async def handed(self, kind: str = "f", **fields: Any) -> UUID:
        job = await factory.submit(self.conn, kind, payload={"n": 1}, **fields)
        await self.start(job)
        return job

    async def start(self, job: UUID) -> None:
        [start] = await factory.claim(self.conn, self.worker, "q")
        assert start["id"] == job
        token = callback_token.make(ROOTS, job, start["attempt"])
        assert await factory.hand_over(self.conn, self.worker, start, token) == "done"

    def token(self, job: UUID, attempt: int = 1) -> str:
        return callback_token.make(ROOTS, job, attempt)

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(f"/v1/callbacks{path}", content=content, headers=headers)

    async def say(self, job: UUID, attempt: int = 1, **fields: Any) -> str:
        """Call back with the token of the attempt; return the outcome."""
        body = {"job_id": str(job), "token": self.token(job, attempt), **fields}
        response = await self.post(f"/{job}", body)
        assert response.status_code == 200, response.text
        [one] = response.json()["results"]
        assert one["job_id"] == str(job)
        outcome: str = one["outcome"]
        return outcome

    async def read(self, job: UUID) -> dict[str, Any]:
        return await factory.read(self.conn, job)


@pytest.fixture
async def jobs(site: Site, conn: asyncpg.Connection) -> Jobs:
    queue = site.penstock.queue("q", concurrency=3)

    @site.penstock.job(queue=queue, name="f")
    async def plain(n: int) -> None: ...

    @site.penstock.job(queue=queue, name="own")
    async def own(n: int) -> None: ...

    assert plain.name
    own.handler.signer = Signer(Secret(SHARED))
    await site.start()
    return Jobs(site, conn, await factory.worker(conn, lease="2 hours"))


def signed(body: bytes, signer: Signer, *, at: float | None = None, name: str = "m1") -> Any:
    return dict(signature.signed(signer, name, int(time.time() if at is None else at), body))


async def test_each_way_to_authenticate(jobs: Jobs) -> None:
    """M13, R-S28: the token as bearer or in the body, a signature, the kind's own secret."""
    done: dict[str, Any] = {"status": "succeeded", "result": 7}
    first = await jobs.handed()
    response = await jobs.post(f"/{first}", done, authorization=f"Bearer {jobs.token(first)}")
    assert response.json() == {"results": [{"job_id": str(first), "outcome": "accepted"}]}
    second = await jobs.handed()
    assert await jobs.say(second, **done) == "accepted"
    third = await jobs.handed()
    body = json.dumps({**done, "attempt": 1, "job_id": str(third)}).encode()
    headers = signed(body, signature.of_functions(ROOTS))
    response = await jobs.post(f"/{third}", body, **headers)
    assert response.json()["results"][0]["outcome"] == "accepted"
    fourth = await jobs.handed("own")
    body = json.dumps({**done, "attempt": 1, "job_id": str(fourth)}).encode()
    headers = signed(body, Signer(Secret(SHARED)), name="m2")
    response = await jobs.post(f"/{fourth}", body, **headers)
    assert response.json()["results"][0]["outcome"] == "accepted"
    fifth = await jobs.handed("own")
    body = json.dumps({**done, "attempt": 1}).encode()
    response = await jobs.post(f"/{fifth}", body, authorization=f"Bearer {SHARED}")
    assert response.json()["results"][0]["outcome"] == "accepted"
    for job in (first, second, third, fourth, fifth):
        shown = await jobs.read(job)
        assert (shown["status"], shown["result"]) == ("succeeded", 7)


async def test_a_signature_by_the_reference_library_is_accepted(jobs: Jobs) -> None:
    job = await jobs.handed()
    [secret] = signature.of_functions(ROOTS).written
    body = json.dumps({"status": "succeeded", "token": jobs.token(job)})
    now = datetime.now(UTC)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign("msg_1", now, body),
    }
    response = await jobs.post(f"/{job}", body.encode(), **headers)
    assert response.json()["results"][0]["outcome"] == "accepted"


async def test_a_caller_without_proof_changes_nothing(jobs: Jobs, conn: asyncpg.Connection) -> None:
    """M13, R-S28: forged, replayed, altered, too old, of another kind, of another job."""
    job = await jobs.handed()
    other = await jobs.handed("own")
    before = await factory.contents(conn)
    done = {"status": "succeeded", "attempt": 1}
    body = json.dumps(done).encode()
    good = signature.of_functions(ROOTS)
    own = Signer(Secret(SHARED))
    stranger = Signer(Secret("some other secret"))
    forged = base64.urlsafe_b64encode(hmac.digest(b"k", b"x", hashlib.sha256)).decode()
    refused: list[tuple[UUID, Any, dict[str, str]]] = [
        (job, done, {}),
        (job, {**done, "token": "1." + forged.rstrip("=")}, {}),
        (job, {**done, "token": jobs.token(other)}, {}),
        (job, done, {"authorization": f"Bearer {jobs.token(other)}"}),
        (job, done, {"authorization": f"Bearer {SHARED}"}),  # the secret of another kind
        (job, done, {"authorization": "Bearer "}),
        (job, body, signed(body, own)),
        (other, body, signed(body, stranger)),
        (other, body, signed(body, good)),  # other functions may know it; this kind has its own
        (job, done, {"authorization": f"Bearer {good.written[0]}"}),
        (job, body, signed(body, good, at=time.time() - 301)),
        (job, body, signed(body, good, at=time.time() + 302)),
        (job, body + b" ", signed(body, good)),
        (job, body, {**signed(body, good), "webhook-id": "m9"}),
        (job, body, {**signed(body, good), "webhook-signature": "v1,AAAA"}),
        (job, body, {**signed(body, good), "webhook-timestamp": "x"}),
        (job, b"not json", {}),
        (job, b"[]", {}),
    ]
    for number, (about, fields, headers) in enumerate(refused):
        response = await jobs.post(f"/{about}", fields, **headers)
        assert response.status_code == 401, (number, response.text)
        problem(response, 401, "unauthorized")
    late = await jobs.post(f"/{job}", body, **signed(body, good, at=time.time() - 86_400))
    assert "set both clocks" in late.json()["hint"]
    for fields in ([{**done, "job_id": str(job)}], [], {}, "x", b"{", [{"job_id": str(job)}, 3]):
        problem(await jobs.post("", fields), 401, "unauthorized")
    assert await factory.contents(conn) == before


async def test_a_signed_message_takes_effect_once(jobs: Jobs, conn: asyncpg.Connection) -> None:
    """R-S28: the same bytes again have no effect, even at the same moment."""
    job = await jobs.handed()
    fields = {"job_id": str(job), "attempt": 1, "status": "progress", "progress": {"done": 1}}
    body = json.dumps(fields).encode()
    headers = signed(body, signature.of_functions(ROOTS))
    answers = await asyncio.gather(*(jobs.post(f"/{job}", body, **headers) for _ in range(5)))
    assert sorted(one.status_code for one in answers) == [200, 401, 401, 401, 401]
    version = (await jobs.read(job))["version"]
    problem(await jobs.post(f"/{job}", body, **headers), 401, "callback_replayed")
    assert (await jobs.read(job))["version"] == version
    headers = signed(body, signature.of_functions(ROOTS), name="m2")
    assert (await jobs.post(f"/{job}", body, **headers)).status_code == 200
    assert await conn.fetchval("select count(*) from penstock.seen_callback") == 2


async def test_a_signed_body_names_its_attempt(jobs: Jobs) -> None:
    """R-S29: or it would settle any current attempt of any job to whose address it is sent."""
    job = await jobs.handed()
    done: dict[str, Any] = {"status": "succeeded"}
    for fields, missing in (({}, "attempt"), ({"attempt": 1}, "job_id")):
        body = json.dumps({**done, **fields}).encode()
        headers = signed(body, signature.of_functions(ROOTS))
        response = await jobs.post(f"/{job}", body, **headers)
        [one] = response.json()["results"]
        assert (one["outcome"], one["message"]) == ("invalid", f"{missing} is missing")
    body = json.dumps({**done, "attempt": 1, "job_id": str(await jobs.handed())}).encode()
    headers = signed(body, signature.of_functions(ROOTS))
    problem(await jobs.post(f"/{job}", body, **headers), 422, "invalid_callback")
    assert (await jobs.read(job))["status"] == "awaiting"


async def test_an_array_of_results_resolves_each_job(jobs: Jobs) -> None:
    """M7: each by its own token; one without a valid token is invalid, without effect on others."""
    first, second, third = [await jobs.handed() for _ in range(3)]
    gone = uuid4()
    items = [
        {"job_id": str(first), "token": jobs.token(first), "status": "succeeded", "result": [1]},
        {"job_id": str(second), "token": jobs.token(third), "status": "succeeded"},
        {"job_id": str(third), "token": jobs.token(third), "status": "failed"},
        {"job_id": str(gone), "token": jobs.token(gone), "status": "succeeded"},
        {"job_id": str(first), "token": jobs.token(first), "status": "succeeded", "result": [2]},
        {"job_id": "nonsense", "status": "succeeded"},
        7,
        {"job_id": str(second), "token": jobs.token(second), "status": "odd"},
    ]
    response = await jobs.post("", items)
    results = response.json()["results"]
    assert [one["outcome"] for one in results] == [
        *("accepted", "invalid", "accepted", "unknown", "duplicate", "invalid", "invalid"),
        "invalid",
    ]
    assert [one["job_id"] for one in results] == [
        *(str(one) for one in (first, second, third, gone, first)),
        *("nonsense", None, str(second)),
    ]
    assert (await jobs.read(first))["result"] == [1]
    assert (await jobs.read(second))["status"] == "awaiting"
    # An array with one item, at the address of one job.
    item = {"token": jobs.token(second), "status": "succeeded"}
    response = await jobs.post(f"/{second}", [item])
    assert response.json()["results"][0]["outcome"] == "accepted"
    problem(await jobs.post(f"/{second}", [item, item]), 401, "unauthorized")


async def test_a_body_about_another_job_is_refused(jobs: Jobs) -> None:
    first, second = [await jobs.handed() for _ in range(2)]
    body = {"job_id": str(second), "token": jobs.token(first), "status": "succeeded"}
    problem(await jobs.post(f"/{first}", body), 422, "invalid_callback")
    bearer = f"Bearer {jobs.token(first)}"
    body = {"job_id": str(second), "status": "succeeded"}
    problem(await jobs.post(f"/{first}", body, authorization=bearer), 422, "invalid_callback")
    for job in (first, second):
        assert (await jobs.read(job))["status"] == "awaiting"


async def test_an_older_attempt_is_stale_and_kept_for_people(
    jobs: Jobs, conn: asyncpg.Connection, clock: Clock
) -> None:
    """R-S29: a callback of attempt 1 does not settle attempt 2."""
    job = await jobs.handed()
    await clock.advance("10m")
    await factory.recover(conn)
    await clock.advance("10m")
    await jobs.start(job)
    assert await jobs.say(job, 1, status="succeeded", result="old") == "stale"
    assert (await jobs.read(job))["status"] == "awaiting"
    kept = await conn.fetchval("select result from penstock.late_result where job_id = $1", job)
    assert kept == "old"
    assert await jobs.say(job, 2, status="succeeded", result="new") == "accepted"
    assert await jobs.say(job, 2, status="succeeded", result="newer") == "duplicate"
    assert await jobs.say(job, 1, status="failed") == "stale"
    assert (await jobs.read(job))["result"] == "new"
    [first, _] = (await jobs.read(job))["attempts"]
    assert first["error_class"] == "no_callback"


@pytest.mark.parametrize(
    ("error", "status", "cls", "retryable", "counted"),
    [
        (None, "scheduled", "provider_error", True, 1),
        ({"message": "out of memory"}, "scheduled", "provider_error", True, 1),
        ({"class": "odd", "message": "x"}, "scheduled", "provider_error", True, 1),
        ({"class": ["odd"], "message": "x"}, "scheduled", "provider_error", True, 1),
        ({"class": "no_callback"}, "scheduled", "provider_error", True, 1),
        ({"class": "bad_output"}, "scheduled", "bad_output", True, 1),
        ({"class": "bad_output", "retryable": False}, "failed", "bad_output", False, 1),
        ({"class": "refused", "message": "no"}, "failed", "refused", False, 1),
        ({"class": "refused", "retryable": True}, "scheduled", "refused", True, 1),
        ({"class": "overloaded", "message": "later"}, "scheduled", "overloaded", True, 0),
    ],
)
async def test_a_reported_failure_means_the_same_as_in_a_reply(  # noqa: PLR0917
    jobs: Jobs, error: Any, status: str, cls: str, retryable: bool, counted: int
) -> None:
    """F5: a provider's failure costs nothing; a final one fails the job at once."""
    job = await jobs.handed()
    assert await jobs.say(job, status="failed", error=error) == "accepted"
    shown = await jobs.read(job)
    assert (shown["status"], shown["failures"]) == (status, counted)
    assert (shown["error"]["class"], shown["error"]["retryable"]) == (cls, retryable)
    assert shown["error"]["message"]
    assert "circuit" not in shown["error"]


async def test_units_and_usage_come_with_the_result(
    jobs: Jobs, site: Site, conn: asyncpg.Connection
) -> None:
    """G4: three of four images are charged, one is refunded."""
    price = {"per": "n", "by": "q", "standard": 1}
    await conn.execute("select penstock.declare_kind('priced', 'q', $1)", {"price": price})
    await site.make_account("u1", credits=10)
    job = await factory.submit(conn, "priced", payload={"n": 4, "q": "standard"}, account="u1")
    await jobs.start(job)
    body: dict[str, Any] = {
        "units": 3,
        "usage": {"tokens": 812, "odd": "x", "seconds": 1.5},
        "result": {},
    }
    assert await jobs.say(job, status="succeeded", **body) == "accepted"
    shown = await jobs.read(job)
    assert shown["credits"] == {"reserved": 4, "charged": 3, "refunded": 1}
    assert shown["usage"] == {"tokens": 812, "seconds": 1.5}


async def test_progress_is_shown_and_bound_to_its_attempt(jobs: Jobs) -> None:
    job = await jobs.handed()
    body: dict[str, Any] = {
        "progress": {"done": 1, "total": 4, "partial": {"image": 1}},
        "stage": "DRAWING",
    }
    assert await jobs.say(job, status="progress", **body) == "accepted"
    shown = await jobs.read(job)
    assert (shown["status"], shown["stage"]) == ("awaiting", "DRAWING")
    assert shown["progress"] == {"done": 1, "total": 4, "partial": {"image": 1}}
    assert await jobs.say(job, status="progress") == "accepted"
    assert await jobs.say(job, status="succeeded") == "accepted"
    assert await jobs.say(job, status="progress", **body) == "duplicate"


DEEP = b"[" * 50_000 + b"]" * 50_000


@pytest.mark.parametrize(
    "body",
    [
        b'{"status": "succeeded", "result": "\\u0000"}',
        b'{"status": "succeeded", "result": {"\\u0000": 1}}',
        b'{"status": "succeeded", "result": "\\ud800"}',
        b'{"status": "succeeded", "result": 1e400}',
        b'{"status": "succeeded", "result": [1' + b"0" * 400 + b"]}",
        b'{"status": "succeeded", "result": ' + b"[" * 70 + b"]" * 70 + b"}",
        b'{"status": "succeeded", "result": ' + b"[" * 600 + b"]" * 600 + b"}",
        b'{"status": "succeeded", "result": "' + b"x" * 1_100_000 + b'"}',
        b'{"status": "succeeded", "units": -1}',
        b'{"status": "succeeded", "units": 1e30}',
        b'{"status": "succeeded", "units": "3"}',
        b'{"status": "succeeded", "units": true}',
        b'{"status": "SUCCEEDED"}',
        b'{"status": ["succeeded"]}',
        b'{"status": null}',
        b"{}",
        b'{"status": "progress", "progress": 3}',
        b'{"status": "progress", "progress": {"done": "x"}}',
        b'{"status": "progress", "progress": {"done": 1e999}}',
        b'{"status": "progress", "progress": {"done": 1, "more": 2}}',
        b'{"status": "progress", "progress": {"partial": "\\u0000"}}',
        b'{"status": "progress", "stage": "\\u0000"}',
        b'{"status": "progress", "stage": 7}',
        b'{"status": "progress", "stage": "' + b"x" * 201 + b'"}',
    ],
)
async def test_poison_is_invalid_and_the_job_goes_on(jobs: Jobs, body: bytes) -> None:
    job = await jobs.handed()
    bearer = f"Bearer {jobs.token(job)}"
    response = await jobs.post(f"/{job}", body, authorization=bearer)
    assert response.status_code == 200, response.text
    [one] = response.json()["results"]
    assert one["outcome"] == "invalid", one
    assert (await jobs.read(job))["status"] == "awaiting"
    assert await jobs.say(job, status="succeeded", result={"after": "all"}) == "accepted"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (DEEP, 422, "invalid_json"),
        (b'{"status": NaN}', 422, "invalid_json"),
        (b'{"result": ' + b"9" * 5_000 + b"}", 422, "invalid_json"),
        (b"\xff\xfe", 422, "invalid_json"),
        (b"", 422, "invalid_json"),
        (b"3", 422, "invalid_callback"),
        (b'{"x": "' + b"x" * 4_300_000 + b'"}', 413, "payload_too_large"),
        (b"[" + b"{}," * 1_100_000 + b"{}]", 413, "payload_too_large"),
    ],
)
async def test_an_invalid_body_is_refused(jobs: Jobs, body: bytes, status: int, code: str) -> None:
    job = await jobs.handed()
    bearer = f"Bearer {jobs.token(job)}"
    problem(await jobs.post(f"/{job}", body, authorization=bearer), status, code)
    assert (await jobs.read(job))["status"] == "awaiting"


async def test_a_body_that_needs_much_memory_is_refused_before_it_is_parsed(jobs: Jobs) -> None:
    """C18: the sender is authenticated by the contents, so anybody can send this."""
    body = b"[" + b"{}," * 1_100_000 + b"{}]"
    problem(await jobs.post("", body), 413, "payload_too_large")
    problem(await jobs.post(f"/{await jobs.handed()}", body), 413, "payload_too_large")


LARGE = "x" * 100_000


async def test_a_large_callback_has_its_proof_at_the_beginning(jobs: Jobs) -> None:
    """D6: as bearer, or as a token in its first 64 KB; otherwise no more of it is read."""
    first, second, third = [await jobs.handed() for _ in range(3)]
    done: dict[str, Any] = {"status": "succeeded", "result": LARGE}
    bearer = f"Bearer {jobs.token(first)}"
    accepted = [
        await jobs.post(f"/{first}", done, authorization=bearer),
        await jobs.post(f"/{second}", {"token": jobs.token(second), **done}),
        await jobs.post("", [{"job_id": str(third), "token": jobs.token(third), **done}]),
    ]
    assert [one.json()["results"][0]["outcome"] for one in accepted] == ["accepted"] * 3
    for job in (first, second, third):
        assert (await jobs.read(job))["result"] == LARGE
    own, fourth = await jobs.handed("own"), await jobs.handed()
    body = {**done, "attempt": 1}
    response = await jobs.post(f"/{own}", body, authorization=f"Bearer {SHARED}")
    assert response.json()["results"][0]["outcome"] == "accepted"
    signed_body = json.dumps({**done, "job_id": str(fourth), "attempt": 1}).encode()
    signature_headers = signed(signed_body, signature.of_functions(ROOTS))
    forged = "1." + "A" * 43
    refused = [
        await jobs.post(f"/{fourth}", {**done, "token": jobs.token(fourth)}),
        await jobs.post(f"/{fourth}", {"token": forged, **done}),
        await jobs.post(f"/{fourth}", {"token": jobs.token(first), **done}),
        await jobs.post(f"/{fourth}", signed_body, **signature_headers),
        await jobs.post("", [{**done, "job_id": str(fourth), "token": jobs.token(fourth)}]),
        await jobs.post("", [{"job_id": str(fourth), "token": forged, **done}]),
    ]
    for response in refused:
        refusal = problem(response, 413, "payload_too_large")
        assert refusal["max_bytes"] == 65_536
        assert "put job_id and token before the result" in refusal["hint"]
    both = {**signature_headers, "authorization": f"Bearer {jobs.token(fourth)}"}
    response = await jobs.post(f"/{fourth}", signed_body, **both)
    assert response.json()["results"][0]["outcome"] == "accepted"


async def test_guesses_of_a_kinds_secret_are_limited(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: after too many wrong ones none is compared any more, as bearer or in a signature."""
    monkeypatch.setattr("penstock.http.auth.caller.FAILURES", 4)
    job = await jobs.handed("own")
    body = json.dumps({"status": "succeeded", "attempt": 1, "job_id": str(job)}).encode()
    for number in range(4):
        guess = f"guess {number} of somebody"
        headers = {"authorization": f"Bearer {guess}"}
        if number % 2:
            headers = signed(body, Signer(Secret(guess)))
        response = await jobs.post(f"/{job}", body, **headers)
        problem(response, 401, "unauthorized")
    right = {"authorization": f"Bearer {SHARED}"}
    problem(await jobs.post(f"/{job}", body, **right), 429, "too_many_failures")
    response = await jobs.post(f"/{job}", body, **signed(body, Signer(Secret(SHARED))))
    problem(response, 429, "too_many_failures")
    token = {"authorization": f"Bearer {jobs.token(job)}"}
    response = await jobs.post(f"/{job}", body, **token)
    assert response.json()["results"][0]["outcome"] == "accepted", "what nobody guesses goes on"


async def test_one_poisoned_item_does_not_affect_the_others(jobs: Jobs) -> None:
    first, second = [await jobs.handed() for _ in range(2)]
    items = [
        {"job_id": str(first), "token": jobs.token(first), "status": "succeeded", "result": "\x00"},
        {"job_id": str(second), "token": jobs.token(second), "status": "succeeded", "result": "ä"},
    ]
    results = (await jobs.post("", items)).json()["results"]
    assert [one["outcome"] for one in results] == ["invalid", "accepted"]
    assert results[0]["message"] == "result holds a NUL character, which Postgres cannot store"


async def test_a_callback_waits_for_a_locked_account(jobs: Jobs, connect: Connect) -> None:
    """For two seconds; then 503, and repeating the call is safe."""
    await factory.plan(jobs.conn, concurrency=1)
    job = await jobs.handed(account="u1")
    holder = await connect()

    async def hold() -> asyncpg.transaction.Transaction:
        held = holder.transaction()
        await held.start()
        await holder.execute("select from penstock.account where name = 'u1' for update")
        return held

    held = await hold()
    saying = asyncio.create_task(jobs.say(job, status="succeeded"))
    await eventually(lambda: jobs.conn.fetchval(_ANYONE_BLOCKED), "the callback waits")
    await held.rollback()
    assert await saying == "accepted"

    job = await jobs.handed(account="u1")
    held = await hold()
    body = json.dumps({"status": "succeeded", "token": jobs.token(job)}).encode()
    headers = signed(body, signature.of_functions(ROOTS))
    ways: tuple[dict[str, str], ...] = ({}, headers)
    for sent in ways:
        response = await jobs.post(f"/{job}", body, **sent)
        problem(response, 503, "busy")
        assert response.headers["retry-after"] == "1"
    await held.rollback()
    response = await jobs.post(f"/{job}", body, **headers)  # not recorded as processed
    assert response.json()["results"][0]["outcome"] == "accepted"


async def test_tokens_by_the_old_secret_are_accepted_during_a_rotation(
    site: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-S28: dispatched with the old secret, called back with the new one."""
    monkeypatch.setenv("PENSTOCK_SECRET", f"{NEXT_SECRET},{SECRET}")
    queue = site.penstock.queue("q")

    @site.penstock.job(queue=queue, name="f")
    async def plain(n: int) -> None: ...

    assert plain.name
    await site.start()
    jobs = Jobs(site, conn, await factory.worker(conn))
    job = await jobs.handed()
    assert await jobs.say(job, status="succeeded") == "accepted"
    job = await jobs.handed()
    both = signature.of_functions(Roots((NEXT_SECRET, SECRET)))
    fields = {"job_id": str(job), "attempt": 1, "status": "progress"}
    body = json.dumps(fields).encode()
    headers = signed(body, both)
    assert (await jobs.post(f"/{job}", body, **headers)).status_code == 200
    for one in headers["webhook-signature"].split(
        " "
    ):  # with any of its signatures it is the same message
        again = {**headers, "webhook-signature": one}
        problem(await jobs.post(f"/{job}", body, **again), 401, "callback_replayed")
    body = json.dumps({**fields, "status": "succeeded"}).encode()
    headers = signed(body, signature.of_functions(ROOTS))
    response = await jobs.post(f"/{job}", body, **headers)
    assert response.json()["results"][0]["outcome"] == "accepted"


async def test_simultaneous_callbacks_finish_a_job_once(jobs: Jobs) -> None:
    job = await jobs.handed()
    outcomes = await asyncio.gather(
        *(jobs.say(job, status="succeeded", result=n) for n in range(20))
    )
    assert sorted(outcomes) == ["accepted"] + ["duplicate"] * 19
    assert len((await jobs.read(job))["attempts"]) == 1


async def test_from_submit_to_callback(site: Site, conn: asyncpg.Connection) -> None:
    """M5: a worker dispatches, the function calls the given address, and the job is finished."""
    queue = site.penstock.queue("q", concurrency=1)
    calls: list[asyncio.Task[httpx.Response]] = []

    @site.penstock.job(queue=queue, name="f")
    async def dispatch(n: int, job: Job) -> None:
        given = await job.hand_over()
        body = {"token": given.token, "status": "succeeded", "result": 2 * n}
        path = urlsplit(given.callback_url).path
        calls.append(asyncio.create_task(site.anonymous.post(path, json=body)))

    ids = [(await dispatch.submit(n=n)).id for n in range(3)]

    async def all_done() -> bool:
        await site.work()
        return {await factory.status(conn, job) for job in ids} == {"succeeded"}

    await eventually(all_done, "all have ended", seconds=30)
    assert [(await factory.read(conn, job))["result"] for job in ids] == [0, 2, 4]
    for call in calls:
        assert (await call).json()["results"][0]["outcome"] == "accepted"
