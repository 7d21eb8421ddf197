"""Exceptions of any kind and their causes: the right one decides, and none breaks `classify`."""

import asyncio
import errno
import http.client
import io
import json
import socket
import ssl
import urllib.error
from collections.abc import Callable
from email.message import Message
from typing import Any, Never
from uuid import uuid4

import asyncpg
import fastapi
import httpx
import httpx2
import openai
import psycopg
import pydantic
import pytest
import requests
import sqlalchemy.exc
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import Invalid, JobFailed, RateLimited, Unavailable
from penstock.failures.classify import CHAIN_MAX, chain, classify, judge_exception
from penstock.failures.verdict import CLASSES, Charge, Circuit, Fault, Verdict
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal
from support.models.answering import closed_port

REQUEST = httpx.Request("POST", "http://user:secret@model:11434/api/chat?key=secret")


def raised(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except BaseException as error:  # noqa: BLE001
        return error
    pytest.fail("nothing was raised")


def not_found(url: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", url)
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(404, request=request))


def schema_error() -> BaseException:
    return raised(lambda: pydantic.TypeAdapter(int).validate_python("seven"))


KNOWN = [
    (ConnectionError("Failed to connect to Ollama"), "unavailable"),
    (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "unavailable"),
    (ConnectionResetError(errno.ECONNRESET, "reset"), "interrupted"),
    (BrokenPipeError(), "bug"),
    (ConnectionAbortedError(), "interrupted"),
    (OSError(errno.EHOSTUNREACH, "no route"), "unavailable"),
    (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1)"), "unavailable"),
    (socket.gaierror(socket.EAI_NONAME, "not known"), "unavailable"),
    (ssl.SSLCertVerificationError(1, "expired"), "unavailable"),
    (ssl.SSLEOFError(8, "EOF"), "interrupted"),
    (TimeoutError(), "timeout"),
    (asyncio.TimeoutError(), "timeout"),  # noqa: UP041  # as apps write it
    (TimeoutError(errno.ETIMEDOUT, "timed out"), "unavailable"),
    (asyncio.IncompleteReadError(b"x", 9), "interrupted"),
    (http.client.IncompleteRead(b"x", 9), "interrupted"),
    (http.client.RemoteDisconnected("closed"), "interrupted"),
    (urllib.error.URLError(ConnectionRefusedError()), "unavailable"),
    (urllib.error.URLError(TimeoutError("timed out")), "unavailable"),
    (urllib.error.URLError(socket.gaierror(-2, "not known")), "unavailable"),
    (urllib.error.URLError("unknown url type: modelx"), "bug"),
    (urllib.error.HTTPError("http://m/v1", 429, "", Message(), None), "rate_limited"),
    (json.JSONDecodeError("no", "{", 0), "bad_output"),
    (requests.JSONDecodeError("no", "{", 0), "bad_output"),
    (schema_error(), "bad_output"),
    (httpx.ConnectTimeout(""), "unavailable"),
    (httpx.PoolTimeout(""), "unavailable"),
    (httpx.WriteTimeout(""), "stalled"),
    (httpx.TooManyRedirects(""), "config"),
    (httpx.LocalProtocolError(""), "bug"),
    (requests.Timeout(), "stalled"),
    (requests.ConnectionError(), "interrupted"),
    (not_found("http://model/v1/chat/completions"), "config"),
    (not_found("http://model/api/generate"), "config"),
    (not_found("http://pictures/of/anna.png"), "invalid_request"),
    (ValueError("no"), "bug"),
    (KeyError("x"), "bug"),
    (FileNotFoundError(errno.ENOENT, "no file"), "bug"),
    (MemoryError(), "bug"),
    (fastapi.HTTPException(503), "bug"),
    (KeyboardInterrupt(), "bug"),
    (SystemExit(429), "bug"),
    # Penstock's own: its refusals are bugs of the handler.
    (RateLimited("too many", code="rate_limited"), "bug"),
    (Invalid("no", code="invalid_payload"), "bug"),
    (Unavailable("the database cannot be reached"), "bug"),
]


@pytest.mark.parametrize(("error", "cls"), KNOWN, ids=lambda value: repr(value)[:60])
def test_an_exception_has_its_class(error: BaseException, cls: str) -> None:
    assert classify(error).cls == cls
    assert judge_exception(error).cls == cls


def test_an_unread_answer_is_not_read() -> None:
    body = io.BytesIO(b'{"error": {"code": "insufficient_quota"}}')
    with urllib.error.HTTPError("http://m/v1/chat", 429, "", Message(), body) as error:
        assert classify(error).cls == "rate_limited"
        assert body.tell() == 0
    assert classify(error).cls == "rate_limited"


def test_the_address_is_host_and_port_alone() -> None:
    assert classify(httpx.ConnectError("", request=REQUEST)).address == "model:11434"
    assert classify(httpx.ConnectError("")).address is None


# -- Databases


async def test_a_database_is_not_the_provider() -> None:
    port = closed_port()
    errors: list[BaseException] = [asyncpg.CannotConnectNowError("starting"), psycopg.Error("x")]
    with pytest.raises(ConnectionRefusedError) as plain:
        # Only the traceback shows that this refused connection was the driver's.
        await asyncpg.connect(host="127.0.0.1", port=port, user="u", timeout=5)
    errors.append(plain.value)
    with pytest.raises(psycopg.OperationalError) as wrapped:
        await psycopg.AsyncConnection.connect(f"host=127.0.0.1 port={port}")
    errors.append(wrapped.value)
    caused = sqlalchemy.exc.OperationalError("select", {}, ConnectionRefusedError())
    caused.__cause__ = ConnectionRefusedError()
    errors.append(caused)
    assert [classify(error) for error in errors] == [CLASSES["bug"]] * len(errors)


def test_a_refusal_caused_by_a_lost_connection_stays_ours() -> None:
    error = Unavailable("the database cannot be reached")
    error.__cause__ = ConnectionRefusedError()
    assert classify(error) == CLASSES["bug"]


# -- Causes


def test_the_cause_decides_if_the_wrapper_is_unknown() -> None:
    error = RuntimeError("marking failed")
    error.__cause__ = ValueError()
    error.__cause__.__cause__ = httpx.ConnectError("", request=REQUEST)
    verdict = classify(error)
    assert (verdict.cls, verdict.address) == ("unavailable", "model:11434")


def test_the_outermost_known_exception_decides() -> None:
    error = httpx.ReadTimeout("")
    error.__cause__ = ConnectionRefusedError()
    assert classify(error).cls == "stalled"


def test_a_time_out_inside_a_library_has_the_class_of_the_librarys_exception() -> None:
    error = openai.APITimeoutError(httpx2.Request("POST", "http://model/v1/chat/completions"))
    error.__cause__ = TimeoutError()
    verdict = classify(error)
    assert (verdict.cls, verdict.address) == ("stalled", "model:80")


def test_a_context_counts_for_a_library_that_wraps_without_from() -> None:
    error: BaseException = requests.ConnectionError()
    error.__context__ = httpx.ReadTimeout("")
    assert classify(error).cls == "stalled"
    error.__suppress_context__ = True
    assert classify(error).cls == "interrupted"


def test_a_bug_in_an_except_block_is_a_bug() -> None:
    for bug in (KeyError("x"), RuntimeError()):
        bug.__context__ = httpx.ConnectError("", request=REQUEST)
        assert classify(bug) == CLASSES["bug"]


def test_a_cause_is_preferred_to_a_context() -> None:
    error = RuntimeError()
    error.__context__ = httpx.ReadTimeout("")
    error.__cause__ = httpx.ConnectError("")
    assert classify(error).cls == "unavailable"


def test_causes_in_a_circle_end() -> None:
    first, second = RuntimeError(), RuntimeError()
    first.__cause__, second.__cause__ = second, first
    assert classify(first).cls == "bug"
    assert list(chain(first)) == [first, second]


def test_a_chain_is_followed_to_a_limit() -> None:
    def depth(length: int) -> BaseException:
        error: BaseException = httpx.ConnectError("")
        for _ in range(length):
            outer = RuntimeError()
            outer.__cause__ = error
            error = outer
        return error

    assert classify(depth(CHAIN_MAX - 1)).cls == "unavailable"
    assert classify(depth(CHAIN_MAX)).cls == "bug"
    assert len(list(chain(depth(1_000)))) == CHAIN_MAX


def test_the_first_known_of_a_group_decides() -> None:
    group = ExceptionGroup("", [ValueError(), ExceptionGroup("", [httpx.ReadTimeout("")])])
    assert classify(group).cls == "stalled"
    group.__cause__ = ConnectionRefusedError()
    assert classify(group).cls == "stalled"
    assert classify(ExceptionGroup("", [ValueError()])).cls == "bug"
    assert classify(BaseExceptionGroup("", [KeyboardInterrupt(), TimeoutError()])).cls == "timeout"
    assert classify(ExceptionGroup("", [ValueError()] * 1_000)).cls == "bug"


# -- Declared by the author


class Named(httpx.ConnectError):
    error_class = "refused"


def test_a_class_declared_by_the_author_overrides_other_signs() -> None:
    verdict = classify(Named("", request=REQUEST))
    assert (verdict.cls, verdict.charge, verdict.address) == (
        "refused",
        Charge.FINAL,
        "model:11434",
    )


def test_an_unknown_class_is_ignored() -> None:
    error = httpx.ConnectError("")
    words: list[object] = ["nonsense", None, 7, [], {}]
    for word in words:
        error.error_class = word  # type: ignore[attr-defined]
        assert classify(error).cls == "unavailable"


def test_an_extension_overrides_a_declared_class_and_other_signs() -> None:
    own = Verdict("quota", Charge.FULL, Circuit.NONE, Fault.JOB)

    def broken(_: BaseException) -> Never:
        raise ValueError

    def knows(declared: Any) -> Callable[[BaseException], Any]:
        return lambda error: declared if isinstance(error, httpx.ConnectError) else None

    error = RuntimeError()
    error.__cause__ = Named("", request=REQUEST)
    assert classify(error, more=[knows(own)]) is own
    assert classify(error, more=[broken, knows("auth")]).cls == "auth"
    assert classify(error, more=[knows("nonsense")]).cls == "refused"
    assert classify(error, more=[knows(7)]).cls == "refused"
    assert classify(TimeoutError(), more=[knows("auth")]).cls == "timeout"


def test_another_jobs_failure_does_not_affect_this_jobs_queue() -> None:
    verdict = classify(JobFailed("no", job_id=uuid4(), error_class="auth"))
    assert (verdict.cls, verdict.charge, verdict.circuit) == ("auth", Charge.FULL, Circuit.NONE)
    assert classify(JobFailed("no", job_id=uuid4(), error_class=None)).cls == "bug"


def test_a_verdict_attached_to_an_exception_is_kept() -> None:
    error = RuntimeError()
    error.verdict = CLASSES["stalled"]  # type: ignore[attr-defined]
    assert classify(error) is CLASSES["stalled"]


# -- Unusual exceptions


class Hostile(Exception):  # noqa: N818
    """Raises at each access."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


def test_an_exception_that_raises_at_each_access_is_a_bug() -> None:
    assert judge_exception(Hostile()) == CLASSES["bug"]
    error = RuntimeError()
    error.__cause__ = Hostile()
    assert judge_exception(error) == CLASSES["bug"]


def test_a_provider_error_without_a_signal_is_a_bug() -> None:
    error = ProviderError("no", Signal(status=503))
    error.signal = None  # type: ignore[assignment]
    assert judge_exception(error).cls == "bug"


class Soup(Exception):  # noqa: N818
    def __getattr__(self, name: str) -> Any:
        value = self.args[0].get(name, AttributeError(name))
        if isinstance(value, Exception):
            raise value
        return value


class Box:
    def __init__(self, kept: dict[str, Any]) -> None:
        self.kept = kept

    __getattr__ = Soup.__getattr__

    @property
    def args(self) -> tuple[dict[str, Any]]:
        return (self.kept,)


THINGS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from([-1, 200, 400, 404, 429, 503, "429", "five"]),
        st.floats(),
        st.text(max_size=30),
        st.binary(max_size=30),
        st.sampled_from([RuntimeError("no"), ValueError(), TypeError(), AttributeError()]),
        st.sampled_from(["http://host/v1", "http://[", "\x00", "http://u:p@h:99999999"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["error", "code", "type", "message"]), inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["headers", "status_code", "request", "url", "_content", "body"]),
            inner,
            max_size=4,
        ).map(Box),
    ),
    max_leaves=12,
)
ATTRIBUTES = st.sampled_from(
    [
        "status_code", "status", "code", "type", "body", "response", "request", "headers", "url",
        "host", "port", "error", "message", "reason", "errno", "signal", "verdict", "error_class",
        "request_info", "class_name", "exceptions",
    ]
)  # fmt: skip
MODULES = ["app", "httpx", "openai", "anthropic", "ollama", "requests", "aiohttp", "urllib.error"]
NAMES = ["Soup", "APIError", "ResponseError", "HTTPStatusError", "URLError", "APIConnectionError"]


@given(
    st.dictionaries(ATTRIBUTES, THINGS, max_size=8),
    st.sampled_from(MODULES),
    st.sampled_from(NAMES),
)
@example({"status_code": 429, "headers": [("Retry-After", "3")]}, "app", "Soup")
@example({"status_code": "429", "headers": None, "body": "x"}, "openai", "APIError")
def test_any_attributes_of_any_library_give_a_class(
    attributes: dict[str, Any], module: str, name: str
) -> None:
    kind = type(name, (Soup,), {"__module__": module})
    verdict = judge_exception(kind(attributes))
    assert verdict.cls in CLASSES
    assert verdict == classify(kind(attributes))


def test_attributes_of_unexpected_types_do_not_hide_others() -> None:
    kind = type("Soup", (Soup,), {"__module__": "httpx"})
    verdict = classify(kind({"status_code": "429", "headers": [("Retry-After", "3")]}))
    assert (verdict.cls, verdict.status) == ("rate_limited", 429)
    assert verdict.after is not None
    assert verdict.after.total_seconds() == 3
    assert classify(kind({"status": 503, "headers": {"Retry-After": ["3"]}})).cls == "overloaded"
