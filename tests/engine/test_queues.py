"""Queues, kinds, plans and accounts through the engine; and an engine that cannot connect."""

import asyncpg
import pytest

from penstock.engine.engine import Engine
from penstock.engine.jobs.jobs import NewJob
from penstock.errors import Conflict, Invalid, NotFound, Unavailable


async def test_a_queue_is_declared_edited_paused_and_reset(
    engine: Engine, conn: asyncpg.Connection
) -> None:
    await engine.queues.declare("q", by="app", concurrency=2, rate="10/s")
    await engine.queues.declare_kind("k", "q", by="app", attempts=5)
    await engine.queues.edit("q", concurrency=9)
    await engine.queues.pause("q", reason="the bill")
    row = await conn.fetchrow("select * from penstock.queue")
    assert row
    assert (row["concurrency"], row["rate_count"], row["declared_by"]) == (9, 10, "app")
    assert (row["paused_at"] is not None, row["paused_reason"]) == (True, "the bill")
    await engine.queues.resume("q")
    with pytest.raises(Conflict, match="declared differently by app") as caught:
        await engine.queues.declare("q", by="other", concurrency=3)
    assert (caught.value.code, caught.value.status) == ("declared_differently", 409)
    await engine.queues.reset("q")
    row = await conn.fetchrow("select * from penstock.queue")
    assert row
    assert (row["concurrency"], row["paused_at"]) == (2, None)
    with pytest.raises(Invalid, match="must be a whole number") as wrong:
        await engine.queues.edit("q", concurrency="many")
    assert (wrong.value.code, wrong.value.field) == ("invalid_option", "concurrency")
    with pytest.raises(NotFound, match="there is no queue nope"):
        await engine.queues.pause("nope")


async def test_plans_and_accounts_are_made_and_changed(
    engine: Engine, conn: asyncpg.Connection
) -> None:
    """G8"""
    await engine.accounts.declare_plan("free", by="app", priority=50, concurrency=1)
    await engine.accounts.declare_plan("pro", priority=10, concurrency=4)
    number = await engine.accounts.create("u1", plan="pro")
    limit = "select concurrency from penstock.account where id = $1"
    assert await conn.fetchval(limit, number) == 4
    await engine.accounts.set_plan("u1", "free")
    assert await conn.fetchval(limit, number) == 1
    await engine.accounts.edit_plan("free", concurrency=3)
    assert await conn.fetchval(limit, number) == 3
    with pytest.raises(Conflict, match="exists already"):
        await engine.accounts.create("u1")
    with pytest.raises(NotFound, match="there is no plan gold"):
        await engine.accounts.set_plan("u1", "gold")


async def test_an_option_that_is_not_json_is_refused(engine: Engine) -> None:
    with pytest.raises(Invalid, match="options is not JSON") as caught:
        await engine.queues.declare("q", concurrency={1, 2})
    assert caught.value.field == "options"


async def test_an_unreachable_server_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await Engine.open("postgresql://nobody@127.0.0.1:1/none")


async def test_a_closed_engine_says_so(database: str) -> None:
    engine = await Engine.open(database)
    await engine.close()
    with pytest.raises(Unavailable):
        await engine.jobs.submit(NewJob(kind="k"))


async def test_a_limit_that_cannot_be_set_now_is_refused(
    engine: Engine, conn: asyncpg.Connection
) -> None:
    """An open transaction has asked to cancel a job that a first limit would have to count."""
    await engine.queues.declare("q")
    await engine.queues.declare_kind("q", "q")
    ticket = await engine.jobs.submit(NewJob(kind="q"))
    await engine.jobs.claim(await engine.workers.register("w"), "q", 1)
    async with conn.transaction():
        await engine.jobs.cancel(ticket.id, conn=conn)
        with pytest.raises(Conflict, match="try again after that transaction") as caught:
            await engine.queues.edit("q", concurrency=1)
    assert caught.value.code == "contended"
