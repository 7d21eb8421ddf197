"""Reads the stack of a blocked event loop: where it is, and which task waits for which."""

import asyncio
import os
import site
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_FRAMES_MAX = 200
_TASKS_MAX = 10_000
_LOOP = tuple(
    str(Path(asyncio.__file__).with_name(name))
    for name in ("runners.py", "base_events.py", "events.py")
)
# Frames of Python itself, of installed packages and of Penstock say little to a handler's author.
_FOREIGN = tuple(
    str(Path(folder)) + os.sep
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        str(Path(__file__).parents[2]),
    }
)


def location_of(frame: FrameType, coroutine: object = None) -> str | None:
    """File and line of the app's innermost frame; if there is none, of what the task calls.

    `coroutine`: the task's, at which its frames begin. None: the loop runs no task.
    """
    outermost = getattr(coroutine, "cr_frame", None)
    inner: FrameType | None = None
    at: FrameType | None = frame
    for _ in range(_FRAMES_MAX):
        if at is None or at.f_code.co_filename in _LOOP:
            break
        name = at.f_code.co_filename
        if not name.startswith((*_FOREIGN, "<")):
            return f"{name}:{at.f_lineno}"
        inner = inner or at
        if at is outermost:
            break
        at = at.f_back
    if inner is None or coroutine is None:
        return None
    return f"{inner.f_code.co_filename}:{inner.f_lineno}"


def waits_for(waiting: "asyncio.Task[Any]", task: "asyncio.Task[Any]") -> bool:
    """Whether the first task made the other one and waits for it, as far as can be seen.

    It waits by `await`, `gather`, `wait_for`, `wait` or a TaskGroup: the task is among the values
    that its coroutines hold.
    """
    seen: set[asyncio.Task[Any]] = set()
    left = [waiting]
    while left and len(seen) < _TASKS_MAX:
        for made in _tasks_of(left.pop()):
            if made is task:
                return True
            if made not in seen:
                seen.add(made)
                left.append(made)
    return False


def _tasks_of(task: "asyncio.Task[Any]") -> Iterator["asyncio.Task[Any]"]:
    waiter = getattr(task, "_fut_waiter", None)
    values: list[Any] = [waiter, getattr(waiter, "_children", None)]
    coroutine: Any = task.get_coro()
    for _ in range(_FRAMES_MAX):
        frame = getattr(coroutine, "cr_frame", None)
        if frame is None:
            break
        values += frame.f_locals.values()
        coroutine = coroutine.cr_await
    for value in values:
        inside: Any = getattr(value, "_tasks", ()) if type(value) is asyncio.TaskGroup else value
        several = type(inside) in (list, tuple, set, frozenset)
        for each in list(inside) if several else [inside]:
            if issubclass(type(each), asyncio.Task):
                yield each
