"""Races for credits: the first transaction gets them, a finish counts once, every sum is certain.

Some run twice, as in test_races.py: on our SQL, and on a naive variant, with which the harm
happens.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.factory import Row
from support.interleave import Step
from support.naive_functions import both, breaches, spoil
from support.shapes import Connect

PRICE = 10


async def shop(conn: asyncpg.Connection, credits_: int, *, concurrency: int | None = None) -> int:
    """A queue whose kind costs PRICE, an account `a` with so many credits, and a worker."""
    await conn.execute("select penstock.declare_queue('q', '{\"delay_seconds\": 0}')")
    await conn.execute("select penstock.declare_kind('q', 'q', $1)", {"price": PRICE})
    await factory.plan(conn, concurrency=concurrency)
    await conn.execute("select penstock.create_account('a', 'free')")
    if credits_:
        await conn.execute("select penstock.grant_credits('a', $1)", credits_)
    return await factory.worker(conn, lease="1 day")


async def balance(conn: asyncpg.Connection) -> int:
    credits_left: int = await conn.fetchval("select balance from penstock.account where name = 'a'")
    return credits_left


async def credits_of(conn: asyncpg.Connection, job: UUID) -> tuple[str, int, int]:
    """Its status, and how much of its price was charged and refunded."""
    job_json = await factory.read(conn, job)
    return job_json["status"], job_json["credits"]["charged"], job_json["credits"]["refunded"]


async def moves(conn: asyncpg.Connection, job: UUID) -> list[tuple[str, int]]:
    rows = await conn.fetch(
        "select kind, amount from penstock.ledger where job_id = $1 order by id", job
    )
    return [(row["kind"], row["amount"]) for row in rows]


async def verdict(rows: list[Row]) -> str:
    [row] = rows
    answer: str = row["verdict"]
    return answer


async def start(conn: asyncpg.Connection, worker: int) -> Row:
    [row] = await factory.claim(conn, worker)
    return row


async def give_up(conn: asyncpg.Connection, worker: int) -> None:
    """Let upkeep take the worker for lost and settle its attempts."""
    await conn.execute(
        "update penstock.worker set beat_at = beat_at - interval '2 days' where id = $1", worker
    )
    await factory.recover(conn)


# Zombies


@pytest.mark.parametrize("late", ["succeeded", "failed", "cancelled", "retry"])
async def test_a_late_result_after_a_refund_neither_charges_nor_delivers(
    conn: asyncpg.Connection, connect: Connect, late: str
) -> None:
    """G3, M4: the zombie comes back on a connection of its own."""
    worker = await shop(conn, PRICE)
    await conn.execute("select penstock.edit_queue('q', '{\"recovery\": 0}')")
    job = await factory.submit(conn, account="a")
    zombie = await connect()
    started = await start(zombie, worker)
    await give_up(conn, worker)
    assert await credits_of(conn, job) == ("failed", 0, PRICE)
    rows = await factory.finish(zombie, worker, [started], late, result={"image": 1})
    assert await verdict(rows) == "stale"
    assert await credits_of(conn, job) == ("failed", 0, PRICE)
    assert (await factory.read(conn, job)).get("result") is None
    assert await moves(conn, job) == [("reserve", -PRICE), ("refund", PRICE)]
    assert await balance(conn) == PRICE


@pytest.mark.parametrize("late", ["succeeded", "failed", "cancelled", "retry", "timed_out"])
async def test_a_late_result_after_success_does_not_refund(
    conn: asyncpg.Connection, connect: Connect, late: str
) -> None:
    """G3: the second attempt has delivered; the result of the first does not count."""
    worker = await shop(conn, PRICE)
    job = await factory.submit(conn, account="a")
    zombie = await connect()
    old = await start(zombie, worker)
    await give_up(conn, worker)
    other = await factory.worker(conn)
    new = await start(conn, other)
    assert (new["id"], new["attempt"]) == (job, 2)
    for _ in range(2):  # before and after the other attempt has delivered
        assert await verdict(await factory.finish(zombie, worker, [old], late)) == "stale"
        await factory.finish(conn, other, [new], result={"image": 2})
    assert await credits_of(conn, job) == ("succeeded", PRICE, 0)
    assert (await factory.read(conn, job))["result"] == {"image": 2}
    assert await moves(conn, job) == [("reserve", -PRICE)]
    assert await balance(conn) == 0


@both
async def test_a_zombie_of_the_same_worker_is_fenced_by_its_attempt(
    conn: asyncpg.Connection, naive: bool
) -> None:
    """G3: without the fence, the failure of an earlier attempt refunds the running one."""
    if naive:
        await spoil(
            conn,
            "finished.sql:_move_to_finished",
            ("      and j.attempt = t.attempt -- guard: fence\n", ""),
        )
        await spoil(
            conn,
            "finish.sql:_settle_jobs",
            ("    and d.attempt = u.attempt -- guard: done, fence", ""),
        )
    worker = await shop(conn, PRICE)
    job = await factory.submit(conn, account="a")
    old = await start(conn, worker)
    await factory.finish(conn, worker, [old], "retry")
    new = await start(conn, worker)
    answer = await verdict(await factory.finish(conn, worker, [old], "failed"))
    assert answer == ("done" if naive else "stale")
    answer = await verdict(await factory.finish(conn, worker, [new]))
    assert answer == ("stale" if naive else "done")
    assert (await credits_of(conn, job))[0] == ("failed" if naive else "succeeded")
    assert await balance(conn) == (PRICE if naive else 0)


# Two finishes of one job


@pytest.mark.parametrize("first", ["succeeded", "failed"])
@pytest.mark.parametrize("second", ["succeeded", "failed", "cancelled"])
async def test_of_two_concurrent_finishes_one_counts(
    conn: asyncpg.Connection, connect: Connect, first: str, second: str
) -> None:
    """G3: the other one does not wait, and is stale when it is repeated."""
    worker = await shop(conn, PRICE)
    job = await factory.submit(conn, account="a")
    started = await start(conn, worker)
    one, other = await connect(), await connect()
    async with one.transaction():
        assert await verdict(await factory.finish(one, worker, [started], first)) == "done"
        finish = Step(other, factory.finish(other, worker, [started], second))
        assert not await finish.waits(conn)
        assert await verdict(await finish) == "locked"
    assert await verdict(await factory.finish(other, worker, [started], second)) == "stale"
    charged = PRICE if first == "succeeded" else 0
    assert await credits_of(conn, job) == (first, charged, PRICE - charged)
    assert await balance(conn) == PRICE - charged


async def test_of_many_concurrent_finishes_one_counts(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G3: sixteen connections report twenty attempts, each with another outcome."""
    worker = await shop(conn, 20 * PRICE)
    jobs = [await factory.submit(conn, account="a") for _ in range(20)]
    started = await factory.claim(conn, worker, limit=20)
    outcomes = ["succeeded", "failed", "cancelled", "timed_out"]

    async def report(n: int) -> list[UUID]:
        mine = await connect()
        done, left = [], list(started)
        while left:
            told = await factory.finish(mine, worker, left, outcomes[n % 4])
            done += [row["job_id"] for row in told if row["verdict"] == "done"]
            busy = {row["job_id"] for row in told if row["verdict"] == "locked"}
            left = [row for row in left if row["id"] in busy]
        return done

    done = await asyncio.gather(*(report(n) for n in range(16)))
    ends = Counter(job for each in done for job in each)
    # A job that has timed out once may go on, and finishes when it is reported for the second time.
    assert all(n == 1 for n in ends.values()), ends
    await give_up(conn, worker)
    other = await factory.worker(conn)
    while left := await factory.claim(conn, other, limit=20):
        await factory.finish(conn, other, left, "failed")
    rows = await conn.fetch("select job_id, reserved, charged, refunded from penstock.resolution")
    assert {row["job_id"] for row in rows} == set(jobs)
    assert len(rows) == 20
    assert await balance(conn) == sum(row["refunded"] for row in rows)


