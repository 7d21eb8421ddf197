"""A prompt with fields: `Give feedback on: {answer}`.

A prompt is parsed once, when the program starts, so that its mistakes are reported then and not by
the first job. Braces may hold only the name of a field: Python's own format language would let a
prompt read attributes of objects.
"""

import json
import re
import string
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.errors import Invalid

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_BRACES = "write a literal brace twice, {{ or }}"


class Prompt:
    """A parsed prompt: alternating text and fields."""

    __slots__ = ("_parts", "fields")

    def __init__(self, parts: list[tuple[str, str | None]]) -> None:
        """Use `read_prompt`."""
        self._parts = parts
        self.fields = tuple(dict.fromkeys(name for _, name in parts if name is not None))

    def render(self, payload: Mapping[str, Any]) -> str:
        """Render the prompt for one job: a missing field as nothing, a non-text value as JSON."""
        texts = []
        for text, name in self._parts:
            texts.append(text)
            if name is not None:
                texts.append(_written(payload.get(name)))
        return "".join(texts)

    def __repr__(self) -> str:
        return f"Prompt({', '.join(self.fields)})"


def read_prompt(text: Any, known: Iterable[str], *, option: str = "prompt") -> Prompt:
    """Parse a prompt; raise Invalid, which names the field and what is allowed."""
    known = tuple(known)
    if not isinstance(text, str) or not text.strip():
        raise _wrong(option, "must be a text")
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError:
        raise _wrong(option, f"has an unmatched brace: {_BRACES}") from None
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
            f"has {{{shown}}}: braces may hold only the name of a field (known are {fields}); "
            f"{_BRACES}",
        )
    if name not in known:
        raise _wrong(
            option, f"names the field {name}, which fields does not declare; known are {fields}"
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
