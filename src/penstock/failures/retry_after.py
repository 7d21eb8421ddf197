"""Read how long a provider asks us to wait, from the headers of its answer."""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

LONGEST = timedelta(days=1)
"""Longer waits are cut to a day: a header must not stop a queue for a year."""

_LONGEST_VALUE = 64  # characters; a longer header is not a time
_NUMBER = re.compile(r"\+?(?:\d+\.?\d*|\.\d+)", re.ASCII)
_NOTHING_LEFT = re.compile(r"-.+|\+?0*\.?0+|\+?0+\.", re.ASCII)
# Go's way to write a duration: "6m0s", "1h2m3.5s", "12ms".
_GO_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|us|µs|ns)", re.ASCII)
_GO = re.compile(rf"(?:{_GO_PART.pattern})+", re.ASCII)
_GO_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
# x-ratelimit-reset-tokens, anthropic-ratelimit-tokens-reset, ratelimit-reset
_RESET = re.compile(r"(?:[a-z]+-)?ratelimit-(?:[a-z0-9-]+-)?reset(?:-[a-z0-9-]+)?", re.ASCII)
# A plain number below the first is a wait in seconds; from there on it is a Unix time in seconds,
# and from the second on a Unix time in milliseconds.
_EPOCH_SECONDS = 1e9
_EPOCH_MILLISECONDS = 1e12


def retry_after(headers: Mapping[str, str], now: datetime) -> timedelta | None:
    """Return the wait that the provider requests, or else until the exceeded limits reset.

    Between zero and a day; None if the headers have no wait or an invalid one. Header names are in
    lower case.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return _bounded(milliseconds / 1000)
    header = headers.get("retry-after")
    seconds = _number(header)
    if seconds is None:
        seconds = _until(header, now)
    if seconds is not None:
        return _bounded(seconds)
    # All exceeded limits must have reset, so the last of them counts.
    return max(_resets(headers, now), default=None)


def _resets(headers: Mapping[str, str], now: datetime) -> Iterator[timedelta]:
    for name, value in headers.items():
        if _RESET.fullmatch(name) is None:
            continue
        remaining = headers.get(name.replace("reset", "remaining"))
        if remaining is None or _NOTHING_LEFT.fullmatch(_text(remaining)):
            seconds = _reset_seconds(value, now)
            if seconds is not None:
                yield _bounded(seconds)


def _reset_seconds(value: str, now: datetime) -> float | None:
    number = _number(value)
    if number is None:
        duration = _go_duration(value)
        return _until(value, now) if duration is None else duration
    if number >= _EPOCH_MILLISECONDS:
        return number / 1000 - now.timestamp()
    if number >= _EPOCH_SECONDS:
        return number - now.timestamp()
    return number


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) and len(value) <= _LONGEST_VALUE else ""


def _number(value: object) -> float | None:
    text = _text(value)
    return float(text) if _NUMBER.fullmatch(text) else None


def _go_duration(value: object) -> float | None:
    text = _text(value)
    if not _GO.fullmatch(text):
        return None
    return sum(float(number) * _GO_SECONDS[unit] for number, unit in _GO_PART.findall(text))


def _until(value: object, now: datetime) -> float | None:
    moment = moment_of(value)
    return None if moment is None else (moment - now).total_seconds()


def moment_of(value: object) -> datetime | None:
    """Parse an HTTP date or an RFC 3339 time, with a time zone; None: it is neither."""
    text = _text(value)
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            moment.timestamp()
            return moment.astimezone(UTC)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None


def _bounded(seconds: float) -> timedelta:
    if not math.isfinite(seconds):  # too many digits
        return LONGEST
    return timedelta(seconds=min(max(seconds, 0.0), LONGEST.total_seconds()))
