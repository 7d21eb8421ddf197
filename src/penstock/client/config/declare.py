"""Telling the database what an app declares: one look at what it knows, then only what is new.

Each thing is declared in a transaction of its own: together they would hold the locks of several
queues at once, in another order than an operator's edit takes them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.base.suggestions import did_you_mean
from penstock.client.config.moved import differs, moved
from penstock.client.config.plan import Plan
from penstock.client.config.queue import Queue
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


@dataclass(frozen=True, slots=True)
class Declaration:
    """One thing in the form in which the database keeps it."""

    what: str
    name: str
    declared: Any
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """What the database has of it."""

    declared: Any
    by: str | None
    at: Mapping[str, Any] | None


def declarations(
    queues: Iterable[Queue],
    plans: Iterable[Plan],
    kinds: Iterable[Kind[..., Any]],
    *,
    strict: bool | None,
) -> list[Declaration]:
    """All of an app's, in the order in which they build on one another."""
    found = [Declaration("queue", queue.name, queue.declared, queue.place) for queue in queues]
    found += [Declaration("plan", plan.name, plan.declared, plan.place) for plan in plans]
    found += [
        Declaration("kind", kind.name, {**kind.declared, "queue": kind.queue}, kind.place)
        for kind in kinds
    ]
    if strict is not None:
        found.append(Declaration("accounts", "strict", strict))
    return found


async def declare(engine: Engine, wanted: Collection[Declaration], by: str, app: Place) -> None:
    """Make the database know all of `wanted`; nothing is written where it does already."""
    known = await _known(engine)
    for one in wanted:
        at = None if one.place is None else one.place.parts(app)
        before = known.get((one.what, one.name))
        if before is not None and before.declared == one.declared:
            is_ours = before.by == by and at is not None
            if not (is_ours and differs(before.at, at or {})):
                continue
        try:
            await _declare_one(engine, one, by, Location(at, _replaced(before, one, by, at)))
        except NotFound as error:
            if one.what != "kind" or error.code != "unknown_queue":
                raise
            names = [*known, *((each.what, each.name) for each in wanted)]
            queues = sorted({name for what, name in names if what == "queue"})
            raise _no_queue(one, queues) from error
        except Refused as error:
            # A conflict names both places itself.
            if error.code != "declared_differently":
                error.message = f"{error.message} ({one.what} {one.name}, {one.place})"
                error.args = (error.message,)
            raise


def _replaced(
    before: _Known | None, one: Declaration, by: str, at: Mapping[str, Any] | None
) -> str | None:
    """The app that declared it before and does so no longer; None where it may still."""
    if before is None or at is None or before.by is None or before.by == by:
        return None
    return before.by if moved(before.at, before.by, at, by, one.name) else None


def _no_queue(kind: Declaration, queues: list[str]) -> NotFound:
    name = kind.declared["queue"]
    return NotFound(
        f"there is no queue {name}, which job kind {kind.name} ({kind.place}) names; known are "
        f"{', '.join(queues) or 'none'}.{did_you_mean(name, queues)}",
        code="unknown_queue",
        field="queue",
        hint=f'Name one of these, or declare it first: app.queue("{name}").',
        queue=name,
    )


async def _known(engine: Engine) -> dict[tuple[str, str], _Known]:
    try:
        async with engine.transaction() as conn:
            rows = await conn.fetch(_KNOWN)
    except Misconfigured:
        return {}  # a role that may call functions, and not look into tables
    return {
        (row["what"], row["name"]): _Known(row["declared"], row["declared_by"], row["declared_in"])
        for row in rows
    }


async def _declare_one(engine: Engine, one: Declaration, by: str, at: Location) -> None:
    match one.what:
        case "queue":
            await engine.queues.declare(one.name, by=by, at=at, **one.declared)
        case "plan":
            await engine.accounts.declare_plan(one.name, by=by, at=at, **one.declared)
        case "kind":
            options = {key: value for key, value in one.declared.items() if key != "queue"}
            queue = one.declared["queue"]
            await engine.queues.declare_kind(one.name, queue, by=by, at=at, **options)
        case _:
            async with engine.transaction() as conn:
                await conn.execute(_STRICT, one.declared)
