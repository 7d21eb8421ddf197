"""One try to send a message: what is sent, and what the receiver's answer means."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from penstock.engine.webhooks import Answer, Delivery
from penstock.net.transport import close_transport
from penstock.security.callback_token import Outside
from penstock.security.roots import Roots
from penstock.worker.maintenance import webhooks
from support.models.answering import answer, answering, closed_port

OUTSIDE = Outside(Roots(("the root of these tests",)))
Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_transport()


@asynccontextmanager
async def receiver(reply: Reply) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/x", reply)
    server = TestServer(app)
    await server.start_server()
    try:
        yield f"http://127.0.0.1:{server.port}/x"
    finally:
        await server.close()


async def sent_to(url: str, taken_at: datetime | None = None) -> Answer:
    job = json.dumps({"id": str(uuid4()), "result": "ä"}, ensure_ascii=False)
    made = Delivery(
        *(uuid4(), 1, uuid4(), "job.failed", url, "", True, None, datetime.now(UTC), job, taken_at)
    )
    return await webhooks.send(made, OUTSIDE)


async def answer_of(status: int, **headers: str) -> Answer:
    async def reply(_: web.Request) -> web.Response:
        return web.Response(status=status, headers=headers, text="as you say")

    async with receiver(reply) as url:
        return await sent_to(url)


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_it_is_accepted(status: int) -> None:
    assert await answer_of(status) == Answer(taken=True, status=status)


@pytest.mark.parametrize("status", [301, 308, 400, 401, 404, 409, 422, 429, 500, 503])
async def test_it_is_not_accepted(status: int) -> None:
    answer = await answer_of(status, Location="http://169.254.169.254/")
    assert (answer.taken, answer.status, answer.over) == (False, status, False)
    assert f"answered with status {status}" in (answer.error or "")


async def test_gone_means_never_again() -> None:
    assert (await answer_of(410)).over


async def test_the_receiver_may_ask_to_wait() -> None:
    answer = await answer_of(503, **{"Retry-After": "120"})
    assert answer.after == timedelta(minutes=2)


async def test_the_message_is_json_with_the_job_as_it_was() -> None:
    seen: list[bytes] = []

    async def reply(request: web.Request) -> web.Response:
        assert request.headers["Content-Type"] == "application/json"
        seen.append(await request.read())
        return web.Response()

    async with receiver(reply) as url:
        assert (await sent_to(url)).taken
    body = json.loads(seen[0])
    assert list(body) == ["type", "timestamp", "data"]
    assert (body["type"], body["data"]["result"]) == ("job.failed", "ä")
    assert datetime.fromisoformat(body["timestamp"]).tzinfo is not None


async def test_it_is_dated_by_the_servers_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-F10: a receiver refuses a message that was dated by a wrong clock."""
    dates: list[str] = []

    async def reply(request: web.Request) -> web.Response:
        dates.append(request.headers["webhook-timestamp"])
        return web.Response()

    right = datetime(2026, 11, 16, 12, tzinfo=UTC)
    monkeypatch.setattr("time.time", lambda: right.timestamp() - 3_600)
    async with receiver(reply) as url:
        assert (await sent_to(url, right)).taken
    assert dates == [str(int(right.timestamp()))]


async def test_a_receiver_that_takes_too_long_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-F22: it hangs, or sends headers for ever."""
    monkeypatch.setattr(webhooks, "SEND_SECONDS", 0.2)
    held = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await held.wait()
        return web.Response()

    async with receiver(hang) as url:
        answer = await sent_to(url)
        held.set()
    assert "did not accept it within 0.2 s" in (answer.error or "")
    async with answering(b"HTTP/1.1 200 OK\r\nx-1: 1\r\n", then="hang") as port:
        assert not (await sent_to(f"http://127.0.0.1:{port}/x")).taken


async def test_a_receiver_that_is_unavailable_or_breaks_off() -> None:
    answer = await sent_to(f"http://127.0.0.1:{closed_port()}/x")
    assert "does not accept connections" in (answer.error or "")
    async with answering(b"", then="reset") as port:
        assert not (await sent_to(f"http://127.0.0.1:{port}/x")).taken
    async with answering(b"no HTTP at all\r\n\r\n") as port:
        assert not (await sent_to(f"http://127.0.0.1:{port}/x")).taken


async def test_the_body_after_the_status_is_not_waited_for() -> None:
    """It has accepted the message; an answer without an end changes nothing."""
    async with answering(answer(200, {}, "x", missing=1_000_000), then="hang") as port:
        async with asyncio.timeout(2):
            assert (await sent_to(f"http://127.0.0.1:{port}/x")).taken
