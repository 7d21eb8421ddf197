"""Options of queues and plans on a form: how each is shown, and how what was typed is read.

A form says only what is to be overridden: a field left empty is as declared. Beside each field is
what it held when the page was made: so a second tab does not take back what it does not know of.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import FormData

from penstock.errors import Refused

NO_LIMIT = "no limit"
FOREVER = "forever"
_NOT_DECLARED = "default"
_UNITS = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
_LENGTH = re.compile(
    r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?"
)
# A limit that is declared can be raised, and not removed: so much is none.
_ALL_JOBS = 1_000_000
_ALL_SUBMITS = 1_000_000_000
_ALL_STARTS = "1000000/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """`least` and `most` are those of SQL, which judges once more."""

    name: str
    label: str
    hint: str = ""
    least: int = 1
    most: int = 0
    is_length: bool = False
    """In seconds, written as `90 s` or `5 min`."""
    words: tuple[str, ...] = ()
    """The only ones allowed; or, of a length, one more."""
    none: int | str | None = None
    """What stands for no limit where one is declared."""

    def show(self, value: Any) -> str:
        """As people write it, and `read` reads it."""
        if value is None or (self.none is not None and value == self.none):
            return NO_LIMIT if self.none is not None else ""
        if not self.is_length or isinstance(value, str):
            return str(value)
        for unit, seconds in _UNITS.items():
            if value >= seconds and value % seconds == 0:
                return f"{value / seconds:g} {unit}"
        return f"{value:g} s"

    def read(self, text: str, *, is_declared: bool) -> Any:
        """The value; ValueError says what it may be."""
        text = " ".join(text.split())
        if self.none is not None and text.lower() in (NO_LIMIT, "none", "unlimited"):
            return self.none if is_declared else None
        if text.lower() in self.words:
            return text.lower()
        if self.is_length:
            return self._read_length(text)
        if self.most:
            return self._read_number(text)
        if self.words:
            raise ValueError(f"must be one of {', '.join(self.words)}")
        return text

    def _read_number(self, text: str) -> int:
        plain = text.replace(",", "").replace(" ", "")
        if re.fullmatch(r"[+-]?[0-9]{1,15}", plain) and self.least <= int(plain) <= self.most:
            return int(plain)
        also = f", or “{NO_LIMIT}”" if self.none is not None else ""
        raise ValueError(f"must be a whole number from {self.least:,} to {self.most:,}{also}")

    def _read_length(self, text: str) -> float:
        found = _LENGTH.fullmatch(text.lower())
        if found is None:
            also = "".join(f", or “{word}”" for word in self.words)
            raise ValueError(f"must be a length of time like 90 s, 5 min, 2 h or 7 d{also}")
        unit = found[2] or "s"
        size = 0.001 if unit == "ms" else _UNITS["min" if unit == "m" else _unit(unit)]
        seconds = round(float(found[1]) * size, 6)
        return int(seconds) if seconds.is_integer() else seconds


def _unit(written: str) -> str:
    return written if written in _UNITS else "min" if written.startswith("min") else written[0]


@dataclass(frozen=True, slots=True)
class Line:
    """An option as a row of the form."""

    option: Option
    in_force: str
    declared: str
    held: str
    """What is overridden, as text; empty: nothing."""
    typed: str
    problem: str | None


def lines(
    options: Sequence[Option],
    found: Mapping[str, Any],
    in_force: Mapping[str, Any],
    *,
    typed: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
) -> list[Line]:
    """`found` has `declared` and `overrides`; `typed` is what came back from the form."""
    made = []
    for option in options:
        held = _held(option, found)
        declared = found["declared"].get(option.name)
        made.append(
            Line(
                option,
                option.show(in_force.get(option.name)),
                option.show(declared) if declared is not None else _default(option),
                held,
                held if typed is None else typed.get(option.name, ""),
                (problems or {}).get(option.name),
            )
        )
    return made


def read(
    options: Sequence[Option], found: Mapping[str, Any], form: FormData
) -> tuple[dict[str, Any], dict[str, str]]:
    """What is to be changed (None: as declared), and what cannot be understood, each by name."""
    changed: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for option in options:
        text = str(form.get(option.name, "")).strip()
        if text == str(form.get(f"was_{option.name}", "")).strip():
            continue
        try:
            is_declared = found["declared"].get(option.name) is not None
            changed[option.name] = option.read(text, is_declared=is_declared) if text else None
        except ValueError as error:
            problems[option.name] = f"{option.label} {error}."
    return changed, problems


def typed(options: Sequence[Option], form: FormData) -> dict[str, str]:
    return {option.name: str(form.get(option.name, "")) for option in options}


def told(options: Sequence[Option], changed: Mapping[str, Any]) -> str:
    """`Jobs at once is 10 now; Rate is as declared again`."""
    labels = {option.name: option for option in options}
    said = [
        f"{labels[name].label} is as declared again"
        if value is None
        else f"{labels[name].label} is {labels[name].show(value)} now"
        for name, value in changed.items()
    ]
    return "; ".join(said)


def ways_back(
    options: Sequence[Option], found: Mapping[str, Any], in_force: Mapping[str, Any]
) -> list[str]:
    """For each option that is overridden, what it is now and what it would be again."""
    return [
        f"{line.option.label}: {line.in_force} now, "
        f"{line.declared if line.declared != _NOT_DECLARED else 'the default'} again."
        for line in lines(options, found, in_force)
        if line.option.name in found["overrides"]
    ]


def beside(error: Refused) -> str:
    """What was refused, as a sentence beside the field."""
    said = str(error).removesuffix(".")
    return f"{said[:1].upper()}{said[1:]}."


def _held(option: Option, found: Mapping[str, Any]) -> str:
    value = found["overrides"].get(option.name)
    return "" if value is None else option.show(value)


def _default(option: Option) -> str:
    return NO_LIMIT if option.none is not None else _NOT_DECLARED


QUEUE = (
    Option(
        name="concurrency",
        label="Jobs at once",
        hint="How many may run at the same time.",
        most=_ALL_JOBS,
        none=_ALL_JOBS,
    ),
    Option(name="rate", label="Rate", hint="Starts, like 10/s or 500/min.", none=_ALL_STARTS),
    Option(
        name="burst",
        label="Burst",
        hint="How many of the rate may come at once.",
        most=1_000_000_000,
    ),
    Option(
        name="order",
        label="Order",
        hint="Can change only while the queue is empty.",
        words=("strict", "aging", "fair"),
    ),
    Option(
        name="aging_step_seconds",
        label="Aging step",
        hint="Waiting so long is worth one step of priority.",
        is_length=True,
    ),
    Option(
        name="timeout_seconds",
        label="Time-out",
        hint="How long one attempt may take.",
        is_length=True,
    ),
    Option(
        name="stale_after_seconds",
        label="Stale after",
        hint="Without a sign of life; people who wait are told.",
        is_length=True,
    ),
    Option(
        name="stuck_after_seconds",
        label="Stuck after",
        hint="Without a sign of life; it is started again.",
        is_length=True,
    ),
    Option(
        name="attempts", label="Attempts", hint="Failures until a job fails for good.", most=1_000
    ),
    Option(
        name="backoff",
        label="Wait between attempts",
        hint="How it grows.",
        words=("constant", "linear", "exponential"),
    ),
    Option(
        name="delay_seconds",
        label="First wait",
        hint="After the first failed attempt.",
        is_length=True,
    ),
    Option(name="backoff_max_seconds", label="Longest wait", is_length=True),
    Option(
        name="recovery",
        label="Recoveries",
        hint="How often a stuck job is started again.",
        least=0,
        most=1_000,
    ),
    Option(
        name="retention_seconds",
        label="Keep succeeded jobs",
        is_length=True,
        words=(FOREVER,),
    ),
    Option(
        name="retention_failed_seconds",
        label="Keep failed jobs",
        is_length=True,
        words=(FOREVER,),
    ),
)

PLAN = (
    Option(
        name="priority",
        label="Priority",
        hint="Of its accounts' jobs; lower runs first.",
        least=-1_000,
        most=1_000,
    ),
    Option(
        name="concurrency",
        label="Jobs at once",
        hint="Of each account.",
        most=_ALL_JOBS,
        none=_ALL_JOBS,
    ),
    Option(
        name="per_hour",
        label="Submits per hour",
        hint="Of each account.",
        most=_ALL_SUBMITS,
        none=_ALL_SUBMITS,
    ),
    Option(name="weight", label="Weight", hint="Share of a queue whose order is fair.", most=1_000),
    Option(
        name="first_job",
        label="First job",
        hint="Added to the priority of an account's first job.",
        least=-1_000,
        most=1_000,
    ),
)