# Cancel


async def cancel(conn: asyncpg.Connection, job: UUID) -> str:
    answer = await conn.fetchval("select penstock.cancel_job($1)", job)
    status: str = answer["status"]
    return status


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
async def test_a_cancel_that_meets_a_finish_waits_and_changes_nothing(
    conn: asyncpg.Connection, connect: Connect, outcome: str
) -> None:
    """G3, G13"""
    worker = await shop(conn, PRICE)
    job = await factory.submit(conn, account="a")
    started = await start(conn, worker)
    finisher, canceller = await connect(), await connect()
    async with finisher.transaction():
        await factory.finish(finisher, worker, [started], outcome)
        asked = Step(canceller, cancel(canceller, job))
        assert await asked.waits(conn)
    assert await asked == outcome
    charged = PRICE if outcome == "succeeded" else 0
    assert await credits_of(conn, job) == (outcome, charged, PRICE - charged)
    assert await balance(conn) == PRICE - charged


@pytest.mark.parametrize(
    ("outcome", "units", "charged"),
    [("succeeded", None, PRICE), ("retry", 3, 3), ("retry", None, 0), ("failed", 3, 0)],
)
async def test_a_finish_that_meets_a_cancel_is_repeated_and_settles_once(
    conn: asyncpg.Connection,
    connect: Connect,
    outcome: str,
    units: int | None,
    charged: int,
) -> None:
    """G3, G4, G13: a success is charged in full; a cancelled job for what it delivered."""
    worker = await shop(conn, PRICE)
    job = await factory.submit(conn, account="a")
    started = await start(conn, worker)
    canceller = await connect()

    async def finish() -> str:
        answer: str = await conn.fetchval(
            "select verdict from penstock.finish_jobs($1, $2, $3, $4, p_units => $5)",
            worker,
            [job],
            [started["attempt"]],
            [outcome],
            [units],
        )
        return answer

    async with canceller.transaction():
        assert await cancel(canceller, job) == "running"
        assert await finish() == "locked"
    assert await finish() == "done"
    assert await finish() == "stale"
    status = "cancelled" if outcome == "retry" else outcome
    assert await credits_of(conn, job) == (status, charged, PRICE - charged)
    assert await balance(conn) == PRICE - charged


