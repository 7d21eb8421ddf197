"""What of a value is not JSON, in words: where it is and what it is, never what it holds."""

import inspect
import math
from typing import Any

_ALLOWED = "it may be a dict with text for keys, a list, a text, a number, True, False or None"
_MOST_LOOKED_AT = 100_000
_LONGEST_KEY = 50
_KEYS = str | int | float | bool | None
# What an app's own code made. Keys of anything else are a caller's, and in no message.
_OURS = ("result", "options")


def odd_part(value: Any, name: str) -> str | None:
    """Of the first part that is odd; None where none is found."""
    todo: list[tuple[str, Any]] = [(name, value)]
    for _ in range(_MOST_LOOKED_AT):
        if not todo:
            return None
        path, part = todo.pop()
        match part:
            case dict():
                odd = next((key for key in part if not isinstance(key, _KEYS)), None)
                if odd is not None:
                    return f"a key of {path} is {_a(type(odd).__name__)}, and keys are text"
                todo += [(_step(path, key), one) for key, one in reversed(list(part.items()))]
            case list() | tuple():
                todo += [(f"{path}.{n}", one) for n, one in reversed(list(enumerate(part)))]
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
    """A key that is no name may be what somebody wrote."""
    name = str(key) if path.startswith(_OURS) else ""
    return f"{path}.{name}" if name.isidentifier() and len(name) <= _LONGEST_KEY else f"{path}[…]"


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
