"""Checks of the arguments of stages and steps, for workers and for handler processes."""

import inspect
from collections.abc import Callable
from typing import Any

from penstock.errors import Invalid

NAME_MAX = 200
"""The most characters in the name of a stage or step."""


def check_name(name: Any, field: str) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_MAX:
        given = "" if isinstance(name, str) else f", not {type(name).__name__}"
        raise invalid(field, f"must have a name of 1 to {NAME_MAX} characters{given}")


def check_label(label: Any) -> None:
    if label is not None and not isinstance(label, str):
        raise invalid("label", f"must be a text, not {type(label).__name__}")


def check_function(function: Any, step: str) -> None:
    if not callable(function):
        raise invalid("step", f"{step} needs a function to run, not {type(function).__name__}")


def call_plainly(function: Callable[..., Any], step: str, args: Any, kwargs: Any) -> Any:
    """Call a step's function for a plain `def` handler, which cannot await."""
    check_function(function, step)
    value = None if inspect.iscoroutinefunction(function) else function(*args, **kwargs)
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that it was never awaited
    elif not inspect.iscoroutinefunction(function) and not inspect.isawaitable(value):
        return value
    raise invalid(
        "step",
        f"{step} has an async function and its handler is a plain `def`: give a plain "
        "function here, or make the handler `async def`",
    )


def invalid(field: str, what: str) -> Invalid:
    return Invalid(f"{field} {what}", code=f"invalid_{field}", field=field)
