"""The dispatch handler: the request to a function, and the meaning of its answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from standardwebhooks import Webhook

from penstock.failures.verdict import Charge, Circuit
from penstock.models.dispatch import Dispatch, build
from penstock.net.transport import close_transport
from penstock.security import signature
from penstock.security.callback_token import Outside, all_of, attempt_of, make
from penstock.security.roots import Roots
from penstock.security.secret import Secret
from penstock.security.signature import Signer
from support.models.answering import closed_port
from support.models.noted_job import NotedJob, at, fails

ROOTS = Roots(("the root of these tests",))
Reply = Callable[[web.Request], Awaitable[web.Response]]


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_transport()


@asynccontextmanager
async def function(reply: Reply, **options: Any) -> AsyncIterator[Dispatch]:
    app = web.Application()
    app.router.add_post("/f", reply)
    server = TestServer(app)
    await server.start_server()
    try:
        url = f"http://127.0.0.1:{server.port}/f"
        yield Dispatch(endpoint=at(url), outside=lambda: Outside(ROOTS), **options)
    finally:
        await server.close()


def status(code: int, **headers: str) -> Reply:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(status=code, headers=headers)

    return respond


async def test_the_request() -> None:
    """M5, G10: the job, the callback's address, and a signature that the reference verifies."""
    seen: list[tuple[dict[str, str], bytes]] = []

    async def respond(request: web.Request) -> web.Response:
        seen.append((dict(request.headers), await request.read()))
        return web.Response(status=202)

    own = Signer(Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
    async with function(respond, headers={"X-Tenant": Secret("school")}, signer=own) as config:
        job = NotedJob(kind="image", attempt=2)
        assert await build(config)(job, {"prompt": "ä cat"}) is None
    async with function(respond) as config:
        await build(config)(job, {})
    headers, body = seen[0]
    assert json.loads(body) == {
        "job_id": str(job.id),
        "kind": "image",
        "attempt": 2,
        "payload": {"prompt": "ä cat"},
        "callback_url": f"http://127.0.0.1:8484/v1/callbacks/{job.id}",
        "token": "1.a-token",
        "expires_at": "2026-11-16T00:00:00Z",
    }
    assert (headers["X-Tenant"], headers["Idempotency-Key"]) == ("school", str(job.id))
    assert headers["webhook-id"] == f"{job.id}.2"
    Webhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").verify(body, headers)
    [installation] = signature.of_functions(ROOTS).written
    headers, body = seen[1]
    Webhook(installation).verify(body, headers)


@pytest.mark.parametrize(
    ("code", "cls", "charge", "circuit"),
    [
        (400, "invalid_request", Charge.FINAL, Circuit.NONE),
        (404, "invalid_request", Charge.FINAL, Circuit.NONE),
        (401, "auth", Charge.FREE, Circuit.STOPS),
        (429, "rate_limited", Charge.FREE, Circuit.PAUSES),
        (500, "provider_error", Charge.PROVISIONAL, Circuit.COUNTS),
        (503, "overloaded", Charge.FREE, Circuit.OPENS),
        (302, "config", Charge.FREE, Circuit.STOPS),
    ],
)
async def test_a_refusal_means_the_same_as_for_a_waiting_call(
    code: int, cls: str, charge: Charge, circuit: Circuit
) -> None:
    async with function(status(code)) as config:
        verdict, _ = await fails(build(config), NotedJob(), {})
    assert (verdict.cls, verdict.charge, verdict.circuit) == (cls, charge, circuit)


async def test_an_unreachable_function_counts_as_no_failure() -> None:
    """F5"""
    config = Dispatch(
        endpoint=at(f"http://127.0.0.1:{closed_port()}/f"), outside=lambda: Outside(ROOTS)
    )
    job = NotedJob()
    verdict, _ = await fails(build(config), job, {})
    assert (verdict.cls, verdict.charge, job.handed) == ("unavailable", Charge.FREE, True)


async def test_without_an_answer_in_time_the_job_stays_dispatched() -> None:

    held = asyncio.Event()

    async def late(_: web.Request) -> web.Response:
        await held.wait()
        return web.Response()

    async with function(late, answer_seconds=0.1) as config:
        assert await build(config)(NotedJob(), {}) is None
        held.set()


def test_a_token_is_valid_for_one_attempt_and_one_installation() -> None:
    job = NotedJob()
    token = make(ROOTS, job.id, 3)
    assert token.startswith("3.")
    assert attempt_of(ROOTS, job.id, token) == 3
    assert attempt_of(ROOTS, NotedJob().id, token) is None
    assert attempt_of(Roots(("another root, not ours",)), job.id, token) is None
    for odd in ("", "3", "3.", "4" + token[1:], token + "x", token[:-1], "03" + token[1:]):
        assert attempt_of(ROOTS, job.id, odd) is None
    both = Roots(("a new root of these tests", "the root of these tests"))
    assert attempt_of(both, job.id, token) == 3
    assert token in all_of(both, job.id, 3)
    assert make(both, job.id, 3) != token


def test_while_a_secret_is_replaced_messages_have_both_signatures() -> None:
    both = Roots(("a new root of these tests", "the root of these tests"))
    signer = signature.of_webhooks(both, "u1", trusted=False)
    headers = dict(signature.signed(signer, "msg_1", 1_700_000_000, b"{}"))
    old = signature.of_webhooks(ROOTS, "u1", trusted=False)
    assert len(headers["webhook-signature"].split()) == 2
    for one in (signer, old):
        assert one.match(headers, b"{}", 1_700_000_100)
    assert old.match(headers, b"{ }", 1_700_000_100) is None
    assert old.match(headers, b"{}", 1_700_000_301) is None
    assert old.match(headers, b"{}", 1_699_999_699) is None
    assert old.match(headers | {"webhook-id": "msg_2"}, b"{}", 1_700_000_000) is None
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        assert old.match({**headers, name: ""}, b"{}", 1_700_000_000) is None
        assert old.match({**headers, name: "v1,é \x00"}, b"{}", 1_700_000_000) is None
    for other in (
        signature.of_webhooks(ROOTS, "u2", trusted=False),
        signature.of_webhooks(ROOTS, None, trusted=True),
        signature.of_webhooks(ROOTS, None, trusted=False),
        signature.of_functions(ROOTS),
    ):
        assert other.match(headers, b"{}", 1_700_000_100) is None
