"""Plans and the accounts that have them: a change applies at once to waiting and running jobs."""

from typing import Any

import asyncpg
import pytest

from support import factory
from support.factory import refused


async def create(conn: asyncpg.Connection, name: str, plan: str | None = None) -> int:
    number: int = await conn.fetchval("select penstock.create_account($1, $2)", name, plan)
    return number


async def set_plan(conn: asyncpg.Connection, account: str, plan: str) -> None:
    await conn.execute("select penstock.set_account_plan($1, $2)", account, plan)


async def edit_plan(conn: asyncpg.Connection, name: str, **options: Any) -> None:
    await conn.execute("select penstock.edit_plan($1, $2)", name, options)


async def default_plan(conn: asyncpg.Connection) -> str | None:
    name: str | None = await conn.fetchval("select name from penstock.plan where is_default")
    return name


async def submit_for(conn: asyncpg.Connection, account: str, many: int) -> None:
    await factory.submit_rows(conn, [{"kind": "q", "account": account, "payload": {"n": 1}}] * many)


async def test_the_first_plan_declared_is_the_default_until_another_is_declared_so(
    conn: asyncpg.Connection,
) -> None:
    declare = "select penstock.declare_plan($1, $2)"
    await conn.execute(declare, "free", {})
    await conn.execute(declare, "pro", {})
    assert await default_plan(conn) == "free"
    await conn.execute(declare, "basic", {"default": True})
    assert await default_plan(conn) == "basic"
    await conn.execute(declare, "free", {"priority": 1})
    assert await default_plan(conn) == "basic"


async def test_with_no_plan_declared_an_account_has_no_limits(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await submit_for(conn, "u1", 20)
    assert len(await factory.claim(conn, await factory.worker(conn), limit=50)) == 20


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("priority", [1001, -1001, 0.5, "10"]),
        ("concurrency", [0, -1, "4"]),
        ("per_hour", [0, "10"]),
        ("weight", [0, 1001, 1.5]),
        ("first_job", [-1001, "x"]),
        ("default", ["yes", 1]),
    ],
)
async def test_an_invalid_option_of_a_plan_is_named(
    conn: asyncpg.Connection, option: str, values: list[Any]
) -> None:
    await factory.plan(conn)
    before = await factory.contents(conn)
    for value in values:
        with refused(422, "invalid_option", option):
            await conn.execute("select penstock.declare_plan('p', $1)", {option: value})
        if option != "default":
            with refused(422, "invalid_option", option):
                await edit_plan(conn, "free", **{option: value})
    with refused(422, "unknown_option", "weigth"):
        await edit_plan(conn, "free", weigth=2)
    assert await factory.contents(conn) == before


