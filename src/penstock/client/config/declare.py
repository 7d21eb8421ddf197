"""Declare queues, plans and kinds: read what the database knows, and send what is new.

Each item is declared in its own transaction: a common one would hold the locks of several queues at
once, in another order than an operator's edit takes them.

Two apps that declare one item differently are refused. To the database, an item whose module was
renamed, or that moved to another module, is the same case; its old file shows the difference.
"""

import ast
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import asyncpg

from penstock.base.suggestions import did_you_mean
from penstock.client.config.declared import Plan, Queue
from penstock.client.config.source_location import SourceLocation
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


# The methods that declare, and the number of positional arguments that include the name.
_NAMES = {"queue": 1, "plan": 1, "job": 0}

Item = Queue | Plan | Kind[..., Any]
Known = Mapping[tuple[str, str], asyncpg.Record]
Parts = Mapping[str, Any]
"""Where something is declared, in the form of `SourceLocation.parts`."""


async def declare(
    engine: Engine, items: Collection[Item], by: str, app: SourceLocation, *, strict: bool | None
) -> None:
    """Declare all of `items` to the database; write nothing for those that it already knows."""
    known = await _known(engine)
    declare_item: dict[str, Any] = {
        "queue": engine.queues.declare,
        "plan": engine.accounts.declare_plan,
        "kind": engine.queues.declare_kind,
    }
    for item in items:
        noun, options, at = _noun(item), dict(item.declared), item.location.parts(app)
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
            # The message of a conflict already names both locations.
            if error.code != "declared_differently":
                error.message = f"{error.message} ({noun} {item.name}, {item.location})"
                error.args = (error.message,)
            raise
    current = known.get(("accounts", "strict"))
    if strict is not None and (current is None or current["declared"] != strict):
        async with engine.transaction() as conn:
            await conn.execute(_STRICT, strict)


def _noun(item: Item) -> str:
    return "queue" if isinstance(item, Queue) else "plan" if isinstance(item, Plan) else "kind"


def _replaced(before: asyncpg.Record | None, at: Parts, by: str, name: str) -> str | None:
    """Return the app that declared it before and no longer does; None if it may still do so."""
    before_by: str | None = None if before is None else before["declared_by"]
    if before is None or before_by is None or before_by == by:
        return None
    return before_by if moved(before["declared_in"], before_by, at, by, name) else None


def _no_queue(kind: Kind[..., Any], queues: list[str]) -> NotFound:
    name = kind.queue
    return NotFound(
        f"there is no queue {name}, which job kind {kind.name} ({kind.location}) names; known are "
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
        return {}  # the role may call functions, but not read tables


def differs(before: Parts | None, now: Parts) -> bool:
    """Whether it is declared in another line; the same line on another host does not count."""
    kept = before or {}
    return any(kept.get(part) != now.get(part) for part in ("file", "line", "app"))


def moved(before: Parts | None, by: str, now: Parts, now_by: str, name: str) -> bool:
    """Whether app `by` no longer declares `name` there; False if that cannot be determined."""
    if before is None or before.get("host") != now["host"]:
        return False
    if before.get("app") == now["app"]:
        # The same module is `shop` as a script and `letters.shop` when imported.
        return by.rpartition(".")[2] == now_by.rpartition(".")[2]
    file = Path(str(before.get("file")))
    # A notebook's cell is not a file; and a file that both apps share proves nothing.
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
    """Whether the code may declare names that it does not write as literals."""
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
