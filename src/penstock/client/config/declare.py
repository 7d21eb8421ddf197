"""Declaring queues, plans and kinds to the database: what it knows is read, what is new is sent.

Each thing is declared in a transaction of its own: together they would hold the locks of several
queues at once, in another order than an operator's edit takes them.

Two apps that declare one thing differently are refused. A kind whose module was renamed, or that
went to another module, looks the same to the database; its old file tells the difference.
"""

import ast
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import asyncpg

from penstock.base.suggestions import did_you_mean
from penstock.client.config.declared import Plan, Queue
from penstock.client.config.source_location import Place
from penstock.client.kind import Kind
from penstock.engine.engine import Engine
from penstock.engine.queues import Location
from penstock.errors import Misconfigured, NotFound, Refused

_KNOWN = """
select 'queue' as what, name, declared, declared_by, declared_in from penstock.queue
union all select 'plan', name, declared, declared_by, declared_in from penstock.plan
union all select 'kind', name, declared, declared_by, declared_in from penstock.kind
union all select 'accounts', 'strict', to_jsonb(accounts_strict), null, null from penstock.setting
"""
_STRICT = "update penstock.setting set accounts_strict = $1 where accounts_strict <> $1"


# The calls that declare, and which of their positions is a name.
_NAMES = {"queue": 1, "plan": 1, "job": 0}

Item = Queue | Plan | Kind[..., Any]
Known = Mapping[tuple[str, str], asyncpg.Record]
Parts = Mapping[str, Any]
"""Where something is declared, as `Place.parts` has it."""


async def declare(
    engine: Engine, items: Collection[Item], by: str, app: Place, *, strict: bool | None
) -> None:
    """Make the database know all of `items`; nothing is written where it does already."""
    known = await _known(engine)
    declare_item: dict[str, Any] = {
        "queue": engine.queues.declare,
        "plan": engine.accounts.declare_plan,
        "kind": engine.queues.declare_kind,
    }
    for item in items:
        noun, options, at = _noun(item), dict(item.declared), item.place.parts(app)
        if isinstance(item, Kind):
            options["queue"] = item.queue
        before = known.get((noun, item.name))
        if before is not None and before["declared"] == options:
            is_ours = before["declared_by"] == by
            if not (is_ours and differs(before["declared_in"], at)):
                continue
        location = Location(at, _replaced(before, at, by, item.name))
        try:
            await declare_item[noun](item.name, by=by, at=location, **options)
        except NotFound as error:
            if not isinstance(item, Kind) or error.code != "unknown_queue":
                raise
            queues = {each.name for each in items if isinstance(each, Queue)}
            queues |= {name for what, name in known if what == "queue"}
            raise _no_queue(item, sorted(queues)) from error
        except Refused as error:
            # A conflict names both places itself.
            if error.code != "declared_differently":
                error.message = f"{error.message} ({noun} {item.name}, {item.place})"
                error.args = (error.message,)
            raise
    current = known.get(("accounts", "strict"))
    if strict is not None and (current is None or current["declared"] != strict):
        async with engine.transaction() as conn:
            await conn.execute(_STRICT, strict)


def _noun(item: Item) -> str:
    return "queue" if isinstance(item, Queue) else "plan" if isinstance(item, Plan) else "kind"


def _replaced(before: asyncpg.Record | None, at: Parts, by: str, name: str) -> str | None:
    """The app that declared it before and does so no longer; None where it may still."""
    before_by: str | None = None if before is None else before["declared_by"]
    if before is None or before_by is None or before_by == by:
        return None
    return before_by if moved(before["declared_in"], before_by, at, by, name) else None


def _no_queue(kind: Kind[..., Any], queues: list[str]) -> NotFound:
    name = kind.queue
    return NotFound(
        f"there is no queue {name}, which job kind {kind.name} ({kind.place}) names; known are "
        f"{', '.join(queues) or 'none'}.{did_you_mean(name, queues)}",
        code="unknown_queue",
        field="queue",
        hint=f'Name one of these, or declare it first: app.queue("{name}").',
        queue=name,
    )


async def _known(engine: Engine) -> Known:
    try:
        async with engine.transaction() as conn:
            return {(row["what"], row["name"]): row for row in await conn.fetch(_KNOWN)}
    except Misconfigured:
        return {}  # a role that may call functions, and not look into tables


def differs(before: Parts | None, now: Parts) -> bool:
    """Whether it is declared in another line; on another host the same line is no news."""
    kept = before or {}
    return any(kept.get(part) != now.get(part) for part in ("file", "line", "app"))


def moved(before: Parts | None, by: str, now: Parts, now_by: str, name: str) -> bool:
    """Whether app `by` does not declare `name` there any more; False where nobody can tell."""
    if before is None or before.get("host") != now["host"]:
        return False
    if before.get("app") == now["app"]:
        # Run as a script it is `shop`, and imported it is `letters.shop`.
        return by.rpartition(".")[2] == now_by.rpartition(".")[2]
    file = Path(str(before.get("file")))
    # A cell of a notebook is no file; and what two apps share says nothing about either.
    if not file.is_absolute() or str(file) == now["file"]:
        return False
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    except (OSError, UnicodeDecodeError):
        return False
    names_it = re.search(rf"(?<![\w.:-]){re.escape(name)}(?!\w)", text) is not None
    return not names_it and not (file.suffix == ".py" and _computes_names(text))


def _computes_names(text: str) -> bool:
    """Whether code may declare what it does not spell out."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return True
    for call in ast.walk(tree):
        match call:
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in _NAMES:
                names = [word.value for word in call.keywords if word.arg in ("name", None)]
                names += call.args[: _NAMES[attr]]
                if not all(isinstance(name, ast.Constant) for name in names):
                    return True
            case _:
                continue
    return False
