"""Where an exception was raised, for logs: they show its class and location, never its message."""

import traceback

from penstock.base.safe_access import read

_MOST_FRAMES = 10


def error_location(error: BaseException, frames: tuple[str, ...] = ()) -> str:
    """Return class and location of an exception; `frames` replace the innermost frame."""
    name = read(error, "class_name")
    name = name if isinstance(name, str) else type(error).__name__
    if frames:
        more = f"; frames: {', '.join(frames[:_MOST_FRAMES])}" if len(frames) > 1 else ""
        return f"{name} at {frames[0]}{more}"
    # An exception from a handler's own process carries its location.
    location = read(error, "where")
    if not isinstance(location, str):
        trace = traceback.extract_tb(read(error, "__traceback__"))
        location = f"{trace[-1].filename}:{trace[-1].lineno}" if trace else None
    return f"{name} at {location}" if location else name
