"""The HTTP handler: the request to a function, and the meaning of its reply."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from penstock.engine.jobs.attempts import Failed
from penstock.errors import Invalid
from penstock.failures.classify import classify
from penstock.failures.verdict import Charge, Circuit
from penstock.http.auth.callbacks import read_item
from penstock.models import http
from penstock.models.handlers.exceptions import described, outcome_of
from penstock.models.http import Http, build
from penstock.net import transport
from penstock.net.provider_errors import ProviderError
from penstock.net.transport import Transport, close_transport
from penstock.security.secret import Secret
from penstock.security.signature import Signer
from support.models.answering import answer, answering
from support.models.noted_job import NotedJob, at, busy, fails

Reply = Callable[[dict[str, Any]], Any]


@asynccontextmanager
async def function(reply: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[Http]:
    app = web.Application()
    app.router.add_post("/f", reply)
    server = TestServer(app)
    await server.start_server()
    try:
        yield Http(endpoint=at(f"http://127.0.0.1:{server.port}/f"))
    finally:
        await server.close()


async def called(reply: Reply, job: NotedJob | None = None, **response: Any) -> Any:
    """Return the result of a job whose function computes its reply from the request's body."""

    async def respond(request: web.Request) -> web.Response:
        return web.json_response(reply(await request.json()), **response)

    async with function(respond) as config:
        return await build(config)(job or NotedJob(), {"n": 1})


async def test_the_request() -> None:
    """G10: the signature proves that Penstock sent the call; no other header does."""
    seen: list[tuple[dict[str, str], bytes]] = []

    async def respond(request: web.Request) -> web.Response:
        seen.append((dict(request.headers), await request.read()))
        return web.json_response({"ok": True})

    key = base64.b64encode(b"k" * 24).decode()
    async with function(respond) as config:
        signing = Http(
            endpoint=config.endpoint,
            headers={"X-Tenant": Secret("school")},
            signer=Signer(Secret(f"whsec_{key}")),
        )
        job = NotedJob(kind="resize", attempt=2)
        assert await build(signing)(job, {"image": "ä"}) == {"ok": True}
        await build(config)(job, {})
    headers, body = seen[0]
    sent = json.loads(body)
    assert len(sent.pop("token")) >= 32
    assert sent == {
        "job_id": str(job.id),
        "kind": "resize",
        "attempt": 2,
        "payload": {"image": "ä"},
        "callback_url": None,
        "expires_at": None,
    }
    assert headers["X-Tenant"] == "school"
    assert headers["Idempotency-Key"] == str(job.id)
    assert headers["webhook-id"] == f"{job.id}.2"
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b"k" * 24, content, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert "webhook-signature" not in seen[1][0]
    # Customers read it, so it does not contain the function's address.
    assert set(job.stages) == {("calling", "Waiting for the service")}


def test_the_signature_follows_the_standard() -> None:
    """The example of the Standard Webhooks libraries."""
    signer = Signer(Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
    signed = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("secret", "message"), [("whsec_not base64", "no base64"), ("tiny", "shorter than 8 bytes")]
)
def test_a_bad_secret_is_refused_and_not_quoted(secret: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        Signer(Secret(secret))
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    "reply", [{"a": 1}, [1], "text", 3, None, {"status": "succeeded"}, {"job_id": "x"}]
)
async def test_a_reply_of_another_form_is_the_result(reply: Any) -> None:
    assert await called(lambda _: reply) == reply


async def test_a_text_is_a_result_as_well() -> None:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(text="done")

    async def empty(_: web.Request) -> web.Response:
        return web.Response(status=204)

    async with function(respond) as config:
        assert await build(config)(NotedJob(), {}) == "done"
    async with function(empty) as config:
        assert await build(config)(NotedJob(), {}) is None


async def test_a_reply_in_penstocks_form() -> None:
    job = NotedJob()
    found = await called(
        lambda body: {
            "job_id": body["job_id"],
            "token": body["token"],
            "status": "succeeded",
            "result": {"url": "x"},
            "units": 3,
            "usage": {"images": 4, "odd": "many", "below": -1, "yes": True, "cost": 0.25},
        },
        job,
    )
    assert found == {"url": "x"}
    assert job.units == 3
    assert job.used == {"images": 4, "cost": 0.25}


async def test_null_members_count_as_missing() -> None:
    nothing = dict.fromkeys(["token", "usage", "units", "error"])
    found = await called(
        lambda body: {"job_id": body["job_id"], "status": "succeeded", "result": 1, **nothing}
    )
    assert found == 1
    reply = {"job_id": None, "status": "failed"}
    assert await called(lambda _: reply) == reply
    with pytest.raises(ProviderError, match="failed and gave no reason"):
        await called(
            lambda body: {
                "job_id": body["job_id"],
                "status": "failed",
                "error": {"class": None, "message": None, "retryable": None},
            }
        )


