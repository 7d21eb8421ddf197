"""Forms for the options of queues and plans: how values are shown, and how input is read.

A form sends only overrides: an empty field means "as declared". A hidden field beside each one
keeps its value from when the page was rendered, so that a second tab does not revert changes that
it has not seen.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import FormData

from penstock.dashboard.components.words import refusal
from penstock.engine.options import plan, queue
from penstock.engine.options.forms import Kept, Seconds, Whole, Word
from penstock.engine.options.option import Option, editable
from penstock.errors import Refused

QUEUE = editable(queue.QUEUE)
PLAN = editable(plan.PLAN)

NO_LIMIT = "no limit"
_NOT_DECLARED = "default"
_UNIT_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_LENGTH = re.compile(
    r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?"
)


def show(option: Option, value: Any) -> str:
    """Write a value as people do; `_read_value` reads it back."""
    if value is None or (option.unlimited is not None and value == option.unlimited):
        return NO_LIMIT if option.unlimited is not None else ""
    if isinstance(value, str) or not isinstance(option.form, Seconds | Kept):
        return str(value)
    for unit in ("d", "h", "min"):
        size = _UNIT_SECONDS[unit[0]]
        if value >= size and value % size == 0:
            return f"{value / size:g} {unit}"
    return f"{value:g} s"


@dataclass(frozen=True, slots=True)
class Line:
    """An option as a row of the form."""

    option: Option
    in_force: str
    declared: str
    overridden: str
    """The override as text; empty if there is none."""
    typed: str
    problem: str | None

    @property
    def change_back(self) -> str:
        """The value now and after a reset, as a sentence."""
        again = "the default" if self.declared == _NOT_DECLARED else self.declared
        return f"{self.option.label}: {self.in_force} now, {again} after the reset."


@dataclass(slots=True)
class Edit:
    """The input of a form of options; empty for a page that was not submitted."""

    typed: dict[str, str] | None = None
    """The fields by the key of the option."""
    changed: dict[str, Any] = field(default_factory=dict)
    """New values; None means "as declared"."""
    problems: dict[str, str] = field(default_factory=dict)
    """Messages for values that are invalid or refused."""

    async def save(self, save: Callable[..., Awaitable[object]]) -> None:
        """Call `save` with the changes; a refusal becomes the problem of its field."""
        if self.problems or not self.changed:
            return
        try:
            await save(**self.changed)
        except Refused as error:
            if error.field not in (self.typed or {}):
                raise
            self.problems[error.field] = refusal(error)

    def words(self, options: Sequence[Option]) -> str:
        """Return `Jobs at once is now 10; Rate is as declared again`."""
        by_key = {option.key: option for option in options}
        return "; ".join(
            f"{by_key[key].label} is as declared again"
            if value is None
            else f"{by_key[key].label} is now {show(by_key[key], value)}"
            for key, value in self.changed.items()
        )


def read(options: Sequence[Option], settings: Mapping[str, Any], form: FormData) -> Edit:
    """Read a form; `settings` has `declared` and `overrides`."""
    edit = Edit({option.key: str(form.get(option.key, "")) for option in options})
    for option in options:
        text = str(form.get(option.key, "")).strip()
        if text == str(form.get(f"was_{option.key}", "")).strip():
            continue
        is_declared = settings["declared"].get(option.key) is not None
        try:
            edit.changed[option.key] = _read_value(option, text, is_declared) if text else None
        except ValueError as error:
            edit.problems[option.key] = f"{option.label} {error}."
    return edit


def lines(
    options: Sequence[Option],
    settings: Mapping[str, Any],
    in_force: Mapping[str, Any],
    edit: Edit | None = None,
) -> list[Line]:
    """Return the rows of the form, with its last input and problems."""
    edit = edit or Edit()
    made = []
    for option in options:
        value, declared = (settings[name].get(option.key) for name in ("overrides", "declared"))
        overridden = "" if value is None else show(option, value)
        made.append(
            Line(
                option,
                show(option, in_force.get(option.key)),
                show(option, declared) or _NOT_DECLARED,
                overridden,
                overridden if edit.typed is None else edit.typed.get(option.key, ""),
                edit.problems.get(option.key),
            )
        )
    return made


def changes_back(
    options: Sequence[Option], settings: Mapping[str, Any], in_force: Mapping[str, Any]
) -> list[str]:
    """Return a sentence per overridden option: its value now and after a reset."""
    return [line.change_back for line in lines(options, settings, in_force) if line.overridden]


def _read_value(option: Option, text: str, is_declared: bool) -> Any:  # noqa: FBT001
    """Parse a value; ValueError says which values are allowed."""
    text = " ".join(text.split())
    if option.unlimited is not None and text.lower() in (NO_LIMIT, "none", "unlimited"):
        return option.unlimited if is_declared else None
    match option.form:
        case Whole(least, most):
            plain = re.sub("[, ]", "", text)
            if re.fullmatch(r"[+-]?[0-9]{1,15}", plain) and least <= int(plain) <= most:
                return int(plain)
            also = "" if option.unlimited is None else f", or “{NO_LIMIT}”"
            raise ValueError(f"must be a whole number from {least:,} to {most:,}{also}")
        case Word(choices):
            if text.lower() not in choices:
                raise ValueError(f"must be one of {', '.join(choices)}")
            return text.lower()
        case Kept() if text.lower() == "forever":
            return "forever"
        case Seconds() | Kept():
            return _read_length(text, ", or “forever”" if isinstance(option.form, Kept) else "")
    return text


def _read_length(text: str, also: str) -> float:
    length = _LENGTH.fullmatch(text.lower())
    if length is None:
        raise ValueError(f"must be a duration like 90 s, 5 min, 2 h or 7 d{also}")
    unit = length[2] or "s"
    size = 0.001 if unit == "ms" else _UNIT_SECONDS[unit[0]]
    seconds = round(float(length[1]) * size, 6)
    return int(seconds) if seconds.is_integer() else seconds
