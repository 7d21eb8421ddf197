"""Telling the database what an app declares: one look at what it knows, then only what is new.

Each thing is declared in a transaction of its own: together they would hold the locks of several
queues at once, in another order than an operator's edit takes them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.app.kind import Kind
from penstock.app.plan import Plan
from penstock.app.queue import Queue
from penstock.engine import Engine
from penstock.errors import Misconfigured, Refused

_KNOWN = """
select 'queue' as what, name, declared from penstock.queue
union all select 'plan', name, declared from penstock.plan
union all select 'kind', name, declared from penstock.kind
union all select 'accounts', 'strict', to_jsonb(accounts_strict) from penstock.setting
"""
_STRICT = "update penstock.setting set accounts_strict = $1 where accounts_strict <> $1"


@dataclass(frozen=True, slots=True)
class Declaration:
    """One thing in the form in which the database keeps it."""

    what: str
    name: str
    declared: Any
    place: str


def declarations(
    queues: Iterable[Queue],
    plans: Iterable[Plan],
    kinds: Iterable[Kind[..., Any]],
    *,
    strict: bool | None,
) -> list[Declaration]:
    """All of an app's, in the order in which they build on one another."""
    found = [Declaration("queue", queue.name, queue.declared, str(queue.place)) for queue in queues]
    found += [Declaration("plan", plan.name, plan.declared, str(plan.place)) for plan in plans]
    found += [
        Declaration("kind", kind.name, {**kind.declared, "queue": kind.queue}, str(kind.place))
        for kind in kinds
    ]
    if strict is not None:
        found.append(Declaration("accounts", "strict", strict, ""))
    return found


async def declare(engine: Engine, wanted: Iterable[Declaration], by: str) -> None:
    """Make the database know all of `wanted`; nothing is written where it does already."""
    known = await _known(engine)
    for one in wanted:
        if known.get((one.what, one.name)) != one.declared:
            try:
                await _declare_one(engine, one, by)
            except Refused as error:
                error.add_note(f"{one.what} {one.name} is declared at {one.place}")
                raise


async def _known(engine: Engine) -> dict[tuple[str, str], Any]:
    try:
        async with engine.transaction() as conn:
            rows = await conn.fetch(_KNOWN)
    except Misconfigured:
        return {}  # a role that may call functions, and not look into tables
    return {(row["what"], row["name"]): row["declared"] for row in rows}


async def _declare_one(engine: Engine, one: Declaration, by: str) -> None:
    match one.what:
        case "queue":
            await engine.queues.declare(one.name, by=by, **one.declared)
        case "plan":
            await engine.accounts.declare_plan(one.name, by=by, **one.declared)
        case "kind":
            options = {key: value for key, value in one.declared.items() if key != "queue"}
            await engine.queues.declare_kind(one.name, one.declared["queue"], by=by, **options)
        case _:
            async with engine.transaction() as conn:
                await conn.execute(_STRICT, one.declared)
