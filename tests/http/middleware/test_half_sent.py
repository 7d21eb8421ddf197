"""Incomplete bodies occupy connections, however few bytes have come."""

import asyncio
import json
from uuid import uuid4

import asyncpg
import pytest

from penstock.http.middleware import limits as bounds
from penstock.http.middleware.limits import Limits, Pool
from penstock.security import callback_token
from penstock.security.roots import Roots
from support.factory import queue
from support.http.half_sent import HalfSent
from support.http.site import SECRET, Site
from support.waiting import eventually


@pytest.fixture
async def started(site: Site, conn: asyncpg.Connection) -> Site:
    await queue(conn)
    await site.start()
    found: Limits = site.api.state.limits
    found.sending = Pool("bodies", "bodies", code="too_many_bodies", bounds=(2, 3))
    return site


async def begin(call: HalfSent) -> "asyncio.Task[None]":
    running = call.begin()
    await call.stuck()
    return running


@pytest.mark.parametrize(
    ("path", "account"), [("/v1/callbacks", None), ("/login", None), ("/v1/jobs", "u1")]
)
async def test_simultaneous_bodies_of_one_caller_are_limited(
    started: Site, path: str, account: str | None
) -> None:
    """D6: of one byte each. A body from another address or another account is read."""
    mine = other = None
    if account is not None:
        mine = await started.make_key("account", account)
        other = await started.make_key("account", "another")
    calls = [HalfSent(started, path, [b"x"], key=mine) for _ in range(3)]
    running = [await begin(call) for call in calls]
    assert [call.status for call in calls] == [None, None, 429]
    if path != "/login":  # it answers with a page
        assert json.loads(calls[2].answer)["code"] == "too_many_bodies"
    assert calls[2].read_parts == 0
    third = HalfSent(started, path, [b"x"], key=other, address="192.0.2.8")
    running.append(await begin(third))
    assert third.status is None
    fourth = HalfSent(started, path, [b"x"], key=other, address="192.0.2.8")
    running.append(await begin(fourth))
    assert fourth.status == 503, "all callers of its sort have as many as they may"
    body = {"kind": "q", "payload": {}}
    assert (await started.app_client.post("/v1/jobs", json=body)).status_code == 201
    for call in (*calls, third, fourth):
        call.leave()
    await asyncio.gather(*running)
    found: Limits = started.api.state.limits
    assert found.sending.held == {}


async def test_a_function_with_a_valid_token_is_not_a_stranger(started: Site) -> None:
    """Also if the token was in the body: bodies of functions have their own limit."""
    job = uuid4()
    token = callback_token.make(Roots((SECRET,)), job, 1)
    begins = f'{{"job_id": "{job}", "token": "{token}", "result": "'.encode()
    call = HalfSent(started, "/v1/callbacks", [begins, b"x" * bounds.STRANGER_BYTES])
    running = await begin(call)
    found: Limits = started.api.state.limits
    assert found.sending.held == {"functions": 1}
    assert found.bodies.held == {"functions": len(begins) + bounds.STRANGER_BYTES}
    call.leave()
    await running
    assert found.sending.held == {}


async def test_a_complete_body_does_not_count_any_more(started: Site) -> None:
    """A request that waits for a job has sent its body."""
    body = {"kind": "q", "payload": {}}
    waiting = [
        asyncio.create_task(
            started.client(SECRET).post("/v1/jobs", json=body, headers={"Prefer": "wait=30"})
        )
        for _ in range(3)
    ]
    found: Limits = started.api.state.limits

    async def all_wait() -> bool:
        return found.streams.total == 3

    await eventually(all_wait, "three requests wait for their jobs")
    assert found.sending.held == {}
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def test_file_descriptors_limit_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed, most in ((256, (12, 24)), (20, (4, 8)), (2**20, (1_000, 4_000))):
        monkeypatch.setattr(bounds, "descriptors", lambda allowed=allowed: allowed)
        assert bounds.most_bodies() == most
