"""An idempotency key: a repetition returns the first call's job, whatever its state is by then."""

import asyncio
from typing import Any
from uuid import UUID

import asyncpg

from support import factory
from support.clock import Clock
from support.factory import Row, refused
from support.shapes import Connect


async def submit(
    conn: asyncpg.Connection,
    key: str = "k1",
    *,
    payload: dict[str, Any] | None = None,
    scope: str = "",
    dedupe_key: str | None = None,
) -> Row:
    row = await conn.fetchrow(
        "select * from penstock.submit_one('q', $1, p_key => $2, p_scope => $3,"
        " p_dedupe_key => $4)",
        payload or {},
        key,
        scope,
        dedupe_key,
    )
    assert row
    return row


async def test_a_repetition_returns_the_first_job_in_its_present_state(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    first = await submit(conn)
    assert (first["status"], first["replayed"]) == ("queued", False)
    again = await submit(conn)
    assert (again["id"], again["status"], again["replayed"]) == (first["id"], "queued", True)
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    finished = await submit(conn)
    assert (finished["id"], finished["status"], finished["replayed"]) == (
        first["id"],
        "succeeded",
        True,
    )
    assert await conn.fetchval("select count(*) from penstock.job") == 0


async def test_a_key_used_with_other_arguments_is_refused(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await submit(conn, payload={"n": 1})
    before = await factory.contents(conn)
    with refused(422, "idempotency_key_reused", "idempotency_key"):
        await submit(conn, payload={"n": 2})
    assert await factory.contents(conn) == before


async def test_the_same_key_of_two_callers_makes_two_jobs(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    one = await submit(conn, scope="alice", payload={"n": 1})
    other = await submit(conn, scope="bob", payload={"n": 2})
    assert one["id"] != other["id"]
    assert other["replayed"] is False


async def test_a_repetition_remembers_that_the_first_was_deduplicated(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    live = await factory.submit(conn, dedupe_key="d")
    for replayed in (False, True):
        row = await submit(conn, dedupe_key="d")
        assert (row["id"], row["deduplicated"], row["replayed"]) == (live, True, replayed)


async def test_a_key_is_free_again_when_its_transaction_rolls_back(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    transaction = conn.transaction()
    await transaction.start()
    rolled_back = await submit(conn)
    await transaction.rollback()
    again = await submit(conn, payload={"n": 2})
    assert again["replayed"] is False
    assert again["id"] != rolled_back["id"]


async def test_plain_sql_takes_a_key_too(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    call = "select penstock.submit_job('q', '{}', idempotency_key => 'k1')"
    first, again = await conn.fetchval(call), await conn.fetchval(call)
    assert (again["id"], again["replayed"]) == (first["id"], True)


async def test_a_twin_waits_for_the_first_to_commit(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await factory.queue(conn)
    other, watcher = await connect(), await connect()
    async with conn.transaction():
        first = await submit(conn)
        twin = asyncio.create_task(submit(other))
        await factory.until_blocked(watcher, other)
    row = await twin
    assert (row["id"], row["replayed"]) == (first["id"], True)


async def test_a_twin_takes_over_when_the_first_rolls_back(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await factory.queue(conn)
    other, watcher = await connect(), await connect()
    transaction = conn.transaction()
    await transaction.start()
    first = await submit(conn)
    twin = asyncio.create_task(submit(other))
    await factory.until_blocked(watcher, other)
    await transaction.rollback()
    row = await twin
    assert row["replayed"] is False
    assert row["id"] != first["id"]


async def test_the_callers_own_lock_timeout_stays_what_it_was(conn: asyncpg.Connection) -> None:
    """The wait for a twin uses a lock_timeout of its own, which must not outlive the call."""
    await factory.queue(conn)
    async with conn.transaction():
        await conn.execute("set local lock_timeout = '7s'")
        for replayed in (False, True):
            assert (await submit(conn))["replayed"] is replayed
            assert await conn.fetchval("show lock_timeout") == "7s"


async def test_a_repetition_after_the_job_was_pruned_is_refused_and_runs_nothing_twice(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn, retention_seconds=3600)
    worker = await factory.worker(conn)
    job: UUID = (await submit(conn))["id"]
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    await clock.advance("3d")
    await factory.prune(conn)
    with refused(404, "unknown_job", "id"):
        await factory.read(conn, job)
    with refused(404, "unknown_job", "idempotency_key") as error:
        await submit(conn)
    assert "no longer kept" in error["message"]