@pytest.mark.parametrize("concurrency", [None, 1], ids=["free", "limited"])
async def test_a_claim_skips_a_job_that_is_being_cancelled(
    conn: asyncpg.Connection, connect: Connect, concurrency: int | None
) -> None:
    """G3, G13"""
    worker = await shop(conn, PRICE, concurrency=concurrency)
    job = await factory.submit(conn, account="a")
    canceller = await connect()
    async with canceller.transaction():
        assert await cancel(canceller, job) == "cancelled"
        claim = Step(conn, factory.claim(conn, worker))
        assert not await claim.waits(await connect())
        assert await claim == []
    assert await factory.claim(conn, worker) == []
    assert await credits_of(conn, job) == ("cancelled", 0, PRICE)
    assert await balance(conn) == PRICE


@pytest.mark.parametrize("concurrency", [None, 1], ids=["free", "limited"])
async def test_a_cancel_that_meets_a_claim_asks_the_running_job_to_stop(
    conn: asyncpg.Connection, connect: Connect, concurrency: int | None
) -> None:
    """G3, G13: nothing is refunded before it has finished."""
    worker = await shop(conn, PRICE, concurrency=concurrency)
    job = await factory.submit(conn, account="a")
    claimer, canceller = await connect(), await connect()
    async with claimer.transaction():
        started = await start(claimer, worker)
        asked = Step(canceller, cancel(canceller, job))
        assert await asked.waits(conn)
    assert await asked == "running"
    assert await balance(conn) == 0
    await factory.finish(conn, worker, [started], "cancelled")
    assert await credits_of(conn, job) == ("cancelled", 0, PRICE)
    assert await balance(conn) == PRICE


