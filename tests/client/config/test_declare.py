"""Queues, plans and retries: options reach the database, and wrong ones are refused at once."""

import runpy
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from penstock import Conflict, Invalid, Misconfigured, Penstock, Retries


async def declared(conn: asyncpg.Connection, table: str, name: str) -> Any:
    return await conn.fetchval(f"select declared from penstock.{table} where name = $1", name)


async def test_every_option_of_a_queue_reaches_the_database(
    app: Penstock, conn: asyncpg.Connection
) -> None:
    app.queue(
        "studio",
        concurrency=40,
        rate="500/min",
        burst=9,
        order="fair",
        aging_step="20s",
        timeout="5m",
        stale_after=180,
        stuck_after=timedelta(minutes=6),
        retry=Retries(attempts=5, backoff="exponential", delay="1.5s", max="1h"),
        recovery=0,
        retention="forever",
        retention_failed="90d",
    )
    await app.engine()
    assert await declared(conn, "queue", "studio") == {
        "concurrency": 40,
        "rate": "500/min",
        "burst": 9,
        "order": "fair",
        "aging_step_seconds": 20,
        "timeout_seconds": 300,
        "stale_after_seconds": 180,
        "stuck_after_seconds": 360,
        "attempts": 5,
        "backoff": "exponential",
        "delay_seconds": 1.5,
        "backoff_max_seconds": 3600,
        "recovery": 0,
        "retention_seconds": "forever",
        "retention_failed_seconds": 90 * 86_400,
    }


async def test_options_that_are_not_given_have_the_defaults(
    app: Penstock, conn: asyncpg.Connection
) -> None:
    app.queue("plain")
    app.plan("plain")
    await app.engine()
    assert await declared(conn, "queue", "plain") == {}
    assert await declared(conn, "plan", "plain") == {}
    row = await conn.fetchrow(
        "select max_attempts, backoff, backoff_delay, stuck_after from penstock.queue"
    )
    assert row is not None
    assert tuple(row) == (3, "linear", timedelta(minutes=5), timedelta(minutes=5))


async def test_the_defaults_of_retries_are_those_of_the_database(
    app: Penstock, conn: asyncpg.Connection
) -> None:
    app.queue("plain", retry=Retries())
    await app.engine()
    assert await declared(conn, "queue", "plain") == {
        "attempts": 3,
        "backoff": "linear",
        "delay_seconds": 300,
    }


async def test_every_option_of_a_plan_reaches_the_database(
    app: Penstock, conn: asyncpg.Connection
) -> None:
    app.plan("free", priority=50, concurrency=1, per_hour=10, weight=1, first_job=-20)
    app.plan("pro", priority=10, default=True)
    await app.engine()
    assert await declared(conn, "plan", "free") == {
        "priority": 50,
        "concurrency": 1,
        "per_hour": 10,
        "weight": 1,
        "first_job": -20,
    }
    assert await conn.fetchval("select name from penstock.plan where is_default") == "pro"


WRONG_QUEUES: list[tuple[str, Any, str]] = [
    ("concurrency", 0, "concurrency is 0; it may be a whole number from 1 to 1000000"),
    ("concurrency", True, "concurrency is True"),
    ("concurrency", "many", "concurrency is 'many'"),
    ("concurrency", 1.0, "concurrency is 1.0"),
    ("rate", "fast", "rate is 'fast'; it must look like \"500/min\""),
    ("rate", "0/s", "rate is '0/s'"),
    ("rate", 500, "rate is 500"),
    ("rate", "9999999/s", "rate is '9999999/s'; it may be at most 1000000/s"),
    ("burst", 5, "burst is 5; it needs a rate"),
    ("order", "random", "order is 'random'; it may be strict, aging, fair"),
    ("aging_step", -1, "aging_step is -1"),
    ("timeout", 0, "timeout is 0; it may be more than 0, and at most ten years"),
    ("timeout", "soon", "timeout is 'soon'"),
    ("timeout", "4000d", "timeout is '4000d'"),
    ("stale_after", "0s", "stale_after is '0s'"),
    ("stuck_after", "forever", "stuck_after is 'forever'"),
    ("retry", 3, "retry is 3; it may be Retries("),
    ("retry", {"attempts": 3}, "retry is {'attempts': 3}; it may be Retries("),
    ("recovery", -1, "recovery is -1; it may be a whole number from 0 to 1000"),
    ("retention", 0, "retention is 0"),
    ("retention", "always", "retention is 'always'"),
    ("retention_failed", "-1d", "retention_failed is '-1d'"),
    ("inline", 1, "inline is 1; it may be true or false"),
]


