"""Which session may wait for which: an app's open transaction stops no other, nothing deadlocks.

As in test_races.py, each test also runs on a naive variant, where the harm happens.
"""

import asyncio
from typing import Any

import asyncpg
import pytest

from penstock.engine.engine import Engine
from support import factory
from support.clock import Clock
from support.interleave import Step
from support.naive_functions import both, spoil
from support.shapes import Connect
from support.waiting import eventually


async def outcomes_of(*steps: Step[Any]) -> list[Any]:
    """What each step returned or raised."""
    return await asyncio.gather(*steps, return_exceptions=True)


def deadlocked(outcomes: list[Any]) -> bool:
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(error, asyncpg.DeadlockDetectedError) for error in errors), errors
    return bool(errors)


@both
async def test_a_finish_does_not_wait_for_apps_that_have_submitted_and_not_committed(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    if naive:  # waits for each account in turn
        await spoil(
            conn, "slots.sql:_lock_slots", ("for no key update skip locked", "for no key update")
        )
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    for account in ("a", "b", "c", None):
        await factory.submit(conn, account=account)
    started = await factory.claim(conn, worker, limit=4)
    busy = [row for row in started if row["account"] in ("a", "b")]
    one, other, finisher = [await connect() for _ in range(3)]
    async with one.transaction(), other.transaction():
        await factory.submit(one, account="a")
        await factory.submit(other, account="b")
        finish = Step(finisher, factory.finish(finisher, worker, started))
        assert await finish.waits(conn) is naive
        if not naive:
            owners = {start["id"]: start["account"] for start in started}
            told = {owners[row["job_id"]]: row["verdict"] for row in await finish}
            assert told == {"a": "locked", "b": "locked", "c": "done", None: "done"}
            again = await factory.finish(finisher, worker, busy[:1])
            assert [row["verdict"] for row in again] == ["locked"]
    await finish
    if not naive:
        assert {row["verdict"] for row in await factory.finish(conn, worker, busy)} == {"done"}


@both
async def test_two_submits_in_one_transaction_do_not_deadlock_with_a_finish(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    if naive:
        await spoil(
            conn, "slots.sql:_lock_slots", ("for no key update skip locked", "for no key update")
        )
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    for account in ("a", "b"):
        await factory.submit(conn, account=account)
    started = await factory.claim(conn, worker, limit=2)
    app, finisher = await connect(), await connect()
    transaction = app.transaction()
    await transaction.start()
    await factory.submit(app, account="b")
    finish = Step(finisher, factory.finish(finisher, worker, started))
    assert await finish.waits(conn) is naive  # naive: it has "a", and wants "b"
    submit = Step(app, factory.submit(app, account="a"))
    assert deadlocked(await outcomes_of(submit, finish)) is naive
    await transaction.rollback()


@both
async def test_a_finish_does_not_wait_for_an_app_that_has_asked_to_cancel_one_of_its_jobs(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G13: the cancel holds the running job until the app commits."""
    if naive:
        await let_finishes_wait_for_jobs(conn)
    await factory.queue(conn)
    worker = await factory.worker(conn)
    held, other = await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    started = await factory.claim(conn, worker, limit=2)
    app, finisher = await connect(), await connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", held)
        finish = Step(finisher, factory.finish(finisher, worker, started, "retry"))
        assert await finish.waits(conn) is naive
        if not naive:
            told = {row["job_id"]: row["verdict"] for row in await finish}
            assert told == {held: "locked", other: "done"}
    await finish
    if not naive:
        rest = [row for row in started if row["id"] == held]
        [row] = await factory.finish(conn, worker, rest, "retry")
        assert (row["verdict"], row["status"]) == ("done", "cancelled")


@both
async def test_a_report_and_a_recovery_of_the_same_jobs_do_not_deadlock(
    conn: asyncpg.Connection, connect: Connect, clock: Clock, naive: bool
) -> None:
    """S12: a report finishes some jobs and releases others; a recovery takes all in order."""
    if naive:
        await let_finishes_wait_for_jobs(conn)
    await factory.queue(conn)
    worker = await factory.worker(conn)
    jobs = sorted(await factory.submit_rows(conn, [{"kind": "q"}] * 3))
    await factory.claim(conn, worker, limit=3)
    await clock.advance("125s", beats=True)
    app, reporter, upkeep = [await connect() for _ in range(3)]
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", jobs[2])
        report = Step(
            reporter,
            reporter.fetch(
                "select * from penstock.finish_jobs($1, $2, $3, $4)",
                worker,
                jobs,
                [1, 1, 1],
                ["retry", "succeeded", "succeeded"],
            ),
        )
        assert await report.waits(conn) is naive  # it has the second, waits for the third
        recovery = Step(upkeep, factory.recover(upkeep))
        assert await recovery.waits(conn) is naive  # it has the first, waits for the second
    assert deadlocked(await outcomes_of(report, recovery)) is naive


async def let_finishes_wait_for_jobs(conn: asyncpg.Connection) -> None:
    """A naive variant: a session that settles an attempt waits for whichever holds its job."""
    await spoil(
        conn,
        "finished.sql:_move_to_finished",
        ("j.xmax = '0' or j.xmax = j.xmin", "true"),
    )
    await spoil(conn, "finish.sql:_settle_jobs", ("order by j.id for update of j skip locked", ""))


@both
async def test_expiring_a_job_does_not_deadlock_with_a_claim_of_it(
    conn: asyncpg.Connection, connect: Connect, clock: Clock, naive: bool
) -> None:
    """One holds the job and waits for the queue's counter, the other holds the counter."""
    if naive:  # takes the job before it knows whether it can have its account
        await spoil(
            conn,
            "lifecycle.sql:expire_jobs",
            ("or penstock._try_lock_account(j.account_id))", "or true)"),
        )
    await factory.queue(conn, concurrency=5)
    await factory.plan(conn, concurrency=5)
    worker = await factory.worker(conn)
    await factory.submit(conn, account="a", expires_seconds=5)
    await clock.advance("10s", beats=True)
    app, one, other = [await connect() for _ in range(3)]
    async with one.transaction():
        await one.execute("select from penstock.gate for no key update")  # as its claim will
        async with app.transaction():
            await factory.submit(app, account="a")
            waiting = Step(other, factory.claim(other, worker))
            assert await waiting.waits(conn)
        claim = Step(one, factory.claim(one, worker, limit=2))
        if naive:
            assert deadlocked(await outcomes_of(claim, waiting))
        else:
            assert len(await claim) == 1
    if not naive:
        assert await waiting == []
        rows = await conn.fetch(
            "select status::text, error ->> 'reason' as why from penstock.finished"
        )
        assert [tuple(row) for row in rows] == [("failed", "expired")]


@both
async def test_a_claim_that_may_wait_gets_the_jobs_of_a_locked_account(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    if naive:
        await let_claims_never_wait(conn)
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    job = await factory.submit(conn, account="a")
    app, claimer = await connect(), await connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        assert await factory.claim(conn, worker) == []
        claim = Step(
            claimer, claimer.fetch("select id from penstock.claim_jobs($1, 'q', 1, true)", worker)
        )
        assert await claim.waits(conn) is not naive
    assert [row["id"] for row in await claim] == ([] if naive else [job])


async def let_claims_never_wait(conn: asyncpg.Connection) -> None:
    """A naive variant: the second try skips locked rows, as the first does."""
    await spoil(conn, "lanes.sql:_await_lane", ("for no key update", ""))


@pytest.mark.alone
@both
async def test_sixteen_submitters_on_one_account_do_not_starve_the_claim(
    conn: asyncpg.Connection, connect: Connect, database: str, naive: bool
) -> None:
    """E9: a claim that only skips locked rows came back empty 761 times of 814."""
    if naive:
        await let_claims_never_wait(conn)
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1_000_000)
    await factory.submit_rows(conn, [{"kind": "q", "account": "a"}] * 500)
    submitters = [await connect() for _ in range(16)]
    stop = asyncio.Event()

    async def submit(mine: asyncpg.Connection) -> None:
        while not stop.is_set():
            await factory.submit(mine, account="a")

    async with await Engine.open(database, max_connections=1) as engine:
        worker = await engine.workers.register("w")
        storm = asyncio.gather(*(submit(mine) for mine in submitters))
        claims = [await engine.jobs.claim(worker, "q", 5) for _ in range(60)]
        stop.set()
        await storm
    empty = sum(not claim for claim in claims)
    assert (empty > 30) is naive, f"{empty} of 60 claims came back empty"


@both
async def test_a_cancel_of_a_job_that_is_being_released_does_not_deadlock_with_its_next_claim(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G13: found by the storm. One has the job and wants its account, the other the reverse."""
    if naive:  # goes for a running job without its account
        await spoil(
            conn,
            "lifecycle.sql:cancel_job",
            ("where a.id = case when", "where v_job.status = 'queued' and a.id = case when"),
        )
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    job = await factory.submit(conn, account="a")
    started = await factory.claim(conn, worker)
    finisher, app, other, claimer = [await connect() for _ in range(4)]
    # Each waits for the one before, in the order of Postgres's lock queue.
    async with other.transaction():
        async with finisher.transaction():
            await factory.finish(finisher, worker, started, "released")
            meanwhile = Step(other, other.execute("select from penstock.job for update"))
            assert await meanwhile.waits(conn)
            cancel = Step(app, app.execute("select penstock.cancel_job($1)", job))
            assert await cancel.waits(conn)
        await meanwhile

        async def cancel_goes_on() -> bool:
            rows = "select from penstock.account where name = 'a' for update skip locked"
            return cancel._task.done() or not await conn.fetch(rows)

        if not naive:
            await eventually(cancel_goes_on, "the cancel to have the account")
            if cancel._task.done():  # it was quicker than the other session, so there was no race
                assert await factory.status(conn, job) == "cancelled"
                return
        holding = claimer.transaction()
        await holding.start()
        hold = Step(claimer, claimer.execute("select from penstock.account for no key update"))
        assert await hold.waits(conn) is not naive
    if naive:
        assert await cancel.waits(conn)  # it has the job now, queued, and wants the account
        claim = Step(claimer, factory.claim(claimer, worker))
        assert deadlocked(await outcomes_of(cancel, claim))
    else:
        await outcomes_of(cancel, hold)
        assert await factory.claim(claimer, worker) == []
        assert await factory.status(conn, job) == "cancelled"
    await holding.rollback()