async def test_many_cancels_of_one_job_refund_once(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G3, G13"""
    await shop(conn, PRICE)
    job = await factory.submit(conn, account="a")
    callers = [await connect() for _ in range(16)]
    statuses = await asyncio.gather(*(cancel(caller, job) for caller in callers))
    assert set(statuses) == {"cancelled"}
    assert await moves(conn, job) == [("reserve", -PRICE), ("refund", PRICE)]
    assert await balance(conn) == PRICE


# Submits


async def passes(call: Awaitable[object]) -> bool:
    """Whether it was not refused for lack of credits."""
    try:
        await call
    except asyncpg.PostgresError as error:
        if error.sqlstate != "PS402":
            raise
        return False
    return True


async def try_submit(conn: asyncpg.Connection) -> bool:
    return await passes(factory.submit(conn, account="a"))


@both
async def test_with_credits_for_half_of_them_half_of_the_submits_pass(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G1, G2: sixteen connections at once."""
    if naive:  # reads the balance first, and takes the credits afterwards
        await spoil(
            conn, "credits.sql:_book", ("      and a.balance + t.total >= 0 -- guard: enough\n", "")
        )
        await _without_constraints(conn)
    await shop(conn, 8 * PRICE)
    callers = [await connect() for _ in range(16)]
    passed = await asyncio.gather(*(try_submit(caller) for caller in callers))
    assert sum(passed) == (16 if naive else 8)
    assert await balance(conn) == (-8 * PRICE if naive else 0)
    assert await conn.fetchval("select count(*) from penstock.job") == sum(passed)


async def _without_constraints(conn: asyncpg.Connection) -> None:
    """Drop the constraints that would stop the naive variant as a second line of defence."""
    await conn.execute("alter table penstock.ledger drop constraint balance_not_negative")
    await conn.execute("alter table penstock.account drop constraint balance_not_negative")


async def test_submits_that_wait_for_a_grant_pass_until_it_is_spent(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G1, G2: an empty account; the grant is committed while sixteen wait for it."""
    await shop(conn, 0)
    payer = await connect()
    callers = [await connect() for _ in range(16)]
    async with payer.transaction():
        await payer.execute("select penstock.grant_credits('a', $1)", 8 * PRICE)
        submits = [Step(caller, try_submit(caller)) for caller in callers]
        for submit in submits:
            assert await submit.waits(conn)
    assert sum([await submit for submit in submits]) == 8
    assert await balance(conn) == 0


async def test_submits_beside_grants_from_many_connections_pass_as_often_as_was_paid(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G1, G2: every grant pays for one job, and a repeated grant for no more."""
    await shop(conn, 0)

    async def pay(n: int) -> int:
        mine = await connect()
        for _ in range(2):
            await mine.execute("select penstock.grant_credits('a', $1, null, $2)", PRICE, f"p{n}")
        return 0

    async def spend() -> int:
        mine = await connect()
        return sum([await try_submit(mine) for _ in range(4)])

    passed = sum(await asyncio.gather(*(pay(n) for n in range(8)), *(spend() for _ in range(8))))
    while await try_submit(conn):
        passed += 1
    assert passed == 8
    assert await balance(conn) == 0


async def test_submits_that_meet_a_refund_pass_when_it_is_committed(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G2, G3: the refund of a failure can be spent, by one of them."""
    worker = await shop(conn, PRICE)
    await factory.submit(conn, account="a")
    started = await start(conn, worker)
    finisher = await connect()
    callers = [await connect() for _ in range(4)]
    async with finisher.transaction():
        await factory.finish(finisher, worker, [started], "failed")
        submits = [Step(caller, try_submit(caller)) for caller in callers]
        for submit in submits:
            assert await submit.waits(conn)
    assert sum([await submit for submit in submits]) == 1
    assert await balance(conn) == 0


# By reference


@pytest.mark.parametrize("kind", ["grant", "deduct", "refund"])
async def test_one_reference_from_many_connections_counts_once(
    conn: asyncpg.Connection, connect: Connect, kind: str
) -> None:
    """G19"""
    await shop(conn, PRICE)
    call: tuple[Any, ...] = (f"select penstock.{kind}_credits('a', $1, null, 'r')", 4)
    if kind == "refund":
        await conn.execute("select penstock.deduct_credits('a', 4, null, 'r')")
        call = ("select penstock.refund_credits('a', 'r')",)
    callers = [await connect() for _ in range(16)]
    answers = await asyncio.gather(*(caller.fetchval(*call) for caller in callers))
    assert sorted(answer["replayed"] for answer in answers) == [False] + [True] * 15
    assert await balance(conn) == {"grant": PRICE + 4, "deduct": PRICE - 4, "refund": PRICE}[kind]


async def test_deductions_beside_submits_never_take_more_than_there_is(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G1, G19"""
    await shop(conn, 8 * PRICE)

    async def deduct(n: int) -> bool:
        mine = await connect()
        take = "select penstock.deduct_credits('a', $1, null, $2)"
        return await passes(mine.execute(take, PRICE, f"ref {n}"))

    callers = [await connect() for _ in range(8)]
    passed = await asyncio.gather(
        *(deduct(n) for n in range(8)), *(try_submit(caller) for caller in callers)
    )
    assert sum(passed) == 8
    assert await balance(conn) == 0
    assert await breaches(conn) == set()
