"""The circuit with several sessions at once: nothing is lost, counted twice, or deadlocked."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.circuits import circuit, end, noticed, opened
from support.clock import Clock
from support.factory import Row
from support.interleave import Step
from support.shapes import Connect

HOLD_CIRCUIT = "select from penstock.circuit for no key update"


async def started(
    conn: asyncpg.Connection, jobs: int, *, account: str | None = None, **options: Any
) -> tuple[int, list[Row]]:
    """A worker, and as many running jobs."""
    await factory.queue(conn, **options)
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit_rows(conn, [{"kind": "q", "account": account}] * jobs)
    rows = await factory.claim(conn, worker, limit=jobs)
    await noticed(conn)
    assert len(rows) == jobs
    return worker, rows


async def cost(conn: asyncpg.Connection, job: UUID) -> tuple[int, int]:
    """The failures that count, and the deferrals."""
    row = await factory.read(conn, job)
    return row["failures"], row["deferrals"]


async def test_two_finishes_that_open_one_circuit_make_one_alert_and_uncount_once(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    worker, (hurt, first, second) = await started(conn, 3)
    await end(conn, worker, [hurt], "interrupted")
    one, other = await connect(), await connect()
    async with one.transaction():
        await end(one, worker, [first], "unavailable")
        later = Step(other, end(other, worker, [second], "unavailable"))
        assert await later.waits(conn)
    await later
    assert await conn.fetchval("select count(*) from penstock.alert") == 1
    assert await cost(conn, hurt["id"]) == (0, 1)
    assert await conn.fetchval("select max(withdrawn_failures) from penstock.job") == 1
    assert (await circuit(conn))["in_row"] == 4


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_failure_under_way_while_another_opens_the_circuit_uncounts_itself(
    conn: asyncpg.Connection, connect: Connect, attempts: int
) -> None:
    """The finish that opens it skips the job that the other one still holds."""
    worker, (hurt, opener) = await started(conn, 2, attempts=attempts)
    holder, one, other = [await connect() for _ in range(3)]
    async with holder.transaction():
        await holder.execute(HOLD_CIRCUIT)
        opens = Step(one, end(one, worker, [opener], "unavailable"))
        assert await opens.waits(conn)
        fails = Step(other, end(other, worker, [hurt], "interrupted"))
        assert await fails.waits(conn)
    await opens
    await fails
    assert await cost(conn, hurt["id"]) == (0, 1)
    assert await conn.fetchval("select count(*) from penstock.job where failure_pending") == 0


async def test_a_probe_and_a_finish_of_an_older_attempt_are_both_recorded(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    worker, (slow, first) = await started(conn, 2)
    await end(conn, worker, [first], "unavailable")
    await clock.advance("1s")
    one, other = await connect(), await connect()
    async with one.transaction():
        [probe] = await factory.claim(one, worker)
        late = Step(other, end(other, worker, [slow], "unavailable"))
        assert await late.waits(conn)
    await late
    row = await circuit(conn)
    assert (row["probe_job"], row["probe_attempt"], row["in_row"]) == (probe["id"], 2, 3)


async def test_a_claim_and_a_finish_that_opens_do_not_deadlock(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """The finish has the gate and then the circuit; so does the claim."""
    worker, (first, _) = await started(conn, 2, concurrency=3)
    await factory.submit(conn)
    one, other = await connect(), await connect()
    async with one.transaction():
        await end(one, worker, [first], "unavailable")
        claim = Step(other, factory.claim(other, worker))
        assert await claim.waits(conn)
    await claim
    assert (await circuit(conn))["state"] == "open"


async def test_a_check_and_a_claim_of_the_probe_are_both_recorded(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    worker = await opened(conn)
    await clock.advance("1s")
    one, other = await connect(), await connect()
    async with one.transaction():
        [probe] = await factory.claim(one, worker)
        check = Step(other, other.fetch("select address from penstock.due_checks('{q}')"))
        assert not await check.waits(conn)
        assert all(row["address"] is None for row in await check)
        report = Step(other, other.execute("select penstock.report_check('q', true)"))
        assert await report.waits(conn)
    await report
    row = await circuit(conn)
    assert (row["probe_job"], row["reachable"]) == (probe["id"], True)
    assert await factory.claim(conn, worker) == [], "the probe still runs"


async def test_a_check_that_is_reported_while_a_probe_is_claimed(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    worker = await opened(conn)
    await clock.advance("1s")
    one, other = await connect(), await connect()
    async with one.transaction():
        await one.execute("select penstock.report_check('q', true)")
        claim = Step(other, factory.claim(other, worker))
        assert await claim.waits(conn)
    [probe] = await claim
    row = await circuit(conn)
    assert (row["probe_job"], row["reachable"]) == (probe["id"], True)


async def test_opening_the_circuit_does_not_wait_for_a_job_that_is_being_cancelled(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    worker, (hurt, opener) = await started(conn, 2)
    await end(conn, worker, [hurt], "interrupted")
    app, other = await connect(), await connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", hurt["id"])
        opens = Step(other, end(other, worker, [opener], "unavailable"))
        assert not await opens.waits(conn)
        await opens
    assert await factory.status(conn, hurt["id"]) == "cancelled"


async def test_a_job_whose_failure_is_being_uncounted_is_cancelled_afterwards(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    worker, (hurt, opener) = await started(conn, 2, attempts=1)
    await end(conn, worker, [hurt], "interrupted")
    one, app = await connect(), await connect()
    async with one.transaction():
        await end(one, worker, [opener], "unavailable")
        cancel = Step(app, app.execute("select penstock.cancel_job($1)", hurt["id"]))
        assert await cancel.waits(conn)
    await cancel
    row = await factory.read(conn, hurt["id"])
    assert (row["status"], row["failures"], row["deferrals"]) == ("cancelled", 0, 1)


@pytest.mark.parametrize("account", [None, "a"])
async def test_a_parked_job_that_is_being_failed_is_neither_claimed_nor_uncounted(
    conn: asyncpg.Connection, connect: Connect, clock: Clock, account: str | None
) -> None:
    await factory.plan(conn, concurrency=2)
    worker, (failure_pending, opener) = await started(conn, 2, account=account, attempts=1)
    await end(conn, worker, [failure_pending], "interrupted")
    await clock.advance("60s")
    upkeep, claimer, other = [await connect() for _ in range(3)]
    async with upkeep.transaction():
        await factory.recover(upkeep)
        claim = Step(claimer, factory.claim(claimer, worker))
        assert not await claim.waits(conn)
        assert await claim == []
        opens = Step(other, end(other, worker, [opener], "unavailable"))
        assert not await opens.waits(conn)
        await opens
    finished = await factory.read(conn, failure_pending["id"])
    assert (finished["status"], finished["failures"], finished["deferrals"]) == ("failed", 1, 0)


@pytest.mark.parametrize("account", [None, "a"])
async def test_a_parked_job_that_is_being_uncounted_is_not_failed(
    conn: asyncpg.Connection, connect: Connect, clock: Clock, account: str | None
) -> None:
    await factory.plan(conn, concurrency=2)
    worker, (failure_pending, opener) = await started(conn, 2, account=account, attempts=1)
    await end(conn, worker, [failure_pending], "interrupted")
    await clock.advance("59s")
    one, upkeep = await connect(), await connect()
    async with one.transaction():
        await end(one, worker, [opener], "unavailable")
        await clock.advance("5s")
        recovery = Step(upkeep, factory.recover(upkeep))
        assert not await recovery.waits(conn)
        await recovery
    await factory.recover(conn)
    assert await cost(conn, failure_pending["id"]) == (0, 1)
    assert await factory.status(conn, failure_pending["id"]) == "scheduled"


async def test_a_claim_waits_for_a_job_of_a_lane_that_is_being_uncounted(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """The claim has the account and wants the job; the opening session has the job, and commits."""
    await factory.plan(conn, concurrency=3)
    worker, (hurt, opener) = await started(conn, 2, account="a")
    await end(conn, worker, [hurt], "interrupted", delay="0")
    one, other = await connect(), await connect()
    async with one.transaction():
        # As an opener whose own attempt holds no slot of the account.
        await one.execute(
            "select penstock._uncount_failures(queue_id, penstock.clock(), penstock.clock(),"
            " null)"
            " from penstock.circuit"
        )
        claim = Step(other, factory.claim(other, worker))
        assert await claim.waits(conn)
    assert [row["id"] for row in await claim] == [hurt["id"]]
    assert await cost(conn, hurt["id"]) == (0, 1)
    await end(conn, worker, [opener], "unavailable")


async def test_a_resume_waits_for_a_finish_and_closes_the_circuit_it_opened(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    worker, (first, second) = await started(conn, 2)
    await noticed(conn, "auth")
    await end(conn, worker, [first], "auth", delay="0")
    one, operator = await connect(), await connect()
    async with one.transaction():
        await end(one, worker, [second], "auth", delay="0")
        resume = Step(operator, operator.execute("select penstock.resume_queue('q')"))
        assert await resume.waits(conn)
    await resume
    assert (await circuit(conn))["state"] == "closed"
    assert len(await factory.claim(conn, worker, limit=2)) == 2


async def test_a_finish_that_waits_for_a_resume_opens_the_circuit_again(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """A key that is still wrong opens it again."""
    worker, (first, *others) = await started(conn, 3)
    await noticed(conn, "auth")
    await end(conn, worker, [first], "auth")
    operator, other = await connect(), await connect()
    async with operator.transaction():
        await operator.execute("select penstock.resume_queue('q')")
        late = Step(other, end(other, worker, others, "auth"))
        assert await late.waits(conn)
    await late
    assert (await circuit(conn))["state"] == "open"
    assert await conn.fetchval("select count(*) from penstock.alert where cleared_at is null") == 1


async def test_a_circuit_opened_by_hand_waits_for_claims_under_way(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    worker, _ = await started(conn, 1)
    await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    claimer, operator = await connect(), await connect()
    async with claimer.transaction():
        assert len(await factory.claim(claimer, worker)) == 1
        opens = Step(operator, operator.execute("select penstock.open_circuit('q')"))
        assert await opens.waits(conn)
    await opens
    assert await factory.claim(conn, worker) == []