@pytest.mark.parametrize(("option", "value", "message"), WRONG_QUEUES)
def test_a_wrong_option_of_a_queue_is_refused_at_once(
    option: str, value: Any, message: str
) -> None:
    with pytest.raises(Invalid) as caught:
        Penstock().queue("q", **{option: value})
    assert message in str(caught.value)
    assert caught.value.field == option


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priority", 1001),
        ("concurrency", 0),
        ("per_hour", 0),
        ("weight", 1.5),
        ("first_job", "-20"),
        ("default", None),
    ],
)
def test_a_wrong_option_of_a_plan_is_refused(option: str, value: Any) -> None:
    with pytest.raises(Invalid, match=f"{option} is .*; it may be") as caught:
        Penstock().plan("p", **{option: value})
    assert caught.value.field == option


@pytest.mark.parametrize(
    ("option", "value"), [("attempts", 0), ("backoff", "never"), ("delay", "-1s"), ("max", "x")]
)
def test_a_wrong_option_of_retries_is_refused(option: str, value: Any) -> None:
    with pytest.raises(Invalid, match=f"{option} is .*; it may be") as caught:
        Retries(**{option: value})
    assert caught.value.field == option


@pytest.mark.parametrize("name", ["", "two words", "-x", "a" * 101, "é", 5, None])
def test_a_wrong_name_is_refused(name: Any) -> None:
    with pytest.raises(Invalid, match=r"the queue name .* begin with a letter or digit"):
        Penstock().queue(name)
    with pytest.raises(Invalid, match=r"the plan name .* begin with a letter or digit"):
        Penstock().plan(name)


def test_an_unknown_option_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="concurency"):
        Penstock().queue("q", concurency=1)  # type: ignore[call-arg]  # the point of the test


def test_two_queues_of_one_name_are_refused_with_both_locations() -> None:
    app = Penstock()
    app.queue("q")
    with pytest.raises(Misconfigured) as caught:
        app.queue("q")
    message = str(caught.value)
    assert message.startswith("queue q is declared twice: at ")
    assert message.count("test_declare.py:") == 2
    app.plan("p")
    with pytest.raises(Misconfigured, match="plan p is declared twice"):
        app.plan("p")


def test_the_same_line_may_run_again() -> None:
    """As in a cell of a notebook, or a module that is reloaded."""
    app = Penstock()
    for limit in (1, 2):
        app.queue("q", concurrency=limit)
    assert app.queues["q"].declared == {"concurrency": 2}


def test_an_app_is_named_for_its_module(tmp_path: Path) -> None:
    assert Penstock().name == __name__
    assert Penstock(name="shop").name == "shop"
    (tmp_path / "marking.py").write_text("from penstock import Penstock\napp = Penstock()\n")
    found = runpy.run_path(str(tmp_path / "marking.py"), run_name="__main__")
    assert found["app"].name == "marking"
    package = tmp_path / "school"
    package.mkdir()
    (tmp_path / "marking.py").rename(package / "marking.py")
    text = (package / "marking.py").read_text()
    (package / "marking.py").write_text(f"{text}print(app.name)\n")
    run = [sys.executable, "-m", "school.marking"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "school.marking\n", "as when it is imported"


async def test_two_apps_that_declare_one_queue_differently_are_refused_with_both_names(
    database: str,
) -> None:
    first, second = Penstock(database, name="shop"), Penstock(database, name="school")
    first.queue("q", concurrency=1)
    second.queue("q", concurrency=2)
    await first.engine()
    with pytest.raises(Conflict, match=r"by shop .* and by school") as caught:
        await second.engine()
    assert str(caught.value).count("test_declare.py:") == 2, "both locations"
    assert 'Penstock(name="shop")' in (caught.value.hint or "")
    await first.close()
    await second.close()


async def test_an_edit_at_run_time_survives_the_next_start(
    app: Penstock, database: str, conn: asyncpg.Connection
) -> None:
    app.queue("q", concurrency=1)
    engine = await app.engine()
    await engine.queues.edit("q", concurrency=7)
    again = Penstock(database, name="tests")
    again.queue("q", concurrency=1)
    await again.engine()
    assert await conn.fetchval("select concurrency from penstock.queue") == 7
    await again.close()


async def test_strict_accounts_apply_to_the_database_and_stay(
    database: str, conn: asyncpg.Connection
) -> None:
    strict = "select accounts_strict from penstock.setting"
    for accounts, expected in (
        (None, False),
        ("strict", True),
        (None, True),
        ("open", False),
    ):
        app = Penstock(database, accounts=accounts)  # type: ignore[arg-type]  # one of each
        await app.engine()
        await app.close()
        assert await conn.fetchval(strict) is expected
    with pytest.raises(Invalid, match="accounts is 'closed'; it may be open, strict"):
        Penstock(accounts="closed")  # type: ignore[arg-type]  # the point of the test
