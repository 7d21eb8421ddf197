"""Signals: the facts of a failed call, before it is classified."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

MESSAGE_MAX = 4_000
"""How many characters of a provider's text are read; it may quote a whole prompt."""

_BODY_MAX = 1_000_000  # a longer body is not parsed: it is not an API's error
_PAGE_MAX = 20_000  # how much of a proxy's page is read
_STATUSES = range(100, 600)
_ERRORS = range(400, 600)
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_TAGS = re.compile(r"<[^<>]{0,2000}>")


@dataclass(frozen=True, slots=True)
class Signal:
    """The facts of a failed call: from our own handlers, or read from libraries' exceptions."""

    status: int | None = None  # HTTP status; 200 is possible if the stream failed later
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    code: str | None = None  # this and the next two are from the body
    type: str | None = None
    message: str = ""
    stop_reason: str | None = None  # finish_reason, done_reason, stop_reason
    exception: str | None = None
    """The kind of failure. No connection: connect, dns, tls, connect_timeout. No answer in time:
    first_token, stall, read_timeout. Broken off: reset, incomplete. A wrong answer: bad_json,
    empty, schema, truncated_input, remote_host. From exceptions also: pipe, pool, redirect,
    deadline, database."""
    received: bool = False  # at least one byte of the answer had arrived
    address: str | None = None  # host:port
    elsewhere: bool = False  # the failure of another service that the handler used


def from_body(
    status: int | None,
    headers: object,
    body: bytes | str,
    address: str | None = None,
) -> Signal:
    """Read an error answer: JSON of the known providers, problem+json, or a proxy's page."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    value: Any = text
    if len(text) <= _BODY_MAX:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
    return from_value(status, headers, value, address)


def from_value(
    status: int | None, headers: object, body: object, address: str | None = None
) -> Signal:
    """The same for a body that is parsed already."""
    code, kind, message = _words(body)
    number = status_of(code)
    if number is not None:
        # vLLM and llama.cpp repeat the status as the code. Inside a stream that began with 200
        # it is the only status there is.
        code = None
        status = number if number in _ERRORS and (status is None or status < 400) else status  # noqa: PLR2004
    return Signal(
        status=status,
        headers=plain_headers(headers),
        code=code,
        type=kind,
        message=message,
        received=True,
        address=address,
    )


def _words(body: object) -> tuple[str | None, str | None, str]:
    """Return code, type and message of a body."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, str | bytes):
        text = body if isinstance(body, str) else body.decode("utf-8", "replace")
        return None, None, _text(_TAGS.sub(" ", text[:_PAGE_MAX]))
    if not isinstance(body, Mapping):
        return None, None, ""
    error = body.get("error", body)
    if not isinstance(error, Mapping):  # Ollama: {"error": "text"}
        return _word(body.get("code")), _word(body.get("type")), _text(error)
    details = error.get("details")
    deeper = details.get("error_code") if isinstance(details, Mapping) else None  # Anthropic
    message = error.get("message") or error.get("detail") or error.get("title")
    return (
        _word(deeper) or _word(error.get("code")),
        _last_part(_word(error.get("type") or error.get("status"))),
        _text(message),
    )


def _word(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    try:
        return str(value)[:200] or None
    except ValueError:  # a number with thousands of digits
        return None


def _last_part(word: str | None) -> str | None:
    """Return the name in a problem's type, which is a URL: https://example.org/rate-limited."""
    return word and (word.rstrip("/").rpartition("/")[2] or None)


def _text(value: object) -> str:
    return (
        " ".join(value[: MESSAGE_MAX * 2].split())[:MESSAGE_MAX] if isinstance(value, str) else ""
    )


def status_of(value: object) -> int | None:
    """Return an HTTP status, also if it is a string; None: it is not a status."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:  # noqa: PLR2004
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value in _STATUSES:
        return int(value)
    return None


def plain_headers(headers: object) -> dict[str, str]:
    """Return headers as a dict with names in lower case, from any library's type of headers."""
    try:
        pairs: Iterable[Any] = headers.items() if hasattr(headers, "items") else headers  # type: ignore[assignment]
        return {
            _header(name).lower(): _header(value)
            for name, value in pairs
            if isinstance(name, str | bytes) and isinstance(value, str | bytes)
        }
    except Exception:  # noqa: BLE001  # no headers, or unreadable ones
        return {}


def _header(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def address_of(url: object) -> str | None:
    """Return only `host:port` of an address: no user, no password, no path."""
    try:
        parts = urlsplit(str(url))
        port = parts.port or _PORTS.get(parts.scheme)
    except Exception:  # noqa: BLE001  # whatever was given as an address
        return None
    return host_and_port(parts.hostname, port)


def host_and_port(host: object, port: object) -> str | None:
    if not isinstance(host, str) or not host or not isinstance(port, int):
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
