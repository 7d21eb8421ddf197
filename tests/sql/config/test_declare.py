"""Queues and kinds: what code declares, what an operator overrides, what is in force."""

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from support import factory
from support.factory import refused

DEFAULTS: dict[str, Any] = {
    "concurrency": None,
    "rate_count": None,
    "rate_period": None,
    "rate_burst": None,
    "ordering": "aging",
    "aging_step": timedelta(seconds=10),
    "timeout": timedelta(minutes=2),
    "stale_after": timedelta(minutes=3),
    "stuck_after": timedelta(minutes=5),
    "max_attempts": 3,
    "backoff": "linear",
    "backoff_delay": timedelta(minutes=5),
    "backoff_max": timedelta(days=1),
    "recovery": 3,
}


async def in_force(conn: asyncpg.Connection, name: str = "q") -> dict[str, Any]:
    row = await conn.fetchrow("select * from penstock.queue where name = $1", name)
    assert row
    return {column: row[column] for column in DEFAULTS}


async def declare(conn: asyncpg.Connection, by: str | None = None, **options: Any) -> None:
    await conn.execute("select penstock.declare_queue('q', $1, $2)", options, by)


async def edit(conn: asyncpg.Connection, **options: Any) -> None:
    await conn.execute("select penstock.edit_queue('q', $1)", options)


async def test_a_queue_without_options_has_the_documented_defaults(
    conn: asyncpg.Connection,
) -> None:
    """E13, F3, F4, S6: times out after 2 minutes, is stale after 3 and stuck after 5."""
    await declare(conn)
    assert await in_force(conn) == DEFAULTS
    kept = await conn.fetchrow(
        "select s.kept as succeeded, f.kept as failed from penstock.queue q"
        " join penstock.retention_class s on s.id = q.succeeded_class"
        " join penstock.retention_class f on f.id = q.failed_class"
    )
    assert kept
    assert (kept["succeeded"], kept["failed"]) == (timedelta(days=7), timedelta(days=90))


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"concurrency": 40}, {"concurrency": 40}),
        (
            {"rate": "500/min"},
            {"rate_count": 500, "rate_period": timedelta(minutes=1), "rate_burst": 9},
        ),
        (
            {"rate": " 10 / s", "burst": 3},
            {"rate_count": 10, "rate_period": timedelta(seconds=1), "rate_burst": 3},
        ),
        ({"rate": "2/day"}, {"rate_count": 2, "rate_period": timedelta(days=1), "rate_burst": 1}),
        ({"rate": "2/h"}, {"rate_count": 2, "rate_period": timedelta(hours=1), "rate_burst": 1}),
        ({"order": "fair"}, {"ordering": "fair"}),
        ({"aging_step_seconds": 0}, {"aging_step": timedelta(0)}),
        (
            {"timeout_seconds": 600},
            {"timeout": timedelta(minutes=10), "stuck_after": timedelta(minutes=10)},
        ),
        ({"timeout_seconds": 0.5}, {"timeout": timedelta(seconds=0.5)}),
        ({"stale_after_seconds": 60}, {"stale_after": timedelta(minutes=1)}),
        ({"stuck_after_seconds": 60}, {"stuck_after": timedelta(minutes=1)}),
        ({"attempts": 1}, {"max_attempts": 1}),
        ({"backoff": "exponential"}, {"backoff": "exponential"}),
        ({"delay_seconds": 0}, {"backoff_delay": timedelta(0)}),
        ({"backoff_max_seconds": 60}, {"backoff_max": timedelta(minutes=1)}),
        ({"recovery": 0}, {"recovery": 0}),
        ({"concurrency": None, "timeout_seconds": None, "rate": None}, {}),
    ],
)
async def test_each_option_is_put_in_force(
    conn: asyncpg.Connection, options: dict[str, Any], changed: dict[str, Any]
) -> None:
    await declare(conn, **options)
    assert await in_force(conn) == DEFAULTS | changed


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("concurrency", [0, -1, 1.5, "1", True, [], 1_000_001]),
        ("rate", ["fast", "10", "0/s", "-1/s", "10/week", 10, "1000001/s", "999999999/s", ["1/s"]]),
        ("burst", [0, "1", 1.5]),
        ("order", ["fifo", "", 1, ["fair"]]),
        ("aging_step_seconds", [-1, "10s", 1e12]),
        ("timeout_seconds", [0, -1, "2m", 315_360_001, [], {}]),
        ("stale_after_seconds", [0, -1, "3m"]),
        ("stuck_after_seconds", [0, -1, "5m"]),
        ("attempts", [0, 1001, 2.5, "3"]),
        ("backoff", ["random", 5, True]),
        ("delay_seconds", [-0.1, "5m"]),
        ("backoff_max_seconds", [-1, "1d"]),
        ("recovery", [-1, 1001, "3"]),
        ("retention_seconds", [0, -1, "7d", "never"]),
        ("retention_failed_seconds", [0, -1, "90d"]),
    ],
)
async def test_an_invalid_option_is_named_and_nothing_changes(
    conn: asyncpg.Connection, option: str, values: list[Any]
) -> None:
    needs = {"rate": "1/s"} if option == "burst" else {}
    await conn.execute("select penstock.declare_queue('old', '{}')")
    before = await factory.contents(conn)
    for value in values:
        with refused(422, "invalid_option", option) as error:
            await declare(conn, **(needs | {option: value}))
        assert option in error["message"]
        with refused(422, "invalid_option", option):
            await conn.execute("select penstock.edit_queue('old', $1)", needs | {option: value})
    assert await factory.contents(conn) == before


