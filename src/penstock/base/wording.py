"""Times, durations and numbers, formatted for people."""

from datetime import UTC, datetime
from typing import Any

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def seconds(value: float | None) -> str | None:
    """Format a duration in a suitable unit: `42 ms`, `3.1 s`, `50 s`, `5 min`, `2 h`, `4 d`."""
    if value is None:
        return None
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if value >= 2 * size:
            return f"{value / size:.0f} {unit}"
    if 0 < value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value % 1 and value < 10 else f"{value:.0f} s"  # noqa: PLR2004


def queue_position(position: int | None, eta: float | None) -> str | None:
    """Format a job's position and ETA: `#3 in queue, about 40 s`."""
    if position is None:
        return None
    text = f"#{position:,} in queue"
    if eta is None:
        return text
    return f"{text}, about {seconds(round(eta))}" if eta >= 1 else f"{text}, starts at once"


def read_moment(moment: str | datetime) -> datetime:
    """Return a time of a job, or of a job's JSON, as a datetime."""
    return moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)


def age(moment: str | datetime | None) -> str | None:
    """Format how long ago this was, by this machine's clock."""
    if moment is None:
        return None
    return seconds(max(0.0, round((datetime.now(UTC) - read_moment(moment)).total_seconds())))


def ahead(moment: str | datetime | None) -> str:
    """Format the time left until then, by this machine's clock: `now`, `in 12 min`."""
    if moment is None:
        return "now"
    left = (read_moment(moment) - datetime.now(UTC)).total_seconds()
    return "now" if left < 1 else f"in {seconds(round(left))}"


def between(begun: str | datetime | None, until: str | datetime | None) -> str | None:
    if begun is None or until is None:
        return None
    return seconds((read_moment(until) - read_moment(begun)).total_seconds())


def number(value: Any) -> str:
    """Format a number without a useless fraction: `3`, not `3.0`."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def count(total: int, noun: str) -> str:
    """Format a number with its noun: `1 job`, `2 jobs`."""
    return f"{total:,} {noun}{'' if total == 1 else 's'}"
