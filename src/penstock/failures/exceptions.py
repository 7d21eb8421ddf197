"""Read signals from single exceptions, of other libraries and of Python itself.

They are recognized by names and attributes, without importing the libraries: most apps have only
one of them. Attributes may raise, be missing or have any type, so each is read with `read`. Nothing
here reads from a network: a body counts only if it has been read already.
"""

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.base.safe_access import is_a, module_of, read, roots
from penstock.errors import PenstockError
from penstock.failures.origin import client_of, of_a_store, raised_in_a_store, url_of
from penstock.failures.sdk_names import FAMILIES, KINDS, STOPS, WRAPPERS
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal, address_of, from_body, from_value, host_and_port, status_of

# Python's own exceptions, and the kind of failure of each: the first match counts.
_KINDS: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((ssl.SSLEOFError, ssl.SSLZeroReturnError), "reset"),
    ((ssl.SSLError,), "tls"),
    ((socket.gaierror,), "dns"),
    ((ConnectionRefusedError,), "connect"),
    ((BrokenPipeError,), "pipe"),
    ((ConnectionResetError, ConnectionAbortedError), "reset"),
    ((ConnectionError,), "connect"),  # Ollama's client: no answer
    ((TimeoutError,), "deadline"),
    ((asyncio.IncompleteReadError,), "incomplete"),
    ((json.JSONDecodeError,), "bad_json"),
)
_UNREACHABLE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT}
)
_RESETS = frozenset({"ConnectionResetError", "BrokenPipeError", "ConnectionAbortedError",
                     "RemoteDisconnected"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sighting:
    signal: Signal
    wraps: bool = False  # the cause is more precise


def sight(error: BaseException) -> Sighting | None:
    """Return the signal of one exception, without its causes; None: it is unknown."""
    if is_a(error, ProviderError):
        signal = read(error, "signal")
        return Sighting(signal) if isinstance(signal, Signal) else None
    if of_a_store(error):
        return Sighting(Signal(exception="database"))  # no rule has it, so it is a bug
    kind = _named(error, KINDS)
    if kind is not None:
        return Sighting(_failure(error, kind))
    stop = _stop_of(error)
    if stop is not None:
        return Sighting(Signal(stop_reason=stop, received=True, address=address(error)))
    answer = _answer(error)
    if answer is not None:
        return Sighting(answer)
    kind = _named(error, WRAPPERS)
    if kind is not None:
        return Sighting(_failure(error, kind), wraps=True)
    kind = system_kind(error)
    return None if kind is None else Sighting(_failure(error, kind))


def address(error: BaseException) -> str | None:
    """Return the called `host:port`, if the exception has it."""
    return address_of(url_of(error)) or host_and_port(read(error, "host"), read(error, "port"))


def _failure(error: BaseException, kind: str) -> Signal:
    received = kind in {"incomplete", "bad_json", "schema"}
    return Signal(exception=kind, received=received, address=address(error))


def _named(error: BaseException, table: Mapping[str, Mapping[str, str]]) -> str | None:
    for base in type(error).__mro__:
        root = module_of(base).partition(".")[0]
        kind = table.get(FAMILIES.get(root, root), {}).get(base.__name__)
        if kind is not None:
            return kind
    return None


def _stop_of(error: BaseException) -> str | None:
    return STOPS.get(type(error).__name__) if "openai" in roots(error) else None


def _answer(error: BaseException) -> Signal | None:
    """Return the signal of the HTTP answer that an exception carries; None: it carries none."""
    client = client_of(error)
    if client is None or not is_a(error, Exception) or is_a(error, PenstockError):
        return None
    response = read(error, "response")
    status = _status(error, response)
    if status is None and not _inside_a_stream(error, client):
        return None
    headers = read(error, "headers")
    if headers is None:
        headers = read(response, "headers")
    signal = _read(error, response, status, headers)
    if status is None or status < 300:  # noqa: PLR2004
        # The answer began with success, and then one of its lines was an error.
        kind = "bad_json" if type(error).__name__ == "ContentTypeError" else "incomplete"
        return replace(signal, exception=kind)
    return signal


def _status(error: BaseException, response: object) -> int | None:
    for holder, name in (
        (error, "status_code"),
        (error, "status"),
        (error, "http_status"),
        (response, "status_code"),
        (response, "status"),
    ):
        status = status_of(read(holder, name))
        if status is not None:
            return status
    # These libraries call the status `code`; in others `code` may be anything.
    named = roots(error) & {"urllib", "google"}
    return status_of(read(error, "code")) if named else None


def _inside_a_stream(error: BaseException, client: str) -> bool:
    name = type(error).__name__
    return client == "model" and (
        name == "APIError" or (name == "ResponseError" and "ollama" in roots(error))
    )


def _read(error: BaseException, response: object, status: int | None, headers: object) -> Signal:
    where = address(error)
    body = read(error, "body")
    if body is None and "ollama" in roots(error):
        body = {"error": read(error, "error")}
    if body is None:
        # httpx and requests keep the bytes they have read here; `.text` might read from a network.
        body = read(response, "_content")
    if isinstance(body, bytes | str):
        return from_body(status, headers, body, where)
    if isinstance(body, Mapping | list):
        return from_value(status, headers, body, where)
    return from_value(status, headers, None, where)


def system_kind(error: BaseException) -> str | None:
    """Return the kind of a Python exception, as in `Signal.exception`; None: it is unknown."""
    kind = next((kind for classes, kind in _KINDS if is_a(error, *classes)), None)
    if kind == "connect" and read(error, "class_name") in _RESETS:
        kind = "reset"  # raised in a handler's own process
    elif kind == "deadline" and read(error, "errno") == errno.ETIMEDOUT:
        kind = "connect_timeout"
    elif kind is None and "urllib" in roots(error) and type(error).__name__ == "URLError":
        # It is raised before the request is sent, so a time-out in it is one of the connection.
        reason = read(error, "reason")
        kind = system_kind(reason) if isinstance(reason, Exception) else None
        return "connect_timeout" if kind == "deadline" else kind
    elif kind is None and is_a(error, OSError) and _unreachable(error):
        kind = "connect"
    return "database" if kind and raised_in_a_store(error) else kind


def _unreachable(error: BaseException) -> bool:
    number = read(error, "errno")
    if number is not None:
        return isinstance(number, int) and number in _UNREACHABLE
    # asyncio raises this if a name has several addresses and none answers.
    first = error.args[0] if error.args else None
    return isinstance(first, str) and first.startswith("Multiple exceptions: ")
