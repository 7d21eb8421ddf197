"""Each option is declared once: what Python takes and what SQL accepts agree with that."""

import inspect
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from penstock import Penstock, Retries
from penstock.engine.options.forms import Flag, Form, Kept, Rate, Seconds, Whole, Word
from penstock.engine.options.option import Option, editable, flat
from penstock.engine.options.plan import PLAN
from penstock.engine.options.queue import QUEUE, RETRIES

TEN_YEARS = 3650 * 86_400

# `inline` is the app's alone.
STORED = {
    "queue": [option for option in flat(QUEUE) if option.name != "inline"],
    "plan": list(PLAN),
}


@pytest.mark.parametrize(
    ("function", "options"),
    [(Penstock.queue, QUEUE), (Penstock.plan, PLAN), (Retries, RETRIES)],
)
def test_python_takes_the_declared_options_by_their_names(
    function: Callable[..., Any], options: tuple[Option, ...]
) -> None:
    taken = [one for one in inspect.signature(function).parameters if one not in ("self", "name")]
    assert taken == [option.name for option in options]


async def test_sql_knows_the_same_options(conn: asyncpg.Connection) -> None:
    keys = [option.key for option in STORED["queue"]]
    assert sorted(await conn.fetchval("select penstock._queue_options()")) == sorted(keys)
    await conn.execute("select penstock.declare_queue('q')")
    shown = await conn.fetchval("select penstock.read_queue('q') -> 'in_force'")
    assert sorted(shown) == sorted(keys)
    await conn.execute("select penstock.declare_plan('p')")
    plan = await conn.fetchval("select penstock.list_plans()")
    assert {option.key for option in PLAN} <= set(plan)


@pytest.mark.parametrize(
    ("what", "option"),
    [(what, option) for what, options in STORED.items() for option in options],
    ids=lambda one: one.key if isinstance(one, Option) else one,
)
async def test_sql_has_the_declared_bounds(
    conn: asyncpg.Connection, what: str, option: Option
) -> None:
    declare = f"select penstock.declare_{what}('q', $1)"
    beside = {"rate": "1000/s"} if option.name == "burst" else {}
    allowed, refused = edges(option.form)
    for value in allowed:
        await conn.execute(declare, {**beside, option.key: value})
    for value in refused:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await conn.execute(declare, {**beside, option.key: value})
        assert (caught.value.sqlstate, option.key in str(caught.value)) == ("PS422", True), value


def edges(form: Form) -> tuple[list[Any], list[Any]]:
    """Values just inside and just outside of what a form allows."""
    match form:
        case Whole(least, most):
            return [least, most], [least - 1, most + 1]
        case Word(choices):
            return list(choices), ["other"]
        case Seconds(zero):
            return [TEN_YEARS, *([0] if zero else [])], [TEN_YEARS + 1, *([] if zero else [0])]
        case Kept():
            return [TEN_YEARS, "forever"], [TEN_YEARS + 1, 0]
        case Rate():
            return ["1/d", "1000000/s"], ["1000001/s"]
        case Flag():
            return [True], ["yes"]
    raise AssertionError(form)


def test_every_option_that_can_be_changed_has_a_name_for_people() -> None:
    for options in (QUEUE, PLAN):
        labels = [option.label for option in editable(options)]
        assert len(labels) == len(set(labels))
        assert all(option.help.endswith(".") and "\n" not in option.help for option in options)
