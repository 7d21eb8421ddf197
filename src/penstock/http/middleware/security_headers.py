"""What holds for every request and every answer, whatever its route.

Headers of every answer say what browsers must not do with it, unless its route says otherwise: not
guess another type, not keep a copy on disk, not run anything in it, and not show it in a frame of
another page. A request names its host once, or a proxy in front might read another than we do.
"""

import re
from collections.abc import Iterable

from starlette.types import Scope

_NOT_FRAMED = "frame-ancestors 'none'"
NOTHING_RUNS = f"default-src 'none'; {_NOT_FRAMED}"
DEFAULTS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": NOTHING_RUNS,
}
_RAW = [(name.lower().encode(), value.encode()) for name, value in DEFAULTS.items()]

Header = tuple[bytes, bytes]

_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]{0,255}")
HOST_HINT = "HTTP/1.1 asks for exactly one Host header, like Host: queue.example.org"


def wrong_host(scope: Scope) -> str | None:
    """What is wrong with the Host of a request; None: nothing."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) > 1:
        return "the request has more than one Host header"
    if not hosts:
        return "the request has no Host header" if scope["http_version"] == "1.1" else None
    return None if _HOST.fullmatch(hosts[0]) else "the Host header is not the name of a host"


def completed(headers: Iterable[Header]) -> list[Header]:
    """These headers of an answer, and the defaults that they lack."""
    found = list(headers)
    names = {name.lower() for name, _ in found}
    return found + [default for default in _RAW if default[0] not in names]
