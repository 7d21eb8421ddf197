"""Races around lanes: in every order of concurrent calls, head, waiting and open stay right (L6).

Each test runs twice: on our SQL, and on a naive variant of one function, on which the error occurs
that the function prevents.
"""

import asyncpg

from support import factory
from support.clock import Clock
from support.interleave import Step
from support.naive_functions import both, breaches, spoil
from support.shapes import Connect

CLOSED_BESIDE_A_SLOT = "L6 a lane with a free slot is open"


async def one_at_a_time(conn: asyncpg.Connection) -> int:
    """A queue without a limit, accounts that may run one job each, and a worker."""
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    return await factory.worker(conn, lease="1 day")


@both
async def test_a_submit_during_a_finish_leaves_its_lane_open(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G6: no lost wake-up."""
    if naive:  # sets "open" without the account's lock, from a count that is about to fall
        await spoil(
            conn,
            "submit.sql:_submit_jobs",
            ("order by a.id for no key update", "order by a.id"),
        )
    worker = await one_at_a_time(conn)
    await factory.submit(conn, account="a")
    started = await factory.claim(conn, worker)
    finisher, submitter = await connect(), await connect()
    async with finisher.transaction():
        await factory.finish(finisher, worker, started)
        submit = Step(submitter, factory.submit(submitter, account="a"))
        assert await submit.waits(conn) is not naive
    job = await submit
    assert await breaches(conn) == ({CLOSED_BESIDE_A_SLOT} if naive else set())
    claimed = [row["id"] for row in await factory.claim(conn, worker)]
    assert claimed == ([] if naive else [job])


@both
async def test_an_account_filled_from_another_queue_does_not_stay_in_front_for_ever(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G6: one limit over all queues; the lane that is still open is closed at the next claim."""
    if naive:  # updates only the lanes that it takes a job from
        await spoil(
            conn, "choose.sql:_choose", ("or t.running + t.total >= t.concurrency) --", ") --")
        )
    worker = await one_at_a_time(conn)
    await factory.queue(conn, "other")
    await factory.submit(conn, "other", account="a")
    await factory.submit(conn, account="a")
    behind = [await factory.submit(conn, account=name) for name in ("b", "c")]
    other = await connect()
    async with other.transaction():
        assert len(await factory.claim(other, worker, "other")) == 1
        # While that one is not committed, its account is skipped and not waited for.
        assert [row["id"] for row in await factory.claim(conn, worker)] == behind[:1]
    claimed = [row["id"] for row in await factory.claim(conn, worker)]
    assert claimed == ([] if naive else behind[1:])
    lane = "select open from penstock.lane join penstock.queue on id = queue_id where name = 'q'"
    assert await conn.fetchval(f"{lane} order by head limit 1") is naive


@both
async def test_cancelling_a_lanes_first_job_makes_the_second_one_the_head(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G13"""
    if naive:  # subtracts the job, and leaves the head as it was
        await spoil(conn, "lanes.sql:_leave_lanes", ("q.ordering = 'fair'", "true"))
    worker = await one_at_a_time(conn)
    first, early, middle, last = [
        await factory.submit(conn, account=name) for name in ("a", "b", "c", "a")
    ]
    app = await connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", first)
        # The app's open transaction locks the account: the claim skips it.
        assert [row["id"] for row in await factory.claim(conn, worker)] == [early]
    assert bool(await breaches(conn)) is naive
    order = [row["id"] for _ in range(2) for row in await factory.claim(conn, worker)]
    assert order == ([last, middle] if naive else [middle, last])


@both
async def test_a_released_job_is_first_in_its_lane_again(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """F12: a retry keeps its rank, and the jobs behind it stay in the lane."""
    if naive:  # the job is queued again, but its lane is not updated
        await spoil(conn, "finish.sql:_requeue_jobs", ("if v_lanes is not null", "if false"))
    worker = await one_at_a_time(conn)
    first, second = [await factory.submit(conn, account="a") for _ in range(2)]
    started = await factory.claim(conn, worker)
    finisher = await connect()
    async with finisher.transaction():
        await factory.finish(finisher, worker, started, "retry", delay="0")
        assert await factory.claim(conn, worker) == []
    assert bool(await breaches(conn)) is naive
    order = []
    while started := await factory.claim(conn, worker):
        order.append((started[0]["id"], started[0]["attempt"]))
        await factory.finish(conn, worker, started)
    assert order == ([(first, 2)] if naive else [(first, 2), (second, 1)])


@both
async def test_a_snooze_lets_the_next_job_of_its_lane_start(
    conn: asyncpg.Connection, connect: Connect, clock: Clock, naive: bool
) -> None:
    if naive:  # frees the slot, and opens no lane
        await spoil(
            conn, "slots.sql:_free_slots", ("lane l set open = true", "lane l set open = l.open")
        )
    worker = await one_at_a_time(conn)
    first, second = [await factory.submit(conn, account="a") for _ in range(2)]
    started = await factory.claim(conn, worker)
    assert await factory.claim(conn, worker) == []
    finisher = await connect()
    async with finisher.transaction():
        await factory.finish(finisher, worker, started, "snoozed", delay="1 hour")
        assert await factory.claim(conn, worker) == []
    assert await breaches(conn) == ({CLOSED_BESIDE_A_SLOT} if naive else set())
    started = await factory.claim(conn, worker)
    assert [row["id"] for row in started] == ([] if naive else [second])
    if not naive:
        await clock.advance("2h")
        async with finisher.transaction():
            await factory.finish(finisher, worker, started)
            assert await factory.claim(conn, worker) == []  # due, but its account is locked
        assert [row["id"] for row in await factory.claim(conn, worker)] == [first]


@both
async def test_a_delayed_job_that_falls_due_during_a_finish_finds_its_lane_open(
    conn: asyncpg.Connection, connect: Connect, clock: Clock, naive: bool
) -> None:
    if naive:  # stages jobs of accounts that someone else has locked
        await spoil(
            conn,
            "lifecycle.sql:stage_due_jobs",
            ("(j.lane = -1 or penstock._try_lock_account(j.lane))", "true"),
        )
    worker = await one_at_a_time(conn)
    await factory.submit(conn, account="a")
    delayed = await factory.submit(conn, account="a", delay_seconds=60)
    started = await factory.claim(conn, worker)
    await clock.advance("2m", beats=True)
    finisher = await connect()
    async with finisher.transaction():
        await factory.finish(finisher, worker, started)
        assert await factory.claim(conn, worker) == []
    assert await breaches(conn) == ({CLOSED_BESIDE_A_SLOT} if naive else set())
    claimed = [row["id"] for row in await factory.claim(conn, worker)]
    assert claimed == ([] if naive else [delayed])


@both
async def test_a_pause_waits_for_an_open_claim_and_nothing_starts_after_it(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    if naive:  # a claim that has read the queue before the pause starts its jobs afterwards
        await spoil(
            conn,
            "declare.sql:pause_queue",
            ("perform penstock._lock_queue_limits(v_queue.id);", ""),
        )
    worker = await one_at_a_time(conn)
    first, second = [await factory.submit(conn, account=name) for name in ("a", "a")]
    claimer, operator = await connect(), await connect()
    async with claimer.transaction():
        started = await factory.claim(claimer, worker)
        pause = Step(operator, operator.execute("select penstock.pause_queue('q')"))
        assert await pause.waits(conn) is not naive
    await pause
    assert [row["id"] for row in started] == [first]
    assert await factory.claim(conn, worker) == []
    await factory.finish(conn, worker, started)
    assert await factory.claim(conn, worker) == []
    await operator.execute("select penstock.resume_queue('q')")
    assert [row["id"] for row in await factory.claim(conn, worker)] == [second]
