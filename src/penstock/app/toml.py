"""`penstock.toml`: queues, plans and jobs without a line of Python to declare them.

The options are those of the code, under the same names. A mistake is told with file, table and key.
"""

import inspect
import os
import re
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.app.find import find_object
from penstock.app.penstock import Penstock
from penstock.app.place import Place
from penstock.app.queue import Retries
from penstock.errors import Misconfigured, PenstockError, Refused, WrongApp
from penstock.settings import read_env_file

_FUNCTION = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)", re.ASCII)
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_HANDLER = "module:function, a Python function that is found from the folder of this file"
# In the contract, and not built yet.
_LATER_HANDLERS = ("ollama", "openai", "http", "dispatch")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def load(path: Path) -> Penstock:
    """The app that a file declares."""
    path = path.resolve()
    document = _read(path)
    environ = {**read_env_file(Path.cwd() / ".env"), **os.environ}
    top = _Table(path, "", {k: v for k, v in document.items() if not isinstance(v, dict)}, environ)
    own = top.checked(Penstock, "name", "accounts")
    with top.telling():
        app = Penstock(**{"name": f"{path.parent.name}/{path.name}", **own})
    place = Place(path.stem, str(path), None)
    for group, tables in document.items():
        declare = _GROUPS.get(group)
        if declare is None and isinstance(tables, dict):
            raise top.wrong(group, f"is not a known table; known are {', '.join(_GROUPS)}")
    for group, declare in _GROUPS.items():
        for name, options in document.get(group, {}).items():
            table = _Table(path, f"{group}.{name}", options, environ)
            if not isinstance(options, dict):
                raise top.wrong(f"{group}.{name}", f"must be a table: write [{group}.{name}]")
            with table.telling():
                declare(app, name, table)
    app.queues = {name: replace(queue, place=place) for name, queue in app.queues.items()}
    app.plans = {name: replace(plan, place=place) for name, plan in app.plans.items()}
    return app


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of the file, and how to speak about it."""

    path: Path
    name: str
    options: Mapping[str, Any]
    environ: Mapping[str, str]

    def wrong(self, key: str, said: str) -> WrongApp:
        table = f", [{self.name}]" if self.name else ""
        named = f", {key}" if key else ""
        return WrongApp(f"{self.path}{table}{named}: {said}")

    @contextmanager
    def telling(self, prefix: str = "") -> Iterator[None]:
        """Say of what goes wrong in which table it stands, and at which key if that is known."""
        try:
            yield
        except Refused as error:
            raise self.wrong(f"{prefix}{error.field or ''}", str(error)) from error
        except PenstockError as error:
            if str(error).startswith(str(self.path)):
                raise
            raise self.wrong("", str(error)) from error

    def checked(self, taker: Callable[..., Any], *known: str) -> dict[str, Any]:
        """The options as `taker` takes them; `known` are the only ones, where given."""
        takes = inspect.signature(taker).parameters
        known = known or tuple(key for key in takes if key not in ("self", "name"))
        for key in self.options:
            if key not in known:
                raise self.wrong(key, f"is not an option; known are {', '.join(known)}")
        return {
            key: self._expanded(key, value, takes[key].annotation if key in takes else str)
            for key, value in self.options.items()
        }

    def _expanded(self, key: str, value: Any, wanted: Any) -> Any:
        """`"$NAME"` is what the environment says, in the form the option has; `$$` is one `$`."""
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        if value.startswith("$$"):
            return value[1:]
        variable = _VARIABLE.fullmatch(value)
        if variable is None:
            raise self.wrong(key, f"{value!r} names no variable of the environment, like $NAME")
        said = self.environ.get(variable[1])
        if not said:
            raise self.wrong(key, f"{value} is not set in the environment")
        types = typing.get_args(wanted) or (wanted,)
        if str in types or not isinstance(said, str):
            return said
        if int in types and re.fullmatch(r"-?[0-9]{1,9}", said):
            return int(said)
        return _TRUTH.get(said.lower(), said) if bool in types else said


def _declare_queue(app: Penstock, name: str, table: _Table) -> None:
    options = table.checked(Penstock.queue)
    if "retry" in options:
        options["retry"] = _retries(table, options["retry"])
    app.queue(name, **options)


def _retries(table: _Table, said: Any) -> Retries:
    if not isinstance(said, dict):
        raise table.wrong("retry", 'must be a table like { attempts = 3, delay = "5m" }')
    inner = replace(table, name=f"{table.name}.retry", options=said)
    with table.telling("retry."):
        return Retries(**inner.checked(Retries))


def _declare_plan(app: Penstock, name: str, table: _Table) -> None:
    app.plan(name, **table.checked(Penstock.plan))


def _declare_job(app: Penstock, name: str, table: _Table) -> None:
    if "handler" in table.options:
        _refuse_odd_handler(table, table.options["handler"])
    for key, said in _LATER.items():
        if key in table.options:
            raise table.wrong(key, said)
    takes = [key for key in inspect.signature(Penstock.job).parameters if key not in _NOT_IN_TOML]
    options = table.checked(Penstock.job, *takes, "handler")
    for key in ("queue", "handler"):
        if key not in options:
            raise table.wrong(key, "is missing")
    queue = options["queue"]
    if queue not in app.queues:
        known = ", ".join(app.queues) or "none"
        raise table.wrong("queue", f"there is no [queues.{queue}]; known are {known}")
    function = _handler(table, options.pop("handler"))
    app.job(name=name, **options)(function)


def _refuse_odd_handler(table: _Table, said: Any) -> None:
    """First of all: the other keys of a job are those that its handler has."""
    if said in _LATER_HANDLERS:
        raise table.wrong("handler", f"{said} comes in a later version; known now is {_HANDLER}")
    if isinstance(said, str) and (_FUNCTION.fullmatch(said) or said.startswith("$")):
        return
    raise table.wrong("handler", f"is {said!r}; known is {_HANDLER}")


def _handler(table: _Table, said: Any) -> Callable[..., Any]:
    _refuse_odd_handler(table, said)
    module, _, attribute = said.partition(":")
    try:
        found = find_object(module, attribute, table.path.parent)
    except Misconfigured as error:
        raise table.wrong("handler", str(error)) from error
    if not inspect.isfunction(found):
        raise table.wrong("handler", f"{said} is a {type(found).__name__} and not a function")
    return found


# What is not known, told apart from what nobody has heard of.
_LATER = {
    "price": "needs credits, which this version does not have: leave it out",
    "split": "needs credits, which this version does not have: leave it out",
    "fields": "a Python function has its fields in its own parameters: leave it out",
}
_NOT_IN_TOML = ("self", "name", "price", "split")
_GROUPS: dict[str, Callable[[Penstock, str, _Table], None]] = {
    "queues": _declare_queue,
    "plans": _declare_plan,
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
