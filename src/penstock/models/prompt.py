"""A prompt with fields in it: `Give feedback on: {answer}`.

Read once, at start: whatever is wrong with it is told then, and not by the first job. Only the name
of a field may stand in braces. Python's own format language would let a prompt reach into objects.
"""

import json
import re
import string
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.errors import Invalid

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_BRACES = "a brace that is meant as such is written twice, {{ or }}"


class Prompt:
    """Text and fields in turn."""

    __slots__ = ("_parts", "fields")

    def __init__(self, parts: list[tuple[str, str | None]]) -> None:
        """Use `read_prompt`."""
        self._parts = parts
        self.fields = tuple(dict.fromkeys(name for _, name in parts if name is not None))

    def render(self, payload: Mapping[str, Any]) -> str:
        """The prompt for one job. What was left out is nothing; what is no text is JSON."""
        texts = []
        for text, name in self._parts:
            texts.append(text)
            if name is not None:
                texts.append(_written(payload.get(name)))
        return "".join(texts)

    def __repr__(self) -> str:
        return f"Prompt({', '.join(self.fields)})"


def read_prompt(text: Any, known: Iterable[str], *, option: str = "prompt") -> Prompt:
    """The prompt, or Invalid: which field, what is allowed."""
    known = tuple(known)
    if not isinstance(text, str) or not text.strip():
        raise _wrong(option, "must be a text")
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError:
        raise _wrong(option, f"has a brace without its other half: {_BRACES}") from None
    parts: list[tuple[str, str | None]] = []
    for literal, name, spec, conversion in parsed:
        if name is not None:
            _refuse_odd(option, name, spec, conversion, known)
        parts.append((literal, name))
    return Prompt(parts)


def _refuse_odd(
    option: str, name: str, spec: str | None, conversion: str | None, known: tuple[str, ...]
) -> None:
    fields = ", ".join(known) or "none"
    if not _NAME.fullmatch(name) or spec or conversion:
        whole = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        shown = whole if len(whole) <= 40 else f"{whole[:39]}…"  # noqa: PLR2004
        raise _wrong(
            option,
            f"has {{{shown}}}: only the name of a field may stand in braces (known are {fields}); "
            f"{_BRACES}",
        )
    if name not in known:
        raise _wrong(
            option, f"names the field {name}, which is not among fields; known are {fields}"
        )


def _written(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return json.dumps(value, ensure_ascii=False)


def _wrong(option: str, what: str) -> Invalid:
    return Invalid(f"{option} {what}", code="invalid_option", field=option)
