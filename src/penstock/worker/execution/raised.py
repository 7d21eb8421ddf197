"""Exceptions of a handler in its own process: packed as data there, raised in the worker.

There is no pickle. An exception of Penstock arrives as what it was. Of any other one these arrive:
the name of its class, its message, its location, and its classification, which is only possible
where it was raised.
"""

import contextlib
import json
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from penstock import errors
from penstock.base.safe_access import read
from penstock.errors import PenstockError, words_of
from penstock.failures.classify import Extension, classify
from penstock.failures.frames import frames_of
from penstock.failures.verdict import Verdict
from penstock.models.handlers import exceptions

LONGEST_MESSAGE = 10_000  # characters of an exception's message that travel

# The frames of the code that calls a handler are of no use to its author.
_CHILD = str(Path(__file__).with_name("child.py"))

Frame = dict[str, Any]
_VERDICT = TypeAdapter(Verdict)


class ChildError(PenstockError):
    """The handler raised an exception in its process: its class by name, its message, and where."""

    def __init__(
        self,
        class_name: str,
        message: str,
        where: str | None = None,
        verdict: Verdict | None = None,
        frames: tuple[str, ...] = (),
    ) -> None:
        super().__init__(f"{class_name}: {message}" if message else class_name)
        self.class_name = class_name
        self.message = message
        self.where = where
        self.verdict = verdict
        self.frames = frames


class ChildTimedOut(ChildError, TimeoutError):
    """The handler raised a TimeoutError: one of its own waits, not the job's time-out."""


class ChildDisconnected(ChildError, ConnectionError):
    """The handler raised a ConnectionError."""


# Exceptions that arrive on the other side as what they were: the worker acts on them.
KNOWN: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (*vars(errors).values(), *vars(exceptions).values())
    if isinstance(kind, type) and issubclass(kind, Exception)
}


def pack_error(error: BaseException, more: Sequence[Extension] = ()) -> Frame:
    """Pack an exception as data: class, message, location, class of error; all of a known one."""
    message = words_of(error)[:LONGEST_MESSAGE]
    message = "" if message == type(error).__name__ else message
    packed: Frame = {
        "class": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins"],
        "message": message,
        "where": _where(error),
        "frames": frames_of(error),
        "verdict": _VERDICT.dump_python(classify(error, more=more), mode="json"),
    }
    for base in type(error).__mro__:
        if KNOWN.get(base.__name__) is base:
            with contextlib.suppress(TypeError, ValueError):  # an app's own class may hold anything
                packed["state"] = json.dumps([error.args, vars(error)], default=_mark)
                packed["known"] = base.__name__
            break
    return packed


def known(packed: Frame) -> Exception | None:
    """The exception that was packed, if both sides know it."""
    kind = KNOWN.get(packed.get("known", ""))
    if kind is None:
        return None
    args, attributes = json.loads(packed["state"], object_hook=_unmark)
    error = kind.__new__(kind, *args)
    error.args = tuple(args)
    vars(error).update(attributes)
    return error


def _mark(value: Any) -> Any:
    return {"_seconds": value.total_seconds()} if isinstance(value, timedelta) else words_of(value)


def _unmark(value: dict[str, Any]) -> Any:
    return timedelta(seconds=value["_seconds"]) if value.keys() == {"_seconds"} else value


def _where(error: BaseException) -> str | None:
    """File and line where it was raised: in the handler or what it called, not in this file."""
    frames = traceback.extract_tb(read(error, "__traceback__"))
    theirs = [frame for frame in frames if frame.filename != _CHILD]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else None


def raised(packed: Frame) -> Exception:
    """The exception again, as what it was if the worker knows it."""
    if error := known(packed):
        return error
    verdict, frames = _VERDICT.validate_python(packed["verdict"]), tuple(packed["frames"])
    named = (packed["class"], packed["message"], packed["where"], verdict, frames)
    if "TimeoutError" in packed["bases"]:
        return ChildTimedOut(*named)
    return ChildDisconnected(*named) if "ConnectionError" in packed["bases"] else ChildError(*named)
