"""What programs of other people rely on, read from the code and from a migrated database."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
from starlette.routing import Mount, Route
from typer.main import get_command

import penstock
from _generate import calls, functions
from _generate.surface import BESIDE, members
from penstock.cli.main import app as program
from penstock.errors import PenstockError
from penstock.server import api

_MODULE = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z_]\w*)")


def document() -> dict[str, Any]:
    """The OpenAPI document: paths, parameters, bodies, responses, forms."""
    return calls.document()


def routes() -> list[str]:
    """Method, path and operationId of every route, those of the dashboard included."""
    named = {
        (method.upper(), path): operation["operationId"]
        for path, operations in document()["paths"].items()
        for method, operation in operations.items()
    }
    found = []
    for route in api(penstock.Penstock(name="surface")).routes:
        if isinstance(route, Mount):
            found.append(f"* {route.path}/")
        elif isinstance(route, Route):
            for method in route.methods or ():
                called = named.get((method, route.path_format), "")
                found.append(f"{method} {route.path} {called}".strip())
    return sorted(found)


def commands() -> dict[str, Any]:
    """Every command with its arguments and options: names, whether required, the default."""
    root: Any = get_command(program)
    return dict(_commands(root, "penstock"))


def _commands(command: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield (
        path,
        {
            " ".join([*one.opts, *one.secondary_opts]): {
                "as": one.param_type_name,
                "required": one.required,
                "flag": getattr(one, "is_flag", False),
                "default": None if callable(one.default) else str(one.default),
            }
            for one in command.params
        },
    )
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(inner, f"{path} {name}")


async def sql(dsn: str) -> dict[str, Any]:
    """The functions and views that apps and operators may call, with what they take and return."""
    conn = await asyncpg.connect(dsn)
    try:
        # Types are written the same whatever path whoever asks has.
        await conn.execute("set search_path = ''")
        known = {*functions.CALLS, *functions.OPERATORS}
        calls_ = {
            f"{row['name']}({row['arguments']})": row["result"]
            for row in await conn.fetch(functions._FUNCTIONS)
            if row["name"] in known
        }
        views = {
            row["name"]: dict(zip(row["columns"], row["types"], strict=True))
            for row in await conn.fetch(functions._VIEWS)
        }
    finally:
        await conn.close()
    return {"functions": calls_, "views": views}


def python() -> dict[str, Any]:
    """Every public class: how it is made, its attributes and calls with their signatures."""
    public = {name: getattr(penstock, name) for name in penstock.__all__}
    return {name: _class(kind) for name, kind in {**public, **BESIDE}.items()}


def _class(kind: type) -> dict[str, Any]:
    bases = {"bases": [base.__name__ for base in kind.__bases__]}
    if issubclass(kind, PenstockError):
        return bases  # apps catch them, and do not make them
    return {"()": _signature(kind), **bases} | {
        name: _signature(value) if callable(value) else "attribute" for name, value in members(kind)
    }


def _signature(value: Any) -> str:
    """Without the modules in which types lie: those are ours to change."""
    said = _MODULE.sub("", str(inspect.signature(value)))
    said = re.sub(r" at 0x[0-9a-f]+", "", said)
    return f"async {said}" if inspect.iscoroutinefunction(value) else said