FAILED: list[tuple[dict[str, Any] | None, str, Charge]] = [
    ({"message": "no"}, "provider_error", Charge.PROVISIONAL),
    (None, "provider_error", Charge.PROVISIONAL),
    ({"message": "no", "retryable": False}, "provider_error", Charge.FINAL),
    ({"class": "refused", "message": "no"}, "refused", Charge.FINAL),
    ({"class": "refused", "message": "no", "retryable": True}, "refused", Charge.FULL),
    ({"class": "unavailable", "message": "no"}, "unavailable", Charge.FREE),
    ({"class": "unavailable", "message": "no", "retryable": False}, "unavailable", Charge.FINAL),
    ({"class": "bug", "message": "no"}, "bug", Charge.FULL),
    ({"class": "weather", "message": "no"}, "bad_output", Charge.FULL),
    ({"class": "worker_lost", "message": "no"}, "bad_output", Charge.FULL),
    ({"class": ["refused"], "message": "no"}, "bad_output", Charge.FULL),
    ({"class": None, "message": "no", "retryable": None}, "provider_error", Charge.PROVISIONAL),
    ({"class": "refused", "message": "no", "retryable": None}, "refused", Charge.FINAL),
]


@pytest.mark.parametrize(("error", "cls", "charge"), FAILED)
async def test_a_failure_has_the_class_that_the_function_reports(
    error: dict[str, Any] | None, cls: str, charge: Charge
) -> None:
    with pytest.raises(ProviderError, match=r".") as caught:
        await called(lambda body: {"job_id": body["job_id"], "status": "failed", "error": error})
    verdict = classify(caught.value)
    assert (verdict.cls, verdict.charge) == (cls, charge)
    assert verdict.address is not None
    if error is not None and cls != "bad_output":
        assert str(caught.value) == "no"


@pytest.mark.parametrize("public", [True, False, None, "yes"])
async def test_a_function_decides_whether_customers_see_its_message(public: Any) -> None:
    error = {"message": "too small", "class": "refused", "public": public}
    with pytest.raises(ProviderError, match="too small") as caught:
        await called(lambda body: {"job_id": body["job_id"], "status": "failed", "error": error})
    outcome = outcome_of(caught.value)
    assert isinstance(outcome, Failed)
    assert outcome.error.public is (public is True)
    columns = read_item({"status": "failed", "error": error}).columns
    assert json.loads(columns["error"]).get("public", False) is (public is True)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (lambda body: {**body, "status": "progress"}, "progress only"),
        (lambda body: {**body, "status": "succeeded", "job_id": "other"}, "another job"),
        (lambda body: {**body, "status": "succeeded", "token": "other"}, "another job's token"),
        (lambda _: "\x00", "cannot be stored"),
        (lambda _: {"long": "x" * http.REPLY_BYTES}, "more than 4194304 bytes"),
    ],
)
async def test_an_invalid_reply_is_bad_output(reply: Reply, message: str) -> None:
    with pytest.raises(ProviderError, match=message) as caught:
        await called(reply)
    assert classify(caught.value).cls == "bad_output"
    assert await busy() == 0


async def test_invalid_json_with_the_type_of_json_is_bad_output() -> None:
    for kind, body in (("application/json", "{"), ("text/plain", "\udcff")):
        data = answer(200, {"content-type": kind}, "")[:-4].replace(b"length: 0", b"length: 1")
        async with answering(data + b"\r\n\r\n" + body.encode("utf-8", "surrogateescape")) as port:
            config = Http(endpoint=at(f"http://127.0.0.1:{port}/f"))
            verdict, _ = await fails(build(config), NotedJob(), {})
            assert verdict.cls == "bad_output"


@pytest.mark.parametrize(
    ("status", "cls"),
    [(301, "config"), (401, "auth"), (408, "unavailable"), (425, "unavailable"),
     (429, "rate_limited"), (500, "provider_error"), (503, "overloaded")],
)  # fmt: skip
async def test_other_statuses_are_failures(status: int, cls: str) -> None:
    with pytest.raises(ProviderError, match=f"answered with status {status}") as caught:
        await called(lambda _: {"detail": "Zanzibar"}, status=status)
    assert classify(caught.value).cls == cls
    assert "Zanzibar" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 402, 403, 404, 409, 410, 418, 422, 499])
async def test_a_refusal_fails_only_this_job(status: int) -> None:
    """One pupil's invalid payload must not stop the queue for all."""
    with pytest.raises(ProviderError, match=f"answered with status {status}") as caught:
        await called(
            lambda _: {"error": {"code": "insufficient_quota", "message": "Zanzibar"}},
            status=status,
            headers={"Retry-After": "5"},
        )
    verdict = classify(caught.value)
    assert (verdict.cls, verdict.charge, verdict.circuit) == (
        "invalid_request",
        Charge.FINAL,
        Circuit.NONE,
    )
    assert (verdict.status, verdict.code, verdict.after) == (status, "insufficient_quota", None)
    assert "Zanzibar" not in str(caught.value)


async def test_a_function_may_say_why_it_refuses() -> None:
    with pytest.raises(ProviderError) as caught:
        await called(lambda _: {"error": {"code": "context_length_exceeded"}}, status=400)
    assert classify(caught.value).cls == "input_too_long"


