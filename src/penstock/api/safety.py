"""Headers that every answer has unless its route says otherwise: what browsers must not do with it.

Not guess another type, not keep a copy on disk, not run anything in it, and not show it in a frame
of another page.
"""

from collections.abc import Iterable

_NOT_FRAMED = "frame-ancestors 'none'"
NOTHING_RUNS = f"default-src 'none'; {_NOT_FRAMED}"
DEFAULTS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": NOTHING_RUNS,
}
_RAW = [(name.lower().encode(), value.encode()) for name, value in DEFAULTS.items()]

Header = tuple[bytes, bytes]


def completed(headers: Iterable[Header]) -> list[Header]:
    """These headers of an answer, and the defaults that they lack."""
    found = list(headers)
    names = {name.lower() for name, _ in found}
    return found + [default for default in _RAW if default[0] not in names]
