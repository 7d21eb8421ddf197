"""`penstock.toml`: queues, plans and jobs that are declared without Python.

The options have the same names as in Python. An error names file, table and key.
"""

import inspect
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.base.settings import read_env_file
from penstock.base.suggestions import did_you_mean
from penstock.client.app import Penstock
from penstock.client.config import model_kinds
from penstock.client.config.declared import Retries
from penstock.client.config.find import find_object
from penstock.client.config.source_location import SourceLocation
from penstock.client.config.table import Table, taken
from penstock.client.sources import OPTIONS as SOURCES
from penstock.client.sources import Constant
from penstock.errors import Misconfigured, WrongApp

_FUNCTION = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)", re.ASCII)
_HANDLER = (
    f"{', '.join(model_kinds.HANDLERS)}, or module:function, a Python function that is searched "
    "from the folder of this file"
)


def load(path: Path) -> Penstock:
    """Return the app that a file declares."""
    path = path.resolve()
    document = _read(path)
    environ = {**read_env_file(Path.cwd() / ".env"), **os.environ}
    top = Table(path, "", {k: v for k, v in document.items() if not isinstance(v, dict)}, environ)
    own = top.checked({"name": str, "accounts": str})
    with top.naming():
        app = Penstock(**{"name": f"{path.parent.name}/{path.name}", **own})
    app.location = location = SourceLocation(path.stem, str(path), None)
    for group, tables in document.items():
        if group not in _GROUPS and isinstance(tables, dict):
            near = did_you_mean(group, _GROUPS)
            raise top.wrong(group, f"is not a known table.{near} Known are {', '.join(_GROUPS)}")
    for group, declare in _GROUPS.items():
        for name, options in document.get(group, {}).items():
            table = Table(path, f"{group}.{name}", options, environ)
            if not isinstance(options, dict):
                raise top.wrong(f"{group}.{name}", f"must be a table: write [{group}.{name}]")
            with table.naming():
                declare(app, name, table)
    app.queues = {name: replace(queue, location=location) for name, queue in app.queues.items()}
    app.plans = {name: replace(plan, location=location) for name, plan in app.plans.items()}
    return app


def _declare_queue(app: Penstock, name: str, table: Table) -> None:
    options = table.checked(taken(Penstock.queue))
    if "retry" in options:
        options["retry"] = _retries(table, options["retry"])
    app.queue(name, **options)


def _retries(table: Table, value: Any) -> Retries:
    if not isinstance(value, dict):
        raise table.wrong("retry", 'must be a table like { attempts = 3, delay = "5m" }')
    inner = replace(table, name=f"{table.name}.retry", options=value)
    with table.naming("retry."):
        return Retries(**inner.checked(taken(Retries)))


def _declare_job(app: Penstock, name: str, table: Table) -> None:
    # Read first: the handler decides which other keys are known.
    handler = table.expanded("handler", table.options.get("handler", ""), str)
    is_model = isinstance(handler, str) and handler in model_kinds.HANDLERS
    is_known = is_model or (isinstance(handler, str) and _FUNCTION.fullmatch(handler))
    if "handler" in table.options and not is_known:
        raise table.wrong("handler", f"is {handler!r}; known are {_HANDLER}")
    if not is_model and "fields" in table.options:
        raise table.wrong(
            "fields", "the parameters of a Python function are its fields: leave it out"
        )
    known = model_kinds.takes(handler) if is_model else taken(Penstock.job)
    options = table.checked({**known, "handler": str})
    for key in ("queue", "handler"):
        if key not in options:
            raise table.wrong(key, "is missing")
    queue = options["queue"]
    if not isinstance(queue, str) or queue not in app.queues:
        names = ", ".join(app.queues) or "none"
        near = did_you_mean(queue, app.queues)
        raise table.wrong("queue", f"there is no [queues.{queue}]; known are {names}.{near}")
    del options["handler"]
    options = {key: _constant(table, key, value) for key, value in options.items()}
    if is_model:
        model_kinds.declare(app, name, table, handler, options)
    else:
        app.job(name=name, **options)(_handler(table, handler))


def _constant(table: Table, key: str, value: Any) -> Any:
    """Read `{ constant = "x" }`, which means `Constant("x")` in Python."""
    if key not in SOURCES or not isinstance(value, dict):
        return value
    if set(value) != {"constant"} or not isinstance(value["constant"], str):
        raise table.wrong(key, 'as a table it is a constant, like { constant = "house" }')
    return Constant(table.expanded(key, value["constant"], str))


def _handler(table: Table, name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        function = find_object(module, attribute, table.path.parent)
    except Misconfigured as error:
        raise table.wrong("handler", str(error)) from error
    if not inspect.isfunction(function):
        raise table.wrong("handler", f"{name} is a {type(function).__name__} and not a function")
    return function


_GROUPS: dict[str, Callable[[Penstock, str, Table], object]] = {
    "queues": _declare_queue,
    "plans": lambda app, name, table: app.plan(name, **table.checked(taken(Penstock.plan))),
    "jobs": _declare_job,
}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WrongApp(f"There is no file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise WrongApp(f"{path} cannot be read: {type(error).__name__}.") from error
    except tomllib.TOMLDecodeError as error:
        raise WrongApp(f"{path} is not TOML: {error}.") from error
