"""JSON for the database: values that Postgres would refuse unclearly get a clear error here.

SQL checks size, depth, keys and long numbers (payload.sql), for every caller alike. Only what
cannot be sent there is checked here: values that are not JSON, NUL, and invalid characters.
"""

import inspect
import json
import math
from typing import Any

from pydantic_core import to_json

from penstock.errors import Invalid, words_of

# The largest price, amount or number of units, as in SQL.
CREDITS_MAX = 10**12

_ALLOWED = "it may be a dict with text for keys, a list, a text, a number, True, False or None"
_MOST_CHECKED = 100_000
_LONGEST_KEY = 50
_KEYS = str | int | float | bool | None
# Values that the app's own code made. All other keys come from callers, and are in no message.
_OURS = ("result", "options")

# Kept, since making an encoder for each value takes as long as using it.
_encoder = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def encode(value: Any, field: str, *, index: int = 0) -> str:
    """`value` as JSON text that Postgres can store as jsonb."""
    try:
        text = _encoder.encode(value)
        text.encode()
    except RecursionError:
        raise _invalid(field, "is nested too deep", index) from None
    except UnicodeEncodeError:
        raise _invalid(field, "holds half a surrogate pair, which is no character", index) from None
    except (TypeError, ValueError) as error:
        what = odd_part(value, field) or _plain(error)
        raise _invalid(field, f"is not JSON: {what}", index) from None
    if "\\u0000" in text and _holds_nul(value):
        raise _invalid(field, "holds a NUL character, which Postgres cannot store", index)
    return text


def encode_checked(value: Any, field: str, *, index: int = 0) -> str:
    """The same for values that pydantic has checked to be JSON: in a sixth of the time.

    If a value is unusual, `encode` finds out what is wrong with it.
    """
    try:
        text = to_json(value, inf_nan_mode="constants").decode()
    except (ValueError, RecursionError):
        return encode(value, field, index=index)
    if "\\u0000" in text or "NaN" in text or "Infinity" in text:
        return encode(value, field, index=index)
    return text


def encode_each(values: list[Any] | None, field: str) -> list[str | None] | None:
    """Each of `values` as JSON text; None stays None."""
    if values is None:
        return None
    return [
        None if value is None else encode(value, field, index=index)
        for index, value in enumerate(values)
    ]


def refuse_nul(text: str | None, field: str, *, index: int = 0, code: str = "invalid_job") -> None:
    """Refuse a text that Postgres cannot store: with NUL, or with half a surrogate pair."""
    if text is None:
        return
    if not isinstance(text, str):
        raise _invalid(field, f"must be a text, not {type(text).__name__}", index, code)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _invalid(
            field, "holds half a surrogate pair, which is no character", index, code
        ) from None
    if "\x00" in text:
        raise _invalid(field, "holds a NUL character, which Postgres cannot store", index, code)


def refuse_nuls(**texts: str | None) -> None:
    """The same for each of these; the code of the error comes from the field."""
    for field, text in texts.items():
        refuse_nul(text, field, code=f"invalid_{field}")


def whole(value: Any, field: str, least: int, most: int, code: str) -> int:
    """A whole number within these bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        shown = repr(value) if isinstance(value, int | float | str | None) else type(value).__name__
        raise Invalid(
            f"{field} must be a whole number from {least} to {most}, not {shown[:50]}",
            code=code,
            field=field,
        )
    return value


def _holds_nul(value: Any) -> bool:
    """Whether a NUL is in any string of it; its escape may also be six plain characters."""
    todo = [value]
    while todo:
        match todo.pop():
            case str() as text:
                if "\x00" in text:
                    return True
            case dict() as mapping:
                todo.extend(mapping.keys())
                todo.extend(mapping.values())
            case list() | tuple() as items:
                todo.extend(items)
            case _:
                pass
    return False


def odd_part(value: Any, name: str) -> str | None:
    """What is not JSON in a value: location and type of the first such part, never its content."""
    todo: list[tuple[str, Any]] = [(name, value)]
    for _ in range(_MOST_CHECKED):
        if not todo:
            return None
        path, part = todo.pop()
        match part:
            case dict():
                odd = next((key for key in part if not isinstance(key, _KEYS)), None)
                if odd is not None:
                    return f"a key of {path} is {_a(type(odd).__name__)}, and keys are text"
                todo += [(_step(path, key), item) for key, item in reversed(list(part.items()))]
            case list() | tuple():
                todo += [(f"{path}.{n}", item) for n, item in reversed(list(enumerate(part)))]
            case float() if not math.isfinite(part):
                return f"{path} is NaN or infinite; leave it out, or give None"
            case str() | int() | float() | None:
                pass
            case _ if inspect.isawaitable(part):
                call = getattr(part, "__qualname__", "")
                called = f" of `{call}`" if call else ""
                return (
                    f"{path} is {_a(type(part).__name__)}{called}, which nobody awaited: write"
                    " `await` before the call"
                )
            case _:
                return f"{path} is {_a(type(part).__name__)}; {_ALLOWED}"
    return None


def _step(path: str, key: Any) -> str:
    """The path of a part. A key that is not a name may be private text."""
    name = str(key) if path.startswith(_OURS) else ""
    return f"{path}.{name}" if name.isidentifier() and len(name) <= _LONGEST_KEY else f"{path}[…]"


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _plain(error: Exception) -> str:
    # The json module's message contains the value's class, never the value.
    return words_of(error).split("\n", maxsplit=1)[0]


# The codes that SQL uses when it finds other faults of the same field.
_CODES = {"metadata": "invalid_job", "options": "invalid_option"}


def _invalid(field: str, what: str, index: int, code: str | None = None) -> Invalid:
    code = code or _CODES.get(field, f"invalid_{field}")
    return Invalid(f"{field} {what}", code=code, field=field, index=index)
