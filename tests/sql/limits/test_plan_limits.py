"""What plans grant and limit: submits per hour, a first job in front, priority, concurrency."""

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import refused
from support.shapes import Connect


async def test_submits_an_hour_are_counted_in_a_window_that_slides(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """G7: the refusal says when the next submit will be accepted, and then it is."""
    await factory.queue(conn)
    await factory.plan(conn, per_hour=3)
    for _ in range(3):
        await factory.submit(conn, account="u1")
        await clock.advance("10m")
    with refused(429, "rate_limited", "account") as error:
        await factory.submit(conn, account="u1")
    assert error["retry_after"] == pytest.approx(1_800, abs=5)
    await clock.advance("29m")
    with refused(429, "rate_limited", "account") as error:
        await factory.submit(conn, account="u1")
    now = await conn.fetchval("select penstock.clock()")
    assert 0 < error["retry_after"] <= 60
    assert datetime.fromisoformat(error["next_at"]) - now < timedelta(minutes=1)
    await clock.advance(error["retry_after"])
    await factory.submit(conn, account="u1")
    with refused(429, "rate_limited", "account"):
        await factory.submit(conn, account="u1")


async def test_submits_that_were_not_accepted_do_not_count(conn: asyncpg.Connection) -> None:
    """G7"""
    await factory.queue(conn)
    await factory.plan(conn, per_hour=2)
    for _ in range(5):
        await factory.submit(conn, account="u1", dedupe_key="k")
    with refused(422, "invalid_job", "priority"):
        await factory.submit(conn, account="u1", priority=5_000)
    undone = conn.transaction()
    await undone.start()
    await factory.submit(conn, account="u1")
    await undone.rollback()
    await factory.submit(conn, account="u1")
    with refused(429, "rate_limited", "account"):
        await factory.submit(conn, account="u1")


SPLIT = {"split_field": "n", "split_most": 4}


async def splitting(conn: asyncpg.Connection, *, per_hour: int) -> None:
    await factory.queue(conn)
    await factory.plan(conn, per_hour=per_hour)
    await conn.execute("select penstock.declare_kind('q', 'q', $1)", SPLIT)


async def ask(conn: asyncpg.Connection, number: int) -> Any:
    """One request for so many, as an account key submits it."""
    return await conn.fetchval(
        "select penstock.submit_job('q', jsonb_build_object('n', $1::integer), account => 'u1')",
        number,
    )


async def used(conn: asyncpg.Connection) -> int:
    account = await conn.fetchval("select penstock.read_account('u1')")
    return int(account["submitted_last_hour"])


async def test_each_piece_of_a_split_request_counts_in_the_hour(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """G7, G11: all or nothing, and the refusal says when the whole request will be accepted."""
    await splitting(conn, per_hour=5)
    await ask(conn, 8)
    assert await used(conn) == 2
    await clock.advance("10m")
    await ask(conn, 5)
    assert await used(conn) == 4
    with refused(429, "rate_limited", "account") as error:
        await ask(conn, 8)
    assert error["retry_after"] == pytest.approx(3_000, abs=5)
    assert await conn.fetchval("select count(*) from penstock.job") == 4
    await ask(conn, 1)
    assert await used(conn) == 5
    await clock.advance("50m")
    await ask(conn, 8)
    assert await used(conn) == 5


async def test_the_refusal_of_more_pieces_than_an_hour_allows_says_so(
    conn: asyncpg.Connection,
) -> None:
    """G7, G11: it would never be accepted, so no time is named."""
    await splitting(conn, per_hour=5)
    with refused(429, "rate_limited", "account") as error:
        await ask(conn, 21)
    assert "allows 5 jobs an hour, and this submit has 6" in error["message"]
    assert "next_at" not in error
    assert "retry_after" not in error
    assert await conn.fetchval("select count(*) from penstock.job") == 0
    await ask(conn, 20)


async def test_racing_split_requests_never_submit_more_pieces_than_the_hour_allows(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G7, G11, R-S21"""
    await splitting(conn, per_hour=5)

    async def one(own: asyncpg.Connection) -> bool:
        try:
            await ask(own, 8)
        except asyncpg.PostgresError as error:
            if error.sqlstate != "PS429":
                raise
            return False
        return True

    passed = await asyncio.gather(*[one(await connect()) for _ in range(12)])
    assert sum(passed) == 2
    assert await conn.fetchval("select count(*) from penstock.job") == 4
    assert await used(conn) == 4


async def test_a_retry_of_a_piece_counts_as_one(conn: asyncpg.Connection) -> None:
    """G7, G11"""
    await splitting(conn, per_hour=3)
    job = UUID((await ask(conn, 8))["id"])
    await conn.execute("select penstock.cancel_job($1)", job)
    await conn.execute("select penstock.retry_job($1)", job)
    assert await used(conn) == 3


async def test_the_refusal_of_more_jobs_than_an_hour_allows_says_so(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, per_hour=3)
    with refused(429, "rate_limited", "account") as error:
        await factory.submit_rows(conn, [{"kind": "q", "account": "u1"}] * 4)
    assert "allows 3 jobs an hour, and this submit has 4" in error["message"]
    assert "next_at" not in error


async def test_racing_submits_never_make_more_jobs_than_the_hour_allows(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G7, R-S21"""
    await factory.queue(conn)
    await factory.plan(conn, per_hour=5)

    async def one(own: asyncpg.Connection) -> bool:
        try:
            await factory.submit(own, account="u1")
        except asyncpg.PostgresError as error:
            if error.sqlstate != "PS429":
                raise
            return False
        return True

    passed = await asyncio.gather(*[one(await connect()) for _ in range(16)])
    assert sum(passed) == 5


async def test_an_old_snapshot_does_not_count_too_little(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G7"""
    await factory.queue(conn)
    await factory.plan(conn, per_hour=2)
    await factory.submit(conn, account="u1")
    late = await connect()
    old = late.transaction(isolation="repeatable_read")
    await old.start()
    assert await late.fetchval("select count(*) from penstock.job") == 1
    await factory.submit(conn, account="u1")
    with pytest.raises(asyncpg.SerializationError):
        await factory.submit(late, account="u1")
    await old.rollback()


async def test_another_plan_counts_earlier_submits(conn: asyncpg.Connection) -> None:
    """G8"""
    await factory.queue(conn)
    await factory.plan(conn, "free", per_hour=2)
    await factory.plan(conn, "pro", default=False, per_hour=4)
    await factory.submit_rows(conn, [{"kind": "q", "account": "u1"}] * 2)
    await conn.execute("select penstock.set_account_plan('u1', 'pro')")
    await factory.submit_rows(conn, [{"kind": "q", "account": "u1"}] * 2)
    with refused(429, "rate_limited", "account"):
        await factory.submit(conn, account="u1")
    await conn.execute("select penstock.edit_plan('pro', '{\"per_hour\": 5}')")
    await factory.submit(conn, account="u1")
    account = await conn.fetchval("select penstock.read_account('u1')")
    assert (account["submitted_last_hour"], account["per_hour"]) == (5, 5)
    assert account["next_submit_at"] is not None
    await conn.execute("select penstock.reset_plan('pro')")
    [pro] = [
        row["plan"]
        for row in await conn.fetch("select penstock.list_plans() as plan")
        if row["plan"]["name"] == "pro"
    ]
    assert (pro["per_hour"], pro["overrides"], pro["accounts"]) == (4, {}, 1)


async def test_only_the_first_job_ever_starts_before_others(conn: asyncpg.Connection) -> None:
    """G5, R-S10"""
    await factory.queue(conn)
    await factory.plan(conn, priority=50, first_job=-20)
    jobs = await factory.submit_rows(conn, [{"kind": "q", "account": "u1"}] * 3)
    jobs.append(await factory.submit(conn, account="u1"))
    read = [await factory.read(conn, job) for job in jobs]
    assert [(job["priority"], job["first_job"]) for job in read] == [
        (30, True),
        (50, False),
        (50, False),
        (50, False),
    ]
    other = await factory.read(conn, await factory.submit(conn, account="u2"))
    assert other["priority"] == 30


async def test_of_racing_first_jobs_one_is_first(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G5, R-S10"""
    await factory.queue(conn)
    await factory.plan(conn, priority=50, first_job=-20)
    await conn.execute("select penstock.create_account('u1')")
    sessions = [await connect() for _ in range(12)]
    await asyncio.gather(*(factory.submit(own, account="u1") for own in sessions))
    firsts = await conn.fetchval("select count(*) from penstock.job where first_job")
    assert firsts == 1


async def test_a_retry_of_the_first_job_is_not_first_again(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await factory.plan(conn, priority=50, first_job=-20)
    job = await factory.submit(conn, account="u1")
    worker = await factory.worker(conn)
    [row] = await factory.claim(conn, worker)
    await factory.finish(conn, worker, [row], "failed")
    again = await conn.fetchval("select penstock.retry_job($1)", job)
    assert (again["priority"], again["first_job"]) == (50, False)


@pytest.mark.parametrize("order", ["strict", "aging"])
@pytest.mark.parametrize("concurrency", [None, 1])
async def test_a_change_of_plan_moves_waiting_jobs(
    conn: asyncpg.Connection, order: str, concurrency: int | None
) -> None:
    """G5, G8: queued and scheduled jobs, except those whose caller gave a priority."""
    await factory.queue(conn, order=order)
    limit: dict[str, Any] = {} if concurrency is None else {"concurrency": concurrency}
    await factory.plan(conn, "free", priority=50, **limit)
    await factory.plan(conn, "pro", default=False, priority=10, **limit)
    given = await factory.submit(conn, account="u1", priority=55)
    mine = await factory.submit(conn, account="u1")
    later = await factory.submit(conn, account="u1", delay_seconds=60)
    other = await factory.submit(conn, account="u2", priority=40)
    await conn.execute("select penstock.set_account_plan('u1', 'pro')")
    priorities = {job: (await factory.read(conn, job))["priority"] for job in (given, mine, later)}
    assert priorities == {given: 55, mine: 10, later: 10}
    worker = await factory.worker(conn)
    [row] = await factory.claim(conn, worker)
    assert row["id"] == mine
    await conn.execute("select penstock.edit_plan('pro', '{\"priority\": 60}')")
    assert (await factory.read(conn, later))["priority"] == 60
    [row] = await factory.claim(conn, worker)
    assert row["id"] == other


async def test_the_plans_of_the_requirements_give_their_priorities(
    conn: asyncpg.Connection,
) -> None:
    """G5, G6"""
    await factory.queue(conn)
    await conn.execute("select penstock.declare_kind('video', 'q', '{\"priority_offset\": 10}')")
    plans = {"pro": (10, 4), "growth": (20, 3), "starter": (30, 2), "free": (50, 1)}
    for name, (priority, concurrency) in plans.items():
        await factory.plan(
            conn, name, default=False, priority=priority, concurrency=concurrency, first_job=-20
        )
        await conn.execute("select penstock.create_account($1, $1)", name)
        jobs = [
            await factory.submit(conn, kind, account=name)
            for kind in ("q", "q", "video", *["q"] * 3)
        ]
        priorities = [(await factory.read(conn, job))["priority"] for job in jobs[:3]]
        assert priorities == [priority - 20, priority, priority + 10]
    rows = await factory.claim(conn, await factory.worker(conn), limit=100)
    running = [row["account"] for row in rows]
    assert {name: running.count(name) for name in plans} == {
        name: concurrency for name, (_, concurrency) in plans.items()
    }
