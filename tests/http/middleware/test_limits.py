"""Limits on what one caller holds at once: bodies, uploads, streams; strangers, accounts, keys."""

import asyncio
import json
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
from starlette.routing import Route

from penstock.errors import RateLimited
from penstock.http.middleware import limits as bounds
from penstock.http.middleware.limits import Holding, Limits, Pool, Share
from support.factory import queue, submit
from support.http.half_sent import HalfSent
from support.http.listening import listening
from support.http.site import SECRET, Site, problem
from support.waiting import eventually

KB = 1024
_FORM = {"content-type": "multipart/form-data; boundary=b"}
_FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'


@pytest.fixture(autouse=True)
async def _queue(conn: asyncpg.Connection) -> None:
    await queue(conn)


@pytest.fixture
async def started(site: Site) -> Site:
    await site.start()
    return site


def limits_of(site: Site) -> Limits:
    found: Limits = site.api.state.limits
    return found


def refusal(call: HalfSent) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call.answer)
    return found


# --- bodies ---------------------------------------------------------------------------------------


async def test_no_body_is_read_before_its_sender_is_known(started: Site) -> None:
    """D6: every route without a key answers at once, or after 64 KB at most."""
    for route in started.api.router.routes:
        if not isinstance(route, Route):
            continue
        path = re.sub(r"\{[^}]+\}", str(uuid4()), route.path)
        for method in (route.methods or set()) - {"GET", "HEAD"}:
            part = b"x" * (bounds.STRANGER_BYTES // 2)
            call = HalfSent(started, path, [part] * 20, method=method)
            await call.run()
            what = f"{method} {path}: {call.status}, read {call.read_parts}"
            known = route.path.startswith("/v1/callbacks") or route.path == "/login"
            assert call.read_parts == (3 if known else 0), what
            assert call.status in ((413,) if known else (401, 303)), what
    assert limits_of(started).bodies.total == 0


async def test_a_body_that_arrives_too_slowly_is_refused(
    started: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: single bytes now and then are not enough: the whole body has a deadline."""
    monkeypatch.setattr("penstock.http.routing.PROGRESS_SECONDS", 0.2)
    for path, key in (("/v1/callbacks", None), ("/v1/jobs", SECRET)):
        call = HalfSent(started, path, [b"x"] * 10_000, key=key, pause=0.02)
        await call.run()
        assert call.status == 408, call.answer
        assert refusal(call)["code"] == "request_timeout"
        assert call.headers[b"connection"] == b"close"
        assert call.read_parts < 1_000


async def test_a_large_body_may_take_long(started: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough of it arrives in each period, so it is not cut off."""
    monkeypatch.setattr("penstock.http.routing.PROGRESS_SECONDS", 1.0)
    monkeypatch.setattr("penstock.http.routing.PROGRESS_BYTES", 8)
    call = HalfSent(started, "/v1/jobs", [b"x" * 8] * 30, key=SECRET, pause=0.05)
    running = call.begin()
    await call.stuck()
    assert call.read_parts == 30
    assert call.status is None
    call.leave()
    await running


@pytest.mark.parametrize(
    ("bound", "address", "status", "code"),
    [
        ("STRANGERS_BYTES", "192.0.2.2", 503, "server_busy"),
        ("ADDRESS_BYTES", "192.0.2.1", 429, "too_many_bytes"),
    ],
)
async def test_what_strangers_hold_is_limited(  # noqa: PLR0917
    started: Site, monkeypatch: pytest.MonkeyPatch, bound: str, address: str, status: int, code: str
) -> None:
    """D6: per address, and for all together; known callers are not affected."""
    monkeypatch.setattr(bounds, bound, 100 * KB)
    body = [b"x" * 60 * KB]
    first = HalfSent(started, "/login", body, address="192.0.2.1")
    running = first.begin()
    await first.stuck()
    second = HalfSent(started, "/v1/callbacks", body, address=address)
    await second.run()
    assert (second.status, refusal(second)["code"]) == (status, code)
    assert second.headers[b"retry-after"] == b"2"
    answer = {"kind": "q", "payload": {"a": "x" * 60 * KB}}
    assert (await started.app_client.post("/v1/jobs", json=answer)).status_code == 201
    if bound == "STRANGERS_BYTES":
        first.leave()
        await running
    third = HalfSent(started, "/v1/callbacks", body, address="192.0.2.3")
    running_too = third.begin()
    await third.stuck()
    assert third.status is None, "another address, or what was held is free again"
    for call in (first, third):
        call.leave()
    await asyncio.gather(running, running_too)
    assert limits_of(started).bodies.held == {}


async def test_what_one_account_holds_is_limited(started: Site) -> None:
    """D6: half-sent batches of one account, with any of its keys; another account submits."""
    keys = [await started.make_key("account", "greedy") for _ in range(2)]
    half = b"x" * 5 * KB * KB
    first = HalfSent(started, "/v1/jobs/batch", [half], key=keys[0])
    running = first.begin()
    await first.stuck()
    second = HalfSent(started, "/v1/jobs/batch", [half], key=keys[1])
    await second.run()
    assert second.status == 429, second.answer
    body = refusal(second)
    assert (body["code"], body["most"]) == ("too_many_bytes", 8 * KB * KB)
    large = {"content-length": str(9 * KB * KB)}
    third = HalfSent(started, "/v1/jobs/batch", [], key=keys[0], headers=large)
    await third.run()
    assert (third.status, refusal(third)["max_bytes"]) == (413, 8 * KB * KB)
    other = await started.account_client("other")
    sent = {"jobs": [{"kind": "q", "payload": {"a": "x" * 500_000}}] * 10}
    assert (await other.post("/v1/jobs/batch", json=sent)).status_code == 201
    first.leave()
    await running
    assert limits_of(started).bodies.held == {}


async def test_the_limit_of_an_accounts_bodies_is_configured(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ACCOUNT_BYTES", "70000")
    client = await site.account_client("u1")
    body = {"kind": "q", "payload": {"a": "x" * 69_000}}
    assert (await client.post("/v1/jobs", json=body)).status_code == 201
    body["payload"] = {"a": "x" * 70_000}
    refused = problem(await client.post("/v1/jobs", json=body), 413, "payload_too_large")
    assert refused["max_bytes"] == 70_000
    assert (await site.app_client.post("/v1/jobs", json=body)).status_code == 201


# --- uploads --------------------------------------------------------------------------------------


async def test_the_quota_is_checked_before_a_file_is_read(
    started: Site, conn: asyncpg.Connection
) -> None:
    """D6: by its headers; a file without a length is refused when it exceeds the quota."""
    await conn.execute("update penstock.setting set upload_quota_bytes = 300000")
    key = await started.make_key("account", "u1")
    length = {**_FORM, "content-length": "400000"}
    for headers, read in ((length, 0), (_FORM, 5)):
        call = HalfSent(
            started, "/v1/uploads", [_FILE + b"x", *[b"x" * 90_000] * 20], key=key, headers=headers
        )
        await call.run()
        assert call.status == 413, call.answer
        assert refusal(call)["code"] == "upload_quota_exceeded"
        assert call.read_parts == read
    asked = HalfSent(started, "/v1/uploads?account=u1", [], key=SECRET, headers=length)
    await asked.run()
    assert refusal(asked)["code"] == "upload_quota_exceeded", "named by the app's key"


async def test_uploads_in_progress_count_against_the_quota(
    started: Site, conn: asyncpg.Connection
) -> None:
    """D6: two that fit alone do not fit together; an upload that breaks off counts no more."""
    await conn.execute("update penstock.setting set upload_quota_bytes = 300000")
    key = await started.make_key("account", "u1")
    parts = [_FILE + b"x", b"x" * 200_000]
    first = HalfSent(started, "/v1/uploads", parts, key=key, headers=_FORM)
    running = first.begin()
    await first.stuck()
    second = HalfSent(started, "/v1/uploads", parts, key=key, headers=_FORM)
    await second.run()
    assert second.status == 429, second.answer
    assert refusal(second)["code"] == "too_many_uploads"
    first.leave()
    await running
    assert limits_of(started).disk.held == {}
    client = started.client(key)
    sent = await client.post("/v1/uploads", files={"file": b"x" * 200_000})
    assert sent.status_code == 201


async def test_simultaneous_uploads_of_one_account_are_limited(
    started: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ACCOUNT_UPLOADS", 2)
    key = await started.make_key("account", "u1")
    calls = [
        HalfSent(started, "/v1/uploads", [_FILE + b"x"], key=key, headers=_FORM) for _ in range(3)
    ]
    running = [call.begin() for call in calls]
    await asyncio.gather(*(call.stuck() for call in calls))
    assert sorted(call.status or 0 for call in calls) == [0, 0, 429]
    assert limits_of(started).uploads.held == {"account u1": 2}
    for call in calls:
        call.leave()
    await asyncio.gather(*running)
    assert limits_of(started).uploads.held == {}


@pytest.mark.parametrize(
    "part",
    [
        b"--b\r\nA: " + b"x" * 9_000,
        b"--b\r\n" + b"x" * 9_000,
    ],
)
async def test_headers_of_a_part_are_limited(started: Site, part: bytes) -> None:
    """Or they would be kept in memory as long as data arrives."""
    call = HalfSent(started, "/v1/uploads", [part, b"x"], key=SECRET, headers=_FORM)
    await call.run()
    assert call.status == 422, call.answer


# --- streams --------------------------------------------------------------------------------------


async def make_token(client: httpx.AsyncClient, **what: str) -> str:
    made = await client.post("/v1/tokens", json={**what, "ttl_seconds": 600})
    assert made.status_code == 201, made.text
    return str(made.json()["token"])


async def watch(stack: AsyncExitStack, client: httpx.AsyncClient, path: str, count: int) -> None:
    for _ in range(count):
        await stack.enter_async_context(listening(client, path))


async def test_streams_of_one_token_are_limited(
    site: Site, monkeypatch: pytest.MonkeyPatch, conn: asyncpg.Connection
) -> None:
    """D6: of any sort; other tokens can open theirs, and a closed stream makes room for another."""
    monkeypatch.setenv("PENSTOCK_TOKEN_STREAMS", "3")
    job = await submit(conn, topic="a", account="u1")
    app = site.app_client
    greedy = site.client(await make_token(app, account="u1"))
    other = site.client(await make_token(app, topic="a"))
    paths = ["/v1/accounts/u1/events", "/v1/topics/a/events", f"/v1/jobs/{job}/events"]
    async with AsyncExitStack() as stack:
        for path in paths:
            await watch(stack, greedy, path, 1)
        for path in paths:
            refused = await greedy.get(path)
            refusal = problem(refused, 429, "too_many_streams")
            assert refusal["most"] == 3
            assert refused.headers["retry-after"] == "2"
        await watch(stack, other, "/v1/topics/a/events", 3)
        problem(await other.get("/v1/topics/a/events"), 429, "too_many_streams")
        await watch(stack, app, "/v1/topics/a/events", 5)
        assert limits_of(site).streams.total == 11
    await eventually(lambda: _nothing_held(site), "all are given back")
    async with listening(greedy, paths[0]) as again:
        await again.next()


async def _nothing_held(site: Site) -> bool:
    return limits_of(site).streams.held == {} and limits_of(site).streams.total == 0


async def test_tokens_and_keys_of_one_account_share_its_limit_of_streams(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: more tokens do not allow more streams."""
    monkeypatch.setenv("PENSTOCK_ACCOUNT_STREAMS", "4")
    client = await site.account_client("u1")
    path = "/v1/accounts/u1/events"
    async with AsyncExitStack() as stack:
        await watch(stack, client, path, 1)
        for _ in range(3):
            await watch(
                stack, site.client(await make_token(client, topic="x")), "/v1/topics/x/events", 1
            )
        problem(await client.get(path), 429, "too_many_streams")
        other = site.client(await make_token(site.app_client, account="u1"))
        problem(await other.get(path), 429, "too_many_streams")
        await watch(stack, await site.account_client("u2"), "/v1/accounts/u2/events", 1)


async def test_a_caller_at_its_limit_of_streams_does_not_wait_for_a_job(
    site: Site, monkeypatch: pytest.MonkeyPatch, conn: asyncpg.Connection
) -> None:
    """D6: `Prefer: wait` counts as a stream; at the limit no request waits."""
    monkeypatch.setenv("PENSTOCK_ACCOUNT_STREAMS", "2")
    job = await submit(conn, account="u1")
    client = await site.account_client("u1")
    prefer = {"Prefer": "wait=30"}
    waiting = [asyncio.create_task(client.get(f"/v1/jobs/{job}", headers=prefer)) for _ in range(2)]

    async def both_wait() -> bool:
        return limits_of(site).streams.total == 2

    await eventually(both_wait, "two requests wait")
    answer = await client.get(f"/v1/jobs/{job}", headers=prefer)
    assert answer.status_code == 200
    assert "preference-applied" not in answer.headers
    body = {"kind": "q", "payload": {}}
    answer = await client.post("/v1/jobs", json=body, headers=prefer)
    assert answer.status_code == 201, "what it asks for is done all the same"
    assert "preference-applied" not in answer.headers
    problem(await client.get("/v1/accounts/u1/events"), 429, "too_many_streams")
    await site.app_client.post(f"/v1/jobs/{job}/cancel")
    for one in await asyncio.gather(*waiting):
        assert one.json()["status"] == "cancelled"
        assert one.headers["preference-applied"] == "wait=30"


async def test_all_streams_together_leave_file_descriptors_for_the_rest(
    started: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: the last limit, for all callers together."""
    everything = limits_of(started)
    monkeypatch.setattr(everything, "_all_streams", Share("all", 2, of_all=True))
    async with AsyncExitStack() as stack:
        await watch(stack, started.app_client, "/v1/topics/a/events", 2)
        problem(await started.app_client.get("/v1/topics/a/events"), 503, "server_busy")
        numbers = (await started.admin.get("/metrics")).text
        assert 'penstock_http_held{thing="streams"} 2' in numbers
        assert 'penstock_http_held_refused_total{thing="streams"} 1' in numbers


def test_file_descriptors_limit_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed, streams in ((256, 144), (65, 1), (20, 1), (2**20, bounds.MOST_STREAMS)):
        monkeypatch.setattr(bounds, "descriptors", lambda allowed=allowed: allowed)
        assert bounds.most_streams() == streams


# --- counting -------------------------------------------------------------------------------------


def test_a_refused_amount_is_not_counted() -> None:
    pool = Pool("n", "numbers", code="too_many_streams")
    narrow, wide = Share("narrow", 5), Share("wide", 8, of_all=True)
    one = Holding(pool, (narrow, wide))
    one.add(5)
    with pytest.raises(RateLimited, match="holds 5 numbers, and the limit is 5"):
        one.add(1)
    other = Holding(pool, (wide,))
    other.add(3)
    assert (one.amount, pool.held, pool.total) == (5, {"narrow": 5, "wide": 8}, 8)
    one.move((wide,))
    assert pool.held == {"wide": 8}
    one.release()
    one.release()
    other.release()
    assert (pool.held, pool.total, pool.refused) == ({}, 0, 1)


def test_a_server_raises_its_limit_of_file_descriptors() -> None:
    """D6: the soft limit is often 1,024, and the hard one far higher."""
    body = (
        "import resource\n"
        "from penstock.http.middleware.limits import descriptors, raise_descriptors\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))\n"
        "raise_descriptors()\n"
        "print(descriptors())\n"
    )
    ran = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True)
    assert ran.stdout == "200\n"
