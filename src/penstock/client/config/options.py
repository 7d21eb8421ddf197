"""Reading one option of a declaration: its value in the form SQL takes, or a sentence about it.

SQL checks the same bounds for every caller (refusals.sql). They are checked here too, so that a
mistake is reported at its declaration and not at the first use.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from penstock.base.settings import duration
from penstock.db.connections.connect import FORM
from penstock.errors import Invalid
from penstock.net.endpoint import read_endpoint

Duration = str | int | float | timedelta
"""`"90s"`, `"5m"`, `"2h"`, `"7d"`, or a number of seconds."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}", re.ASCII)
_RATE = re.compile(r"\s*([1-9][0-9]{0,8})\s*/\s*(s|sec|min|m|h|hour|d|day)\s*", re.ASCII)
_PERIOD_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_FASTEST_PER_SECOND = 1_000_000
_TEN_YEARS = timedelta(days=3650)
TEXT_MAX = 200
"""Characters of a text."""
LINK_MAX = 2_000
_SCHEMES = ("postgresql://", "postgres://")

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KIB|MIB|GIB)?", re.ASCII | re.IGNORECASE)
_UNIT_BYTES = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30}
# Less does not even load Python.
_LEAST_MEMORY = 32 * 2**20


def name(value: object, what: str) -> str:
    """Of a queue, kind or plan: they end up in addresses, metrics and log lines."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Invalid(
            f"the {what} name {value!r} must be 1 to 100 letters, digits or any of _.:- and begin "
            "with a letter or digit",
            code="invalid_name",
            field=what,
        )
    return value


def whole(value: Any, option: str, least: int, most: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise wrong(option, value, f"it may be a whole number from {least} to {most}")
    return value


def word(value: Any, option: str, allowed: Sequence[str]) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in allowed:
        raise wrong(option, value, f"it may be {', '.join(allowed)}")
    return value


def flag(value: Any, option: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(option, value, "it may be true or false")
    return value


def text(value: Any, option: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= TEXT_MAX or "\x00" in value:
        raise wrong(option, value, f"it may be a text of 1 to {TEXT_MAX} characters")
    return value


def seconds(value: Any, option: str, *, zero: bool = False) -> float | None:
    if value is None:
        return None
    length = duration(value, field=option)
    if length > _TEN_YEARS or (not length and not zero):
        least = "0 or more" if zero else "more than 0"
        raise wrong(option, value, f"it may be {least}, and at most ten years")
    return _number(length)


def kept(value: Any, option: str) -> float | str | None:
    """How long something is kept; `"forever"` is a length, too."""
    return "forever" if value == "forever" else seconds(value, option)


def rate(value: Any, option: str) -> str | None:
    if value is None:
        return None
    parts = _RATE.fullmatch(value) if isinstance(value, str) else None
    if parts is None:
        raise wrong(option, value, 'it must look like "500/min" (per s, min, h or d)')
    if int(parts[1]) > _FASTEST_PER_SECOND * _PERIOD_SECONDS[parts[2][0]]:
        raise wrong(option, value, f"it may be at most {_FASTEST_PER_SECOND}/s")
    return str(value)


def memory(value: Any, option: str) -> int | None:
    """Bytes, as a number or like `"512MB"`; a megabyte is 1,048,576 of them."""
    match value:
        case None:
            return None
        case bool():
            size = None
        case int():
            size = value
        case str():
            parts = _BYTES.fullmatch(value.strip())
            unit = (parts[2] or "B")[0].upper() if parts else "B"
            size = int(float(parts[1]) * _UNIT_BYTES[unit]) if parts else None
        case _:
            size = None
    if size is None or size < _LEAST_MEMORY:
        raise wrong(option, value, 'it may be 32MB or more, like "512MB", "2GB" or a whole number')
    return size


def address(value: Any, option: str) -> str | None:
    """Of a database. One that is wrong is not quoted: it may hold a password."""
    if value is None or (isinstance(value, str) and value.startswith(_SCHEMES)):
        return value
    raise Invalid(
        f"{option} must be an address of the form {FORM}", code="invalid_option", field=option
    )


def link(value: Any, option: str) -> str | None:
    """An address of the operator's own. One that is wrong is not quoted: it may hold a secret."""
    if value is None:
        return None
    endpoint = read_endpoint(value, from_variable=True, option=option)
    if endpoint.authorization is not None or len(value) > LINK_MAX or not value.isascii():
        raise Invalid(
            f"{option} must be an address in ASCII of at most {LINK_MAX} characters, without user "
            "and password: what it is sent is signed",
            code="invalid_option",
            field=option,
        )
    return str(value)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were said. The rest is left to the defaults, which are in SQL and nowhere else."""
    return {option: value for option, value in options.items() if value is not None}


def wrong(option: str, value: Any, allowed: str) -> Invalid:
    return Invalid(f"{option} is {_shown(value)}; {allowed}", code="invalid_option", field=option)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= TEXT_MAX else f"a {type(value).__name__}"


def _number(length: timedelta) -> float:
    exact = length.total_seconds()
    return int(exact) if exact.is_integer() else exact
