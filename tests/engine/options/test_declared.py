"""Each option is declared once: Python arguments and SQL bounds agree with that."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import asyncpg
import pytest

from penstock import Penstock, Retries
from penstock.client.submission import Submission
from penstock.engine.encoding.encode import CREDITS_MAX
from penstock.engine.jobs.jobs import _TYPES, Batch, NewJob
from penstock.engine.options.forms import Flag, Form, Kept, Other, Rate, Seconds, Whole, Word
from penstock.engine.options.kind import KIND
from penstock.engine.options.option import Option, editable, flat
from penstock.engine.options.plan import PLAN
from penstock.engine.options.queue import QUEUE, RETRIES
from penstock.engine.options.submit import JOB, SUBMIT
from penstock.http.schemas.forms import SubmitJob

TEN_YEARS = 3650 * 86_400

# Only the app has `inline`.
STORED = {
    "queue": [option for option in flat(QUEUE) if option.name != "inline"],
    "plan": list(PLAN),
    "kind": [
        option for option in KIND if option.name in ("priority_offset", "timeout", "attempts")
    ],
}


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (Penstock.queue, QUEUE),
        (Penstock.plan, PLAN),
        (Penstock.job, KIND),
        (Retries, RETRIES),
        (Submission.using, SUBMIT),
    ],
)
def test_python_takes_the_declared_options_by_their_names(
    function: Callable[..., Any], options: tuple[Option, ...]
) -> None:
    taken = [one for one in inspect.signature(function).parameters if one != "self"]
    if function in (Penstock.queue, Penstock.plan):
        assert taken.pop(0) == "name"  # the queue's or plan's own
    assert taken == [option.name for option in options]


async def test_sql_knows_the_same_options(conn: asyncpg.Connection) -> None:
    keys = [option.key for option in STORED["queue"]]
    assert sorted(
        await conn.fetchval("select array_agg(name) from penstock._options('queue')")
    ) == sorted(keys)
    await conn.execute("select penstock.declare_queue('q')")
    shown = await conn.fetchval("select penstock.read_queue('q') -> 'in_force'")
    assert sorted(shown) == sorted(keys)
    await conn.execute("select penstock.declare_plan('p')")
    plan = await conn.fetchval("select penstock.list_plans()")
    assert {option.key for option in PLAN} <= set(plan)


def test_a_new_job_has_the_declared_options() -> None:
    """In the engine's form for one job or many, and over HTTP."""
    names = {option.name for option in JOB}
    assert {field.name for field in fields(NewJob)} == {"kind", "payload", *names}
    assert {*_TYPES, "metadata"} == names
    assert {field.name for field in fields(Batch)} == {"kinds", "payloads", *names}
    assert list(SubmitJob.model_fields) == ["kind", "payload", *(option.key for option in JOB)]


async def test_submit_in_plain_sql_takes_the_same_options(conn: asyncpg.Connection) -> None:
    names = await conn.fetchval(
        "select proargnames from pg_proc where oid = 'penstock.submit_job'::regproc"
    )
    keys = {option.key for option in SUBMIT} - {"conn"}
    assert set(names) == {"kind", "payload", *keys}


@pytest.mark.parametrize("option", JOB, ids=lambda option: option.key)
async def test_sql_has_the_declared_bounds_of_a_submit(
    conn: asyncpg.Connection, option: Option
) -> None:
    if isinstance(option.form, Other):
        return  # another module reads it, and has its own tests
    await conn.execute("select penstock.declare_queue('q'), penstock.declare_kind('k', 'q')")
    await conn.execute("select penstock.create_account('a')")
    await conn.execute("select penstock.grant_credits('a', $1)", CREDITS_MAX)
    submit = f"select penstock.submit_job('k', '{{}}', 'a', {option.key} => $1)"
    allowed, refused = edges(option.form)
    for value in allowed:
        await conn.execute(submit, value)
    for value in refused:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await conn.execute(submit, value)
        assert (caught.value.sqlstate, option.key in str(caught.value)) == ("PS422", True), value


@pytest.mark.parametrize(
    ("what", "option"),
    [(what, option) for what, options in STORED.items() for option in options],
    ids=lambda one: one.key if isinstance(one, Option) else one,
)
async def test_sql_has_the_declared_bounds(
    conn: asyncpg.Connection, what: str, option: Option
) -> None:
    await conn.execute("select penstock.declare_queue('q')")
    declare = f"select penstock.declare_{what}('q', $1)"
    if what == "kind":
        declare = "select penstock.declare_kind('k', 'q', $1)"
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


def test_every_option_that_can_be_changed_has_a_label() -> None:
    for options in (QUEUE, PLAN, KIND, SUBMIT):
        labels = [option.label for option in editable(options)]
        assert len(labels) == len(set(labels))
        assert all(option.help.endswith(".") and "\n" not in option.help for option in options)
