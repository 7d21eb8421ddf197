"""What the exceptions of other people's libraries tell, read by their names and attributes.

None of these libraries is imported: most apps have one of them. Attributes may raise, be missing or
be of any type, so each is taken by `read`. Nothing here reads from a network: a body counts only
when somebody has read it already.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.base.safe_read import is_a, module_of, read, roots
from penstock.errors import PenstockError
from penstock.failures.database_errors import of_a_store
from penstock.failures.origin import client_of, url_of
from penstock.failures.python_errors import system_kind
from penstock.failures.sdk_names import FAMILIES, KINDS, STOPS, WRAPPERS
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal, address_of, from_body, from_value, host_and_port, status_of


@dataclass(frozen=True, slots=True)
class Sighting:
    signal: Signal
    wraps: bool = False  # a cause tells more


def sight(error: BaseException) -> Sighting | None:
    """What this one exception tells, without its causes; None when it is not known."""
    if is_a(error, ProviderError):
        signal = read(error, "signal")
        return Sighting(signal) if isinstance(signal, Signal) else None
    if of_a_store(error):
        return Sighting(Signal(exception="database"))  # no rule knows it: a bug
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
    """`host:port` that was called, where the exception tells."""
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
    """The answer that an exception carries, when it is an HTTP error's."""
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
        # The answer had begun well, then a line of it was an error.
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
    # Their name for it; with others `code` may be anything.
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
        # The bytes that httpx and requests keep once they are read; `.text` might go and read.
        body = read(response, "_content")
    if isinstance(body, bytes | str):
        return from_body(status, headers, body, where)
    if isinstance(body, Mapping | list):
        return from_value(status, headers, body, where)
    return from_value(status, headers, None, where)