async def test_strict_accounts_must_be_made_before_they_submit(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await conn.execute("update penstock.setting set accounts_strict = true")
    await create(conn, "known")
    before = await factory.contents(conn)
    with refused(404, "unknown_account", "account") as error:
        await factory.submit_rows(
            conn, [{"kind": "q", "account": "known"}, {"kind": "q", "account": "unknown"}]
        )
    assert error["account"] == "unknown"
    assert "create it first" in error["hint"]
    assert await factory.contents(conn) == before
    await factory.submit(conn, account="known")
    await factory.submit(conn)  # without an account


async def test_an_account_is_created_once_and_only_with_a_known_plan(
    conn: asyncpg.Connection,
) -> None:
    await factory.plan(conn, "pro")
    await create(conn, "u1", "pro")
    with refused(409, "account_exists", "account"):
        await create(conn, "u1")
    with refused(404, "unknown_plan", "plan"):
        await create(conn, "u2", "gold")
    for name in ("", "a" * 201, None):
        with refused(422, "invalid_account", "account"):
            await conn.fetchval("select penstock.create_account($1)", name)
    with refused(404, "unknown_account", "account"):
        await set_plan(conn, "u2", "pro")
    with refused(404, "unknown_plan", "plan"):
        await set_plan(conn, "u1", "gold")
    with refused(404, "unknown_plan", "plan"):
        await edit_plan(conn, "gold", concurrency=1)


async def test_a_new_plan_priority_counts_for_waiting_and_later_jobs(
    conn: asyncpg.Connection,
) -> None:
    """G8, G5: plans are configuration."""
    await factory.queue(conn)
    await factory.plan(conn, priority=50)
    old = await factory.submit(conn, account="u1")
    await edit_plan(conn, "free", priority=20)
    new = await factory.submit(conn, account="u1")
    assert (await factory.read(conn, old))["priority"] == 20
    assert (await factory.read(conn, new))["priority"] == 20


@pytest.mark.parametrize("by", ["edit", "declare", "plan of the account"])
async def test_a_higher_limit_lets_waiting_jobs_start_at_once(
    conn: asyncpg.Connection, by: str
) -> None:
    """G8: no migration, no restart."""
    await factory.queue(conn)
    await factory.plan(conn, "pro", concurrency=3)
    await factory.plan(conn, "free", concurrency=1)
    worker = await factory.worker(conn)
    await submit_for(conn, "u1", 5)
    assert len(await factory.claim(conn, worker, limit=10)) == 1
    if by == "edit":
        await edit_plan(conn, "free", concurrency=3)
    elif by == "declare":
        await factory.plan(conn, "free", concurrency=3)
    else:
        await set_plan(conn, "u1", "pro")
    assert len(await factory.claim(conn, worker, limit=10)) == 2


async def test_a_lower_limit_lets_running_jobs_go_on_and_starts_no_more(
    conn: asyncpg.Connection,
) -> None:
    """G8"""
    await factory.queue(conn)
    await factory.plan(conn, concurrency=3)
    worker = await factory.worker(conn)
    await submit_for(conn, "u1", 6)
    running = await factory.claim(conn, worker, limit=10)
    await edit_plan(conn, "free", concurrency=1)
    for attempt in running:
        assert await factory.claim(conn, worker, limit=10) == []
        await factory.finish(conn, worker, [attempt])
    assert len(await factory.claim(conn, worker, limit=10)) == 1
    await edit_plan(conn, "free", concurrency=None)  # back to the declared value
    assert len(await factory.claim(conn, worker, limit=10)) == 2


async def test_an_account_that_gets_its_first_limit_counts_its_jobs(
    conn: asyncpg.Connection,
) -> None:
    """G8: jobs that wait in no lane move into one, and running jobs take slots."""
    await factory.queue(conn, "q", delay_seconds=0)
    await factory.queue(conn, "r")
    await factory.plan(conn)
    worker = await factory.worker(conn)
    await submit_for(conn, "u1", 3)
    await factory.submit(conn, "r", account="u1")
    delayed = await factory.submit(conn, account="u1", delay_seconds=60)
    running = await factory.claim(conn, worker, limit=2)
    await edit_plan(conn, "free", concurrency=2)
    assert await factory.claim(conn, worker, limit=10) == []
    assert await factory.claim(conn, worker, "r", limit=10) == []
    await factory.finish(conn, worker, running[:1], "retry")
    assert len(await factory.claim(conn, worker, "r", limit=10)) == 1
    await conn.execute("select penstock.retry_job($1)", delayed)
    assert await factory.claim(conn, worker, limit=10) == []
    await factory.finish(conn, worker, running[1:])
    assert len(await factory.claim(conn, worker, limit=10)) == 1


async def test_an_account_that_loses_its_limit_starts_all_it_has(conn: asyncpg.Connection) -> None:
    """G8"""
    await factory.queue(conn)
    await factory.plan(conn, "open")
    await factory.plan(conn, "free", concurrency=1)
    worker = await factory.worker(conn)
    await submit_for(conn, "u1", 4)
    running = await factory.claim(conn, worker, limit=10)
    assert len(running) == 1
    await set_plan(conn, "u1", "open")
    await submit_for(conn, "u1", 2)
    assert len(await factory.claim(conn, worker, limit=10)) == 5
    await factory.finish(conn, worker, running)
    await set_plan(conn, "u1", "free")
    await submit_for(conn, "u1", 1)
    assert await factory.claim(conn, worker, limit=10) == []


async def test_a_new_weight_counts_at_once(conn: asyncpg.Connection) -> None:
    await factory.queue(conn, order="fair")
    for name in ("a", "b"):
        await factory.plan(conn, name)
        await create(conn, name, name)
        await factory.submit_rows(
            conn, [{"kind": "q", "account": name, "payload": {"n": name}}] * 50
        )
    worker = await factory.worker(conn)
    await edit_plan(conn, "a", weight=4)
    order = await factory.drain(conn, worker, most=25)
    assert order.count("a") == 20
