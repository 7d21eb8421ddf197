"""Options of queues and plans on a form: how each is shown, and how what was typed is read.

A form says only what is to be overridden: a field left empty is as declared. Beside each field is
what it held when the page was made: so a second tab does not take back what it does not know of.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import FormData

from penstock.engine.options import plan, queue
from penstock.engine.options.forms import Kept, Seconds, Whole, Word
from penstock.engine.options.option import Option, editable
from penstock.errors import Refused

NO_LIMIT = "no limit"
_NOT_DECLARED = "default"
_UNITS = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
_LENGTH = re.compile(
    r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?"
)


@dataclass(frozen=True, slots=True)
class Field:
    """An option that people can change at run time. SQL judges what they typed once more."""

    option: Option

    @property
    def name(self) -> str:
        return self.option.key

    @property
    def label(self) -> str:
        return self.option.label

    @property
    def has_limit(self) -> bool:
        """Whether it bounds something, so that "no limit" is a value."""
        return self.option.unlimited is not None

    def show(self, value: Any) -> str:
        """As people write it, and `read` reads it."""
        if value is None or (self.has_limit and value == self.option.unlimited):
            return NO_LIMIT if self.has_limit else ""
        if isinstance(value, str) or not isinstance(self.option.form, Seconds | Kept):
            return str(value)
        for unit, seconds in _UNITS.items():
            if value >= seconds and value % seconds == 0:
                return f"{value / seconds:g} {unit}"
        return f"{value:g} s"

    def read(self, text: str, *, is_declared: bool) -> Any:
        """The value; ValueError says what it may be."""
        text = " ".join(text.split())
        if self.has_limit and text.lower() in (NO_LIMIT, "none", "unlimited"):
            return self.option.unlimited if is_declared else None
        match self.option.form:
            case Whole(least, most):
                return self._read_number(text, least, most)
            case Word(choices):
                if text.lower() not in choices:
                    raise ValueError(f"must be one of {', '.join(choices)}")
                return text.lower()
            case Kept() if text.lower() == "forever":
                return "forever"
            case Seconds():
                return _read_length(text)
            case Kept():
                return _read_length(text, ", or “forever”")
        return text

    def _read_number(self, text: str, least: int, most: int) -> int:
        plain = text.replace(",", "").replace(" ", "")
        if re.fullmatch(r"[+-]?[0-9]{1,15}", plain) and least <= int(plain) <= most:
            return int(plain)
        also = f", or “{NO_LIMIT}”" if self.has_limit else ""
        raise ValueError(f"must be a whole number from {least:,} to {most:,}{also}")


def _read_length(text: str, also: str = "") -> float:
    found = _LENGTH.fullmatch(text.lower())
    if found is None:
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

    option: Field
    in_force: str
    declared: str
    held: str
    """What is overridden, as text; empty: nothing."""
    typed: str
    problem: str | None


def lines(
    options: Sequence[Field],
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
    options: Sequence[Field], found: Mapping[str, Any], form: FormData
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


def typed(options: Sequence[Field], form: FormData) -> dict[str, str]:
    return {option.name: str(form.get(option.name, "")) for option in options}


def told(options: Sequence[Field], changed: Mapping[str, Any]) -> str:
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
    options: Sequence[Field], found: Mapping[str, Any], in_force: Mapping[str, Any]
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


def _held(option: Field, found: Mapping[str, Any]) -> str:
    value = found["overrides"].get(option.name)
    return "" if value is None else option.show(value)


def _default(option: Field) -> str:
    return NO_LIMIT if option.has_limit else _NOT_DECLARED


QUEUE = tuple(Field(option) for option in editable(queue.QUEUE))
PLAN = tuple(Field(option) for option in editable(plan.PLAN))