async def test_an_unknown_option_is_named_beside_the_known_ones(
    conn: asyncpg.Connection,
) -> None:
    with refused(422, "unknown_option", "concurency") as error:
        await declare(conn, concurency=1)
    assert "concurrency" in error["message"]
    wrong: Any
    for wrong in ([], "fast", None):
        with refused(422, "invalid_option", "options"):
            await conn.execute("select penstock.declare_queue('q', $1)", wrong)
    with refused(422, "invalid_option", "burst"):
        await declare(conn, burst=5)  # without a rate


@pytest.mark.parametrize("name", ["", " q", "-q", "a/b", "ü", "a" * 101, "q\n", None])
async def test_names_are_plain(conn: asyncpg.Connection, name: str) -> None:
    for what in ("queue", "plan"):
        with refused(422, "invalid_name", what):
            await conn.execute(f"select penstock.declare_{what}($1)", name)
    await declare(conn)
    with refused(422, "invalid_name", "kind"):
        await conn.execute("select penstock.declare_kind($1, 'q')", name)


async def test_two_apps_that_declare_a_queue_differently_are_both_named(
    conn: asyncpg.Connection,
) -> None:
    await declare(conn, by="marking", concurrency=1)
    await declare(conn, by="essays", concurrency=1)  # the same, so it is accepted
    before = await factory.contents(conn)
    with refused(409, "declared_differently", "queue") as error:
        await declare(conn, by="essays", concurrency=2)
    for word in ("queue q", "marking", "essays", '"concurrency": 1', '"concurrency": 2'):
        assert word in error["message"], word
    assert await factory.contents(conn) == before
    await declare(conn, by="marking", concurrency=3)  # a new version of its own
    assert (await in_force(conn))["concurrency"] == 3


async def test_kinds_and_plans_declared_differently_name_both_apps(
    conn: asyncpg.Connection,
) -> None:
    await declare(conn)
    kind = "select penstock.declare_kind('k', 'q', $1, $2)"
    await conn.execute(kind, {"attempts": 1}, "marking")
    with refused(409, "declared_differently", "kind") as error:
        await conn.execute(kind, {"attempts": 2}, "essays")
    assert "marking" in error["message"]
    plan = "select penstock.declare_plan('p', $1, $2)"
    await conn.execute(plan, {"priority": 1}, "marking")
    with refused(409, "declared_differently", "plan") as error:
        await conn.execute(plan, {"priority": 2}, "essays")
    assert "essays" in error["message"]


