"""The frames of a handler's error: files, lines and functions of its traceback, never values.

The frames of the user's own code come first, because a stack often ends in a library. They are for
operators: customers see neither the frames nor the message.
"""

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from penstock.base.safe_access import is_a, read

MOST = 20
LONGEST = 300  # characters of one frame
_MOST_NESTED = 5

# The parts of Penstock that run handlers, and the handlers of kinds that need no Python.
_PENSTOCK = tuple(f"{Path(__file__).parents[1] / name}/" for name in ("worker", "models/handlers"))
_LIBRARIES = (*_PENSTOCK, *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")))
_INSTALLED = ("/site-packages/", "/dist-packages/")


def frames_of(error: BaseException) -> tuple[str, ...]:
    """Return frames as `file:line in function`, innermost first; the user's own come first."""
    packed = read(error, "frames")  # of an error that was raised in a handler's own process
    if isinstance(packed, tuple):
        return packed
    stack = list(_stack(error))
    own = [file for file, _ in stack if _is_own(file)]
    if own:
        # The frames that called the handler do not help its author.
        stack = stack[next(i for i, (file, _) in enumerate(stack) if _is_own(file)) :]
    stack.reverse()
    ordered = sorted(stack, key=lambda frame: not _is_own(frame[0]))  # stable
    # A recursion repeats its frames.
    return tuple(dict.fromkeys(text[:LONGEST] for _, text in ordered))[:MOST]


def _stack(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield file and text of each frame, outermost first; for a group also its first error's."""
    for _ in range(_MOST_NESTED):
        trace = read(error, "__traceback__")
        if isinstance(trace, TracebackType):
            for frame, line in traceback.walk_tb(trace):
                code = frame.f_code
                yield code.co_filename, f"{code.co_filename}:{line} in {code.co_qualname}"
        if not is_a(error, BaseExceptionGroup):
            return
        error = error.exceptions[0]  # type: ignore[attr-defined]


def _is_own(file: str) -> bool:
    installed = any(part in file for part in _INSTALLED)
    return not (installed or file.startswith((*_LIBRARIES, "<frozen ")))
