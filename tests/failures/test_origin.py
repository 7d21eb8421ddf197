"""Failures of other services than the model: they count for the job, but not for its queue."""

import asyncio
import errno
import http.client
import os
import smtplib
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from datetime import timedelta
from email.message import Message
from types import SimpleNamespace
from typing import Any

import aiohttp
import anthropic
import fastapi
import httpx
import httpx2
import ollama
import openai
import pytest
import requests
import urllib3
from aiohttp import web

from failures.test_exceptions import raised
from penstock.failures.classify import classify
from penstock.failures.verdict import CLASSES, Charge, Circuit, Fault, Verdict
from penstock.net.model_addresses import of_a_model
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal
from support.models import callers
from support.models.answering import answer, answering, closed_port

PICTURE = "https://bucket.s3.eu-central-1.amazonaws.com/essays/7.png?X-Amz-Signature=abc"
SLACK = "https://slack.com/api/chat.postMessage"


def answered(status: int, url: str, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", url)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.Response(status, headers=named, request=request)
    return httpx.HTTPStatusError("", request=request, response=response)


def by_requests(status: int, url: str) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    response.request = requests.Request("GET", url).prepare()
    return requests.HTTPError(response=response)


def by_urllib(status: int, url: str) -> urllib.error.HTTPError:
    return urllib.error.HTTPError(url, status, "", Message(), None)


def by_aiohttp(status: int, url: str) -> aiohttp.ClientResponseError:
    info: Any = SimpleNamespace(url=url, real_url=url)
    return aiohttp.ClientResponseError(info, (), status=status)


class NotFoundError(Exception):
    status_code = 404


class Denied(Exception):  # noqa: N818
    status_code = 403


class CardError(Exception):
    http_status = 402


class Overloaded(Exception):  # noqa: N818
    def __init__(self) -> None:
        super().__init__()
        self.response = SimpleNamespace(status_code=503, headers={"retry-after": "60"})


def caused(outer: BaseException, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


def handled(outer: BaseException, context: BaseException) -> BaseException:
    outer.__context__ = context
    return outer


def broken_pipe() -> None:
    """As of a pipe to an ffmpeg that has died."""
    its_end, ours = os.pipe()
    os.close(its_end)
    try:
        os.write(ours, b"x")
    finally:
        os.close(ours)


STORED = [
    (answered(403, PICTURE), "invalid_request"),
    (answered(401, "http://backend:8000/students/7"), "invalid_request"),
    (answered(401, "http://127.0.0.1:8000/v1/students/7"), "invalid_request"),
    (answered(402, "https://api.stripe.com/v1/charges"), "invalid_request"),
    (answered(404, "http://pictures/of/anna.png"), "invalid_request"),
    (answered(301, "https://example.org/picture.png"), "invalid_request"),
    (answered(429, SLACK), "rate_limited"),
    (answered(409, "https://example.org/locks/7"), "provider_error"),
    (answered(500, "https://example.org/students"), "provider_error"),
    (answered(503, "http://backend/students"), "provider_error"),
    (answered(504, "https://example.org/students"), "provider_error"),
    (by_requests(429, SLACK), "rate_limited"),
    (by_requests(401, "https://example.org/me"), "invalid_request"),
    (by_urllib(403, PICTURE), "invalid_request"),
    (by_aiohttp(403, PICTURE), "invalid_request"),
    (by_aiohttp(503, "https://example.org/"), "provider_error"),
    (caused(RuntimeError("no picture"), answered(403, PICTURE)), "invalid_request"),
    # The app's own
    (NotFoundError(), "bug"),
    (Denied(), "bug"),
    (CardError(), "bug"),
    (Overloaded(), "bug"),
    (fastapi.HTTPException(401), "bug"),
    (web.HTTPUnauthorized(), "bug"),
    # Connections
    (httpx.ConnectError("", request=httpx.Request("GET", "https://gone.example.org/x")),
     "unavailable"),
    (httpx.ConnectTimeout("", request=httpx.Request("GET", PICTURE)), "unavailable"),
    (httpx.ReadTimeout("", request=httpx.Request("GET", PICTURE)), "stalled"),
    (httpx.RemoteProtocolError("", request=httpx.Request("GET", PICTURE)), "interrupted"),
    (httpx.TooManyRedirects("", request=httpx.Request("GET", PICTURE)), "invalid_request"),
    (httpx.PoolTimeout("", request=httpx.Request("GET", PICTURE)), "unavailable"),
    (requests.ConnectionError(request=requests.Request("GET", PICTURE).prepare()), "interrupted"),
    (urllib3.exceptions.MaxRetryError(urllib3.HTTPSConnectionPool("example.org"), "/x"),
     "interrupted"),
    (ConnectionError("ldap"), "unavailable"),
    (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "unavailable"),
    (ConnectionResetError(errno.ECONNRESET, "reset"), "interrupted"),
    (OSError(errno.EHOSTUNREACH, "no route"), "unavailable"),
    (TimeoutError(errno.ETIMEDOUT, "timed out"), "unavailable"),
    (socket.gaierror(socket.EAI_NONAME, "not known"), "unavailable"),
    (ssl.SSLCertVerificationError(1, "expired"), "unavailable"),
    (asyncio.IncompleteReadError(b"x", 9), "interrupted"),
    (smtplib.SMTPServerDisconnected("closed"), "bug"),
    (raised(lambda: smtplib.SMTP("127.0.0.1", closed_port(), timeout=5)), "unavailable"),
    (raised(broken_pipe), "bug"),
    (caused(RuntimeError(), ConnectionRefusedError()), "unavailable"),
    # A bug while something was being handled
    (handled(KeyError("x"), httpx.ConnectError("")), "bug"),
    (handled(ConnectionError("ldap"), httpx.ConnectError("")), "unavailable"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "cls"), STORED, ids=lambda value: repr(value)[:60])
def test_a_failure_of_another_service_counts_and_opens_no_circuit(
    error: BaseException, cls: str
) -> None:
    """S9: only the provider's own failures are free, and stop its queue."""
    verdict = classify(error)
    assert (verdict.cls, verdict.charge, verdict.circuit) == (cls, Charge.FULL, Circuit.NONE)
    assert verdict.fault is Fault.UNKNOWN
    assert verdict.after is None


def test_a_requested_wait_is_kept() -> None:
    verdict = classify(answered(429, SLACK, retry_after="30"))
    assert (verdict.charge, verdict.after) == (Charge.FULL, timedelta(seconds=30))


def test_the_words_of_another_service_are_not_read() -> None:
    request = httpx.Request("POST", "https://api.stripe.com/v1/charges")
    response = httpx.Response(400, request=request, json={"error": {"code": "insufficient_funds"}})
    error = httpx.HTTPStatusError("", request=request, response=response)
    assert classify(error).cls == "invalid_request"


async def _httpx(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False, verify=callers.TLS) as client:
        await client.get(url)


async def _aiohttp(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(url):
        pass


def _requests(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=5)


def _urllib3(url: str) -> None:
    with urllib3.PoolManager(retries=False) as pool:
        pool.request("GET", url, timeout=5)


def _urllib(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(url, timeout=5)


GENERAL: dict[str, Callable[[str], Awaitable[object]]] = {
    "httpx": _httpx,
    "aiohttp": _aiohttp,
    "requests": lambda url: asyncio.to_thread(_requests, url),
    "urllib3": lambda url: asyncio.to_thread(_urllib3, url),
    "urllib": lambda url: asyncio.to_thread(_urllib, url),
}


async def verdict_of(library: str, url: str) -> Verdict:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # each has its own
        await GENERAL[library](url)
    return classify(caught.value)


@pytest.mark.parametrize("library", GENERAL)
async def test_a_dead_address_that_a_user_gave(library: str) -> None:
    """S9: one pupil's dead link does not stop the queue for all."""
    verdict = await verdict_of(library, "http://dead.example.invalid/homework.pdf")
    assert (verdict.cls, verdict.charge, verdict.circuit) == (
        "unavailable",
        Charge.FULL,
        Circuit.NONE,
    )


@pytest.mark.parametrize("library", GENERAL)
async def test_an_unreachable_private_address_counts_as_the_model(library: str) -> None:
    verdict = await verdict_of(library, f"http://127.0.0.1:{closed_port()}/anything")
    assert (verdict.cls, verdict.charge, verdict.circuit) == (
        "unavailable",
        Charge.FREE,
        Circuit.OPENS,
    )


async def test_a_moved_api_is_a_configuration_error() -> None:
    async with answering(answer(301, {"location": "http://127.0.0.1:1/"}, "")) as port:
        with pytest.raises(httpx.HTTPStatusError) as caught:
            await callers.by_httpx(f"http://127.0.0.1:{port}")
    assert classify(caught.value).cls == "config"


MODELS = [
    answered(401, "https://api.openai.com/v1/anything"),
    answered(401, "https://llm.example.org/v1/chat/completions"),
    answered(401, "http://gpu7:9000/generate"),
    openai.AuthenticationError(
        "",
        response=httpx2.Response(401, request=httpx2.Request("GET", "https://x.example.org/y")),
        body=None,
    ),
    anthropic.AuthenticationError(
        "",
        response=httpx2.Response(401, request=httpx2.Request("GET", "https://x.example.org/y")),
        body=None,
    ),
    ollama.ResponseError("unauthorized", 401),
    ProviderError("no", Signal(status=401)),
    by_aiohttp(401, "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent"),
]


@pytest.mark.parametrize("error", MODELS, ids=lambda value: repr(value)[:60])
def test_failures_of_models_are_still_recognized(error: BaseException) -> None:
    verdict = classify(error)
    assert (verdict.cls, verdict.charge, verdict.circuit) == ("auth", Charge.FREE, Circuit.STOPS)


def test_a_shared_library_counts_as_the_model_if_a_model_was_called() -> None:
    kind = type("ResourceExhausted", (Exception,), {"__module__": "google.api_core.exceptions"})
    error = kind()
    error.code = 429
    assert classify(error).charge is Charge.FULL

    called: dict[str, Any] = {"__name__": "google.generativeai.models", "error": error}
    exec("def generate():\n    raise error", called)  # noqa: S102  # a frame of that module
    assert classify(raised(called["generate"])) == _with_status(CLASSES["rate_limited"], 429)


def _with_status(verdict: Verdict, status: int) -> Verdict:
    return Verdict(
        verdict.cls, verdict.charge, verdict.circuit, verdict.fault, verdict.after, status=status
    )


def test_a_bare_exception_of_http_is_the_providers() -> None:
    assert classify(http.client.RemoteDisconnected("closed")).charge is Charge.PROVISIONAL


@pytest.mark.parametrize(
    ("url", "answered", "found"),
    [
        ("https://api.openai.com/v1/files", True, True),
        ("https://eu.api.openai.com/v1/files", True, True),
        ("https://notapi.openai.com.example.org/v1/files", True, False),
        ("https://school.openai.azure.com/openai/x", True, True),
        ("https://us-central1-aiplatform.googleapis.com/x", True, True),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/model/m/invoke", True, True),
        ("https://gate.example.org/team/v1/chat/completions", True, True),
        ("https://gate.example.org/v1/messages", True, True),
        ("https://gate.example.org/anthropic/v1/messages/", True, True),
        ("https://gate.example.org/openai/v1/responses", True, True),
        ("https://gate.example.org/v1/images/generations", True, True),
        ("https://gate.example.org/api/embed", True, True),
        ("https://example.org/rest/v1/messages", True, False),
        ("https://example.org/v1/messages/7", True, False),
        ("https://example.org/chat", True, False),
        ("https://example.org:11434/anything", True, True),
        ("https://example.org/", False, False),
        ("http://localhost:8080/completion", True, True),
        ("http://localhost:8080/students", True, False),
        ("http://localhost:8080/students", False, True),
        ("http://gpu.lan/x", False, True),
        ("http://10.0.0.7/x", False, True),
        ("http://8.8.8.8/x", False, False),
        ("http://[::1]:9/x", False, True),
        ("/v1/messages", True, None),
        (None, True, None),
        ("http://[", True, None),
        ("http://host:99999999/", True, None),
    ],
)
def test_models_are_recognized_by_their_addresses(
    url: object, answered: bool, found: bool | None
) -> None:
    assert of_a_model(url, answered=answered) is found


@pytest.mark.parametrize("headers", [{"retry-after": "0"}, {"retry-after-ms": "20"}])
def test_a_wait_of_zero_becomes_a_second_or_the_queues_own(headers: dict[str, str]) -> None:
    free = classify(Signal(status=429, headers=headers))
    assert (free.charge, free.after) == (Charge.FREE, timedelta(seconds=1))
    provisional = classify(Signal(status=500, headers=headers))
    assert (provisional.charge, provisional.after) == (Charge.PROVISIONAL, None)
    assert classify(Signal(status=429, headers=headers, elsewhere=True)).after is None
    asked = classify(Signal(status=500, headers={"retry-after": "1"}))
    assert asked.after == timedelta(seconds=1)