@pytest.mark.parametrize("begun", [False, True])
async def test_a_function_that_hangs_has_stalled(begun: bool) -> None:
    """It is not the job's timeout, which would be a failure of the job, not of the function."""
    data = answer(200, {}, "{", missing=5) if begun else b""
    async with answering(data, "hang") as port:
        config = Http(endpoint=at(f"http://127.0.0.1:{port}/f"), answer_seconds=0.2)
        with pytest.raises(ProviderError, match=r"did not answer in 0.2 s") as caught:
            await build(config)(NotedJob(), {})
        verdict = classify(caught.value)
        assert (verdict.cls, verdict.charge) == ("stalled", Charge.PROVISIONAL)
        assert verdict.address == f"127.0.0.1:{port}"
        assert await busy() == 0


async def test_redirects_are_not_followed() -> None:
    async with answering(answer(200, {}, "{}")) as port:
        moved = answer(307, {"location": f"http://127.0.0.1:{port}/"}, "")
        async with answering(moved) as first:
            config = Http(endpoint=at(f"http://127.0.0.1:{first}/f"))
            verdict, _ = await fails(build(config), NotedJob(), {})
    assert (verdict.cls, verdict.status) == ("config", 307)


@pytest.mark.parametrize(
    ("data", "then", "cls"),
    [
        (b"", "close", "interrupted"),
        (b"", "reset", "interrupted"),
        (answer(200, {}, "{", missing=5), "close", "interrupted"),
        (answer(200, {}, "{", missing=5), "reset", "interrupted"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "close", "interrupted"),
        (answer(500, {}, "{", missing=5), "close", "provider_error"),
    ],
)
async def test_a_connection_that_ends_early(data: bytes, then: Any, cls: str) -> None:
    async with answering(data, then) as port:
        config = Http(endpoint=at(f"http://127.0.0.1:{port}/f"))
        verdict, _ = await fails(build(config), NotedJob(), {})
        assert verdict.cls == cls
        assert await busy() == 0


async def test_no_name_no_port_no_tls() -> None:
    async with answering(answer(200, {}, "{}")) as port:
        for url in (
            "http://no-such-host.invalid/f",
            "http://127.0.0.1:1/f",
            f"https://127.0.0.1:{port}/f",
        ):
            verdict, _ = await fails(build(Http(endpoint=at(url))), NotedJob(), {})
            assert verdict.cls == "unavailable", url


async def test_a_handshake_that_hangs_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 0.2)
    async with answering(b"", "hang") as port:
        config = Http(endpoint=at(f"https://127.0.0.1:{port}/f"))
        with pytest.raises(
            ProviderError, match=r"did not accept the connection within 0.2 s"
        ) as caught:
            await build(config)(NotedJob(), {})
    assert caught.value.signal.exception == "connect_timeout"


async def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert await called(lambda _: {"direct": True}) == {"direct": True}


async def test_user_and_password_are_sent_in_a_header_and_not_shown() -> None:
    seen: list[str] = []

    async def respond(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        return web.Response(status=500)

    async with function(respond) as config:
        url = config.endpoint.url.replace("http://", "http://me:Zanzi%20bar@")
        endpoint = at(url)
        with pytest.raises(ProviderError, match="status 500") as caught:
            await build(Http(endpoint=endpoint))(NotedJob(), {})
    assert seen == [f"Basic {base64.b64encode(b'me:Zanzi bar').decode()}"]
    assert "Zanzi" not in repr(endpoint) + str(caught.value) + repr(caught.value.signal)


def test_a_whole_address_may_be_a_secret() -> None:
    assert "Zanzibar" not in repr(at("http://127.0.0.1/hooks/Zanzibar?key=Zanzibar"))


def test_each_loop_has_its_own_client_and_closes_it() -> None:
    found: list[Transport] = []

    async def use() -> None:
        await called(lambda _: 1)
        found.append(await Transport.here())
        assert found[-1] is await Transport.here()
        assert found[-1]._sessions

    asyncio.run(use())
    asyncio.run(use())
    assert found[0] is not found[1]
    assert not found[0]._sessions
    assert not found[1]._sessions


async def test_it_can_be_closed_before_the_loop_and_used_again() -> None:
    await called(lambda _: 1)
    before = await Transport.here()
    await close_transport()
    await close_transport()
    assert not before._sessions
    assert await called(lambda _: 2) == 2


async def test_the_functions_own_error_text_is_kept_for_operators_only() -> None:
    """It may quote the payload: it is stored with the attempt and never logged."""
    with pytest.raises(ProviderError) as caught:
        await called(lambda _: {"error": {"message": "no field n, api_key=abc12345"}}, status=400)
    assert "no field n" not in str(caught.value)
    kept = described(caught.value)
    assert kept.startswith("the function at 127.0.0.1:")
    assert kept.endswith("answered with status 400: no field n, api_key=[redacted]")
    closed = outcome_of(caught.value)
    assert isinstance(closed, Failed)
    assert not closed.error.public
