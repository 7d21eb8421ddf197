"""The page of settings: environment, options of the app, keys of `penstock.toml`, limits.

Defaults come from a queue and a plan that are declared without options in a database: that is where
defaults are.
"""

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg

import penstock
from _generate.page import Undocumented, code, columns_of, described, page, read_words, table
from penstock import Penstock, Retries
from penstock.client.config import model_kinds
from penstock.client.config.table import taken
from penstock.client.submission import Submission
from penstock.engine.options.forms import Form, Kept, Seconds
from penstock.engine.options.kind import KIND
from penstock.engine.options.option import Option
from penstock.engine.options.plan import PLAN
from penstock.engine.options.queue import QUEUE, RETRIES
from penstock.engine.options.submit import SUBMIT

WORDS = read_words("settings")


async def render(conn: asyncpg.Connection) -> str:
    queue_defaults, plan_defaults = await _defaults(conn)
    return page(
        "Settings",
        WORDS["about"],
        "## Environment",
        WORDS["environment_about"],
        _environment(),
        "## Forms",
        WORDS["forms"],
        "## Queues",
        WORDS["queues"],
        _declared(QUEUE, Penstock.queue, queue_defaults),
        "## Retries",
        WORDS["retries"],
        _declared(RETRIES, Retries, queue_defaults),
        "## Plans",
        WORDS["plans"],
        _declared(PLAN, Penstock.plan, plan_defaults),
        "## Jobs",
        WORDS["jobs"],
        _declared(KIND, Penstock.job, {}),
        "## Submits",
        WORDS["submits"],
        _declared(SUBMIT, Submission.using, None),
        "## penstock.toml",
        WORDS["file"],
        WORDS["example"],
        "Above the tables:",
        table(["key", ""], ([code(key), told] for key, told in WORDS["top"].items())),
        "In `[jobs.NAME]`, beside the options of a job:",
        table(["key", ""], ([code(key), told] for key, told in WORDS["job_keys"].items())),
        *_handlers(),
        "## Limits of the database",
        WORDS["limits_about"],
        await _limits(conn),
    )


@functools.cache
def variables() -> frozenset[str]:
    """Every PENSTOCK_* that the source names."""
    source = Path(penstock.__file__).parent
    return frozenset(
        name
        for file in [*source.rglob("*.py"), *source.rglob("*.toml")]
        for name in re.findall(r"\bPENSTOCK_[A-Z_]+\b", file.read_text(encoding="utf-8"))
    )


def _environment() -> str:
    known: dict[str, list[str]] = WORDS["environment"]
    described("variable", variables() - set(WORDS["inner"]), known)
    rows = ([code(name), shown(default), told] for name, (default, told) in known.items())
    return table(["variable", "default", ""], rows)


def shown(default: str) -> str:
    """A value as code; what is said in words as it is."""
    return code(default) if default and " " not in default and default != "required" else default


def _declared(
    options: Sequence[Option],
    function: Callable[..., Any],
    defaults: Mapping[str, Any] | None,
) -> str:
    """These options; `defaults` are those in force, by key; None: they are those of the kind."""
    names = [option.name for option in options]
    described("option in the docstring", names, columns_of(function.__doc__ or ""))
    rows = (
        [
            code(option.name),
            option.form.words,
            *([] if defaults is None else [shown(_default(option, defaults))]),
            f"{option.help} {option.more}",
        ]
        for option in options
    )
    return table(["option", "form", *([] if defaults is None else ["default"]), ""], rows)


def _default(option: Option, defaults: Mapping[str, Any]) -> str:
    known = option.key in defaults
    return option.default or (_value(defaults[option.key], option.form) if known else "")


def _handlers() -> list[str]:
    described("handler", model_kinds.HANDLERS, WORDS["handlers"])
    parts, seen = [], set()
    for name, handler in model_kinds.HANDLERS.items():
        options = taken(handler, "read")
        seen |= set(options)
        rows = []
        for one in options:
            default = inspect.signature(handler).parameters[one].default
            needed = default is inspect.Parameter.empty
            said = "required" if needed else "" if default is None else str(default)
            if one not in WORDS["handler_options"]:
                raise Undocumented(f"option of handler {name}", [one])
            rows.append([code(one), shown(said), WORDS["handler_options"][one]])
        parts += [
            f"### Handler {name}",
            WORDS["handlers"][name],
            table(["key", "default", ""], rows),
        ]
    described("option of a handler", seen, WORDS["handler_options"])
    return parts


async def _limits(conn: asyncpg.Connection) -> str:
    row = await conn.fetchrow("select * from penstock.setting")
    assert row is not None
    limits = {name: value for name, value in row.items() if name != "only_row"}
    described("limit", limits, WORDS["limits"])
    return table(
        ["column", "default", ""],
        (
            [code(name), code(_value(value)), WORDS["limits"][name]]
            for name, value in limits.items()
        ),
    )


async def _defaults(conn: asyncpg.Connection) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is in force for a queue and a plan that were declared without options."""
    transaction = conn.transaction()
    await transaction.start()
    try:
        await conn.execute("select penstock.declare_queue('plain'), penstock.declare_plan('plain')")
        queue = json.loads(await conn.fetchval("select penstock.read_queue('plain')"))
        plan = json.loads(await conn.fetchval("select penstock.list_plans()"))
    finally:
        await transaction.rollback()
    defaults: dict[str, Any] = queue["in_force"]
    in_words = f"{_length(int(defaults['stuck_after_seconds']))}, or the time-out if longer"
    return {**defaults, "stuck_after_seconds": in_words}, plan


def _value(value: Any, form: Form | None = None) -> str:
    match value:
        case None:
            return "no limit"
        case bool():
            return str(value).lower()
        case timedelta():
            return _length(int(value.total_seconds()))
        case int() | float() if isinstance(form, Seconds | Kept):
            return _length(int(value))
    return str(value)


def _length(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % size == 0 and seconds:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