async def test_after_a_reset_another_app_may_declare_a_queue(conn: asyncpg.Connection) -> None:
    """An app that was renamed, or is gone, must not block its queue for ever."""
    await declare(conn, by="marking", concurrency=1)
    kind = "select penstock.declare_kind('k', 'q', $1, $2)"
    await conn.execute(kind, {"attempts": 1}, "marking")
    with refused(409, "declared_differently", "queue") as error:
        await declare(conn, by="marks", concurrency=2)
    assert "penstock queues reset" in error["hint"]
    await conn.execute("select penstock.reset_queue('q')")
    await declare(conn, by="marks", concurrency=2)
    await conn.execute(kind, {"attempts": 2}, "marks")
    with refused(409, "declared_differently", "queue"):
        await declare(conn, by="marking", concurrency=1)


async def test_an_override_outlives_declarations_until_it_is_reset(
    conn: asyncpg.Connection,
) -> None:
    """G8: limits change without a migration or a restart."""
    await declare(conn, concurrency=1, timeout_seconds=60)
    await edit(conn, concurrency=5)
    await declare(conn, concurrency=2, timeout_seconds=90)  # the app starts again
    state = await in_force(conn)
    assert (state["concurrency"], state["timeout"]) == (5, timedelta(seconds=90))
    assert await conn.fetchval("select overrides from penstock.queue") == {"concurrency": 5}
    await edit(conn, concurrency=None)
    assert (await in_force(conn))["concurrency"] == 2
    await edit(conn, concurrency=7, attempts=9)
    await conn.execute("select penstock.reset_queue('q')")
    state = await in_force(conn)
    assert (state["concurrency"], state["max_attempts"]) == (2, 3)


async def test_unknown_queues_are_named(conn: asyncpg.Connection) -> None:
    calls = ["edit_queue('nope', '{}')", "reset_queue('nope')", "pause_queue('nope')"]
    calls += ["resume_queue('nope')", "declare_kind('k', 'nope')", "claim_jobs(1, 'nope', 1)"]
    for call in calls:
        with refused(404, "unknown_queue", "queue") as error:
            await conn.execute(f"select * from penstock.{call}")
        assert error["queue"] == "nope"


async def test_the_order_of_a_queue_with_live_jobs_cannot_change(conn: asyncpg.Connection) -> None:
    await factory.queue(conn, order="strict")
    worker = await factory.worker(conn)
    await factory.submit(conn)
    with refused(409, "queue_in_use", "order") as error:
        await edit(conn, order="fair")
    assert "strict" in error["message"]
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    await edit(conn, order="fair")
    assert (await in_force(conn))["ordering"] == "fair"


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("attempts", [0, "3"]),
        ("timeout_seconds", [0, "2m"]),
        ("priority_offset", [1001, 0.5, "10"]),
        ("dedupe_field", [5, "", "f" * 201]),
        ("topic_field", [5, ""]),
        ("topic", [[], ""]),
        ("account_field", [{}, ""]),
        ("account", [True, "", "a" * 201]),
        ("computed", ["dedupe", {"dedupe": 1}, [1], [None], 5]),
    ],
)
async def test_an_invalid_option_of_a_kind_is_named(
    conn: asyncpg.Connection, option: str, values: list[Any]
) -> None:
    await declare(conn)
    for value in values:
        with refused(422, "invalid_option", option):
            await conn.execute("select penstock.declare_kind('k', 'q', $1)", {option: value})
    assert await conn.fetchval("select count(*) from penstock.kind") == 0


@pytest.mark.parametrize(("introduced", "options"), [("edit", {}), ("declare", {"rate": "9/s"})])
async def test_a_limit_introduced_on_a_running_queue_counts_running_jobs(
    conn: asyncpg.Connection, introduced: str, options: dict[str, Any]
) -> None:
    """G8: M3 holds as soon as the limit is in force."""
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 8)
    running = await factory.claim(conn, worker, limit=3)
    await (edit if introduced == "edit" else declare)(conn, concurrency=2, **options)
    assert await factory.claim(conn, worker, limit=8) == []
    await factory.finish(conn, worker, running[:1])
    assert await factory.claim(conn, worker, limit=8) == []
    await factory.finish(conn, worker, running[1:2])
    assert len(await factory.claim(conn, worker, limit=8)) == 1
    await conn.execute("select penstock.reset_queue('q')")
    await conn.execute("select penstock.declare_queue('q', '{}')")
    assert len(await factory.claim(conn, worker, limit=8)) == 4
