"""The forms that an option's value may have: how it is read, and what the reference calls it.

SQL checks the same bounds for every caller (refusals.sql). They are checked here too, so that a
mistake is reported when the option is declared, and not at the first use.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.base.settings import duration
from penstock.errors import Invalid

TEXT_MAX = 200
"""The most characters of a text."""
TEN_YEARS = timedelta(days=3650)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}", re.ASCII)
_RATE = re.compile(r"\s*([1-9][0-9]{0,8})\s*/\s*(s|sec|min|m|h|hour|d|day)\s*", re.ASCII)
_PERIOD_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_FASTEST_PER_SECOND = 1_000_000
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KIB|MIB|GIB)?", re.ASCII | re.IGNORECASE)
_UNIT_BYTES = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30}
# Python does not even start with less.
_LEAST_MEMORY = 32 * 2**20


class Form:
    """The values of an option. `read` returns one as SQL takes it, or raises Invalid."""

    __slots__ = ()

    choices: tuple[str, ...] = ()
    """The only values, if the form is a choice."""
    suffix = ""
    """The unit at the end of the option's name in SQL and JSON."""

    @property
    def words(self) -> str:
        """The form as the reference describes it."""
        raise NotImplementedError

    def read(self, value: Any, option: str) -> Any:
        """The value as SQL takes it. None stays None: not given."""
        return None if value is None else self._read(value, option)

    def _read(self, value: Any, option: str) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Other(Form):
    """A form that another module reads, since that needs more than the value."""

    words: str


@dataclass(frozen=True, slots=True)
class Moment(Other):
    words: str = "moment with a time zone"


@dataclass(frozen=True, slots=True)
class Object(Other):
    words: str = "JSON object"


@dataclass(frozen=True, slots=True)
class Whole(Form):
    least: int
    most: int

    @property
    def words(self) -> str:
        return f"whole number, {self.least:,} to {self.most:,}"

    def _read(self, value: Any, option: str) -> int:
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not self.least <= value <= self.most
        ):
            raise wrong(option, value, f"it may be a whole number from {self.least} to {self.most}")
        return value


@dataclass(frozen=True, slots=True)
class Word(Form):
    choices: tuple[str, ...]

    @property
    def words(self) -> str:
        *others, last = (f"`{choice}`" for choice in self.choices)
        return f"{', '.join(others)} or {last}" if others else last

    def _read(self, value: Any, option: str) -> str:
        if not isinstance(value, str) or value not in self.choices:
            raise wrong(option, value, f"it may be {', '.join(self.choices)}")
        return value


@dataclass(frozen=True, slots=True)
class Flag(Form):
    """True, or left out: false is not sent, so that an older database accepts the declaration."""

    words = "true or false"

    def read(self, value: Any, option: str) -> bool | None:
        if not isinstance(value, bool):
            raise wrong(option, value, "it may be true or false")
        return value or None


@dataclass(frozen=True, slots=True)
class Seconds(Form):
    """A duration."""

    zero: bool = False
    words = "duration"
    suffix = "_seconds"

    def length(self, value: Any, option: str) -> timedelta | None:
        if value is None:
            return None
        length = duration(value, field=option)
        if length > TEN_YEARS or (not length and not self.zero):
            least = "0 or more" if self.zero else "more than 0"
            raise wrong(option, value, f"it may be {least}, and at most ten years")
        return length

    def read(self, value: Any, option: str) -> float | None:
        length = self.length(value, option)
        if length is None:
            return None
        exact = length.total_seconds()
        return int(exact) if exact.is_integer() else exact


@dataclass(frozen=True, slots=True)
class Kept(Form):
    """How long something is kept; `"forever"` is a duration, too."""

    words = 'duration or `"forever"`'
    suffix = "_seconds"

    def _read(self, value: Any, option: str) -> Any:
        return "forever" if value == "forever" else Seconds().read(value, option)


@dataclass(frozen=True, slots=True)
class Rate(Form):
    words = 'like `"500/min"`: per s, min, h or d'

    def _read(self, value: Any, option: str) -> str:
        parts = _RATE.fullmatch(value) if isinstance(value, str) else None
        if parts is None:
            raise wrong(option, value, 'it must look like "500/min" (per s, min, h or d)')
        if int(parts[1]) > _FASTEST_PER_SECOND * _PERIOD_SECONDS[parts[2][0]]:
            raise wrong(option, value, f"it may be at most {_FASTEST_PER_SECOND}/s")
        return str(value)


@dataclass(frozen=True, slots=True)
class Text(Form):
    words = "text"

    def _read(self, value: Any, option: str) -> str:
        if not isinstance(value, str) or not 1 <= len(value) <= TEXT_MAX or "\x00" in value:
            raise wrong(option, value, f"it may be a text of 1 to {TEXT_MAX} characters")
        return value


@dataclass(frozen=True, slots=True)
class Memory(Form):
    """Bytes, as a number or like `"512MB"`; a megabyte has 1,048,576 bytes."""

    words = 'size, like `"512MB"`; 32 MB or more'

    def _read(self, value: Any, option: str) -> int:
        size: int | None = None
        match value:
            case bool():
                pass
            case int():
                size = value
            case str():
                parts = _BYTES.fullmatch(value.strip())
                unit = (parts[2] or "B")[0].upper() if parts else "B"
                size = int(float(parts[1]) * _UNIT_BYTES[unit]) if parts else None
        if size is None or size < _LEAST_MEMORY:
            allowed = 'it may be 32MB or more, like "512MB", "2GB" or a whole number'
            raise wrong(option, value, allowed)
        return size


def read_name(value: object, what: str) -> str:
    """The name of a queue, kind or plan. Names are used in URLs, metrics and log lines."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Invalid(
            f"the {what} name {value!r} must be 1 to 100 letters, digits or any of _.:- and begin "
            "with a letter or digit",
            code="invalid_name",
            field=what,
        )
    return value


def wrong(option: str, value: Any, allowed: str) -> Invalid:
    return Invalid(f"{option} is {_shown(value)}; {allowed}", code="invalid_option", field=option)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= TEXT_MAX else f"a {type(value).__name__}"
