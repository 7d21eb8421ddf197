"""Usage as a provider reports it. The numbers are checked, and recorded for people to read."""

from collections.abc import Mapping
from typing import Any

# More than any context window and any answer of today; a larger number is a mistake.
TOKENS_MAX = 10_000_000
SECONDS_MAX = 7 * 86_400.0
_NAMES_MAX = 20
_NAME_MAX = 60
_NANOSECONDS = 1_000_000_000


def tokens(value: Any) -> int | None:
    """Return a count of tokens, or None if the value cannot be one."""
    return value if type(value) is int and 0 <= value <= TOKENS_MAX else None


def seconds(nanoseconds: Any) -> float | None:
    """Return a duration that Ollama reported in seconds, or None if it cannot be one."""
    if type(nanoseconds) is not int or nanoseconds < 0:
        return None
    length = nanoseconds / _NANOSECONDS
    return round(length, 6) if length <= SECONDS_MAX else None


def given(**counts: float | None) -> dict[str, float]:
    """Return the counts that are not None."""
    return {name: value for name, value in counts.items() if value is not None}


def numbers(reported: Any) -> dict[str, float]:
    """Return the numbers in the usage that a function reports, under the function's own names."""
    if not isinstance(reported, Mapping):
        return {}
    counts: dict[str, float] = {}
    for name, value in reported.items():
        fits = isinstance(name, str) and 0 < len(name) <= _NAME_MAX and name.isprintable()
        if fits and type(value) in (int, float) and 0 <= value <= 1e15:  # noqa: PLR2004
            counts[name] = value
        if len(counts) == _NAMES_MAX:
            break
    return counts
