"""Python's own exceptions, as a handler meets them that calls a model: what each stands for."""

import asyncio
import errno
import json
import socket
import ssl

from penstock.base.safe_read import is_a, read, roots
from penstock.failures.database_errors import raised_in_a_store

_UNREACHABLE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT}
)
_RESETS = frozenset({"ConnectionResetError", "BrokenPipeError", "ConnectionAbortedError",
                     "RemoteDisconnected"})  # fmt: skip


def system_kind(error: BaseException) -> str | None:  # noqa: C901  # a table
    """What it stands for, in the words of `Signal.exception`; None when it says nothing."""
    name = read(error, "class_name")  # of one that a handler's own process raised
    if is_a(error, ssl.SSLError):
        kind = "reset" if is_a(error, ssl.SSLEOFError, ssl.SSLZeroReturnError) else "tls"
    elif is_a(error, socket.gaierror):
        kind = "dns"
    elif is_a(error, ConnectionRefusedError):
        kind = "connect"
    elif is_a(error, BrokenPipeError):
        kind = "pipe"
    elif is_a(error, ConnectionResetError, ConnectionAbortedError):
        kind = "reset"
    elif is_a(error, ConnectionError):
        kind = "reset" if name in _RESETS else "connect"  # Ollama's client: nobody answers
    elif is_a(error, TimeoutError):
        kind = "connect_timeout" if read(error, "errno") == errno.ETIMEDOUT else "deadline"
    elif is_a(error, asyncio.IncompleteReadError):
        kind = "incomplete"
    elif is_a(error, json.JSONDecodeError):
        kind = "bad_json"
    elif "urllib" in roots(error) and type(error).__name__ == "URLError":
        return _url_error_kind(read(error, "reason"))
    elif is_a(error, OSError) and _unreachable(error):
        kind = "connect"
    else:
        return None
    return "database" if raised_in_a_store(error) else kind


def _url_error_kind(reason: object) -> str | None:
    """A URLError is from before the request was sent, so a time-out in it is not the answer's."""
    kind = system_kind(reason) if isinstance(reason, Exception) else None
    return "connect_timeout" if kind == "deadline" else kind


def _unreachable(error: BaseException) -> bool:
    number = read(error, "errno")
    if number is not None:
        return isinstance(number, int) and number in _UNREACHABLE
    # asyncio, when a name has several addresses and none answers.
    first = error.args[0] if error.args else None
    return isinstance(first, str) and first.startswith("Multiple exceptions: ")
