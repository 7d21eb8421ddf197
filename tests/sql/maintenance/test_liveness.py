"""check_liveness finds jobs and queues without progress; the scenarios in which it finds nothing
are in tests/mutation/living.py.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.circuits import circuit, fail, opened
from support.clock import Clock
from support.factory import refused
from support.liveness import RULES, accept, found, passes, standing
from support.shapes import Connect

START, PROBE = RULES["start"], RULES["probe"]


async def test_nothing_is_found_in_an_empty_system(conn: asyncpg.Connection) -> None:
    assert await found(conn) == []
    for age in (None, timedelta(seconds=-1)):
        with refused(422, "invalid_age", "older_than"):
            await conn.fetch("select * from penstock.check_liveness($1)", age)


@pytest.mark.parametrize("account", [None, "a"])
@pytest.mark.parametrize("options", [{}, {"concurrency": 2}, {"order": "fair"}, {"rate": "1/s"}])
async def test_a_queued_job_that_nobody_starts(
    conn: asyncpg.Connection, clock: Clock, account: str | None, options: dict[str, Any]
) -> None:
    """The wake-up and the poll were lost, or a claim returned nothing."""
    await factory.queue(conn, **options)
    await factory.plan(conn, concurrency=1)
    worker = await standing(conn)
    job = await factory.submit(conn, account=account)
    assert await found(conn) == []
    await accept(conn, clock, worker, 9)
    assert await found(conn) == []
    await accept(conn, clock, worker, 3)
    assert await found(conn) == [(START, str(job))]
    [row] = await conn.fetch("select * from penstock.check_liveness()")
    assert "queue q, kind q" in row["detail"]
    assert await clock.now() - row["since"] >= timedelta(seconds=10)
    assert await found(conn, 60) == []
    await factory.claim(conn, worker)
    assert await found(conn) == []


async def test_a_finding_names_the_oldest_job_of_each_kind(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await factory.kind(conn, "k")
    worker = await standing(conn)
    first = await factory.submit(conn)
    await clock.advance("1s")
    await factory.submit(conn, priority=-5)
    other = await factory.submit(conn, "k")
    await accept(conn, clock, worker, 20)
    assert await found(conn) == [(START, str(first)), (START, str(other))]


async def test_a_stuck_kind_is_found_among_many_in_time(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    worker = await standing(conn)
    [first, *_] = await factory.submit_rows(conn, [{"kind": "q"}] * 20_000)
    await conn.execute("analyze penstock.job")
    await accept(conn, clock, worker, 20)
    await conn.execute("set statement_timeout = '1s'")
    assert await found(conn) == [(START, str(first))]


@pytest.mark.unsound
async def test_a_lane_that_is_closed_beside_a_free_slot(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await standing(conn)
    job = await factory.submit(conn, account="a")
    await conn.execute("update penstock.lane set open = false")
    assert await found(conn) == []
    await accept(conn, clock, worker, 12)
    assert await found(conn) == [(START, str(job))]


async def test_a_job_that_is_due_and_is_not_queued(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    worker = await standing(conn)
    job = await factory.submit(conn, delay_seconds=5)
    await accept(conn, clock, worker, 14)
    assert await found(conn) == []
    await accept(conn, clock, worker, 2)
    assert await found(conn) == [(RULES["due"], str(job))]


async def test_a_probe_that_nobody_starts(conn: asyncpg.Connection, clock: Clock) -> None:
    worker = await opened(conn)
    await conn.execute("update penstock.worker set locks = true")
    await accept(conn, clock, worker, 5)
    assert await found(conn, 8) == []
    await accept(conn, clock, worker, 10)
    [(rule, _)] = await found(conn, 8)
    assert rule == PROBE
    await factory.claim(conn, worker)
    assert (await circuit(conn))["probe_job"] is not None
    await accept(conn, clock, worker, 20)
    assert await found(conn, 8) == []


async def test_a_driven_queue_that_nobody_calls(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn, drive="http")
    await factory.submit(conn)
    await clock.advance("9s")
    assert await found(conn) == []
    await clock.advance("2s")
    assert await found(conn) == [(RULES["driven"], "q")]
    await conn.execute("select penstock.begin_drive('q')")
    assert await found(conn) == []


async def _over_time(conn: asyncpg.Connection, worker: int) -> UUID:
    job = await factory.submit(conn)
    await factory.claim(conn, worker)
    return job


async def test_an_attempt_past_its_deadline(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn, timeout_seconds=20)
    worker = await standing(conn)
    job = await _over_time(conn, worker)
    await passes(conn, clock, 34)
    assert await found(conn) == []
    await passes(conn, clock, 2)
    assert await found(conn) == [(RULES["deadline"], str(job))]
    await factory.recover(conn)
    assert await found(conn) == []


async def test_a_silent_worker_and_what_it_ran(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    await standing(conn, "keeper")
    worker = await factory.worker(conn, "silent")
    job = await _over_time(conn, worker)
    await passes(conn, clock, 24)
    assert await found(conn) == []
    await passes(conn, clock, 2)
    assert await found(conn) == [(RULES["silent"], "silent")]
    await conn.execute(
        "update penstock.worker set lost_at = penstock.clock() where name = 'silent'"
    )
    await passes(conn, clock, 11)
    assert await found(conn) == [(RULES["gone"], str(job))]
    await factory.recover(conn)
    assert await found(conn) == []


async def test_a_cancellation_that_nobody_carries_out(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    worker = await standing(conn)
    job = await _over_time(conn, worker)
    await conn.execute("select penstock.cancel_job($1)", job)
    await passes(conn, clock, 21)
    assert await found(conn) == [(RULES["asked"], str(job))]
    await factory.recover(conn)
    assert await found(conn) == []


async def test_an_expired_job_that_is_not_failed(conn: asyncpg.Connection, clock: Clock) -> None:
    """Although its queue is paused: upkeep should fail it."""
    await factory.queue(conn)
    await standing(conn)
    job = await factory.submit(conn, expires_seconds=5)
    await conn.execute("select penstock.pause_queue('q')")
    await passes(conn, clock, 16)
    assert await found(conn) == [(RULES["expired"], str(job))]
    await factory.recover(conn)
    assert await found(conn) == []


async def test_a_last_failure_that_is_not_decided(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn, attempts=1)
    worker = await standing(conn)
    job = await _over_time(conn, worker)
    started = await conn.fetch("select id, attempt from penstock.job")
    await factory.finish(
        conn, worker, started, "provisional",
        error={"class": "interrupted", "message": "no"}, effect="counts",
    )  # fmt: skip
    assert await conn.fetchval("select failure_pending from penstock.job")
    await passes(conn, clock, 71)
    assert await found(conn) == [(RULES["failure_pending"], str(job))]
    await factory.recover(conn)
    assert await found(conn) == []


async def test_a_ramp_that_does_not_end(conn: asyncpg.Connection, clock: Clock) -> None:
    worker = await opened(conn)
    await conn.execute("update penstock.worker set locks = true")
    await passes(conn, clock, 2)
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    assert (await circuit(conn))["state"] == "ramping"
    await passes(conn, clock, 71)
    assert await found(conn) == [(RULES["ramp"], "q")]
    await factory.recover(conn)
    assert (await circuit(conn))["state"] == "closed"


async def test_a_ramp_in_which_calls_are_refused_may_last(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """D4: the ramp of a provider lasts for as long as it refuses some calls."""
    worker = await opened(conn, jobs=20, concurrency=100)
    await conn.execute("update penstock.worker set locks = true")
    await passes(conn, clock, 2)
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    await conn.execute("update penstock.circuit set refused = 0.5")
    for _ in range(2):
        await passes(conn, clock, 50)
        await fail(conn, worker, "overloaded")
        await conn.execute("select penstock._close_ramps(penstock.clock())")
    assert (await circuit(conn))["state"] == "ramping"
    assert await found(conn) == []
    await passes(conn, clock, 71)
    assert await found(conn) == [(RULES["ramp"], "q")]
    await factory.recover(conn)
    assert (await circuit(conn))["state"] == "closed"


async def test_a_webhook_that_nobody_sends(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    await conn.execute(
        "select penstock.declare_kind('q', 'q', $1)", {"webhook": "http://app.example/hook"}
    )
    worker = await standing(conn)
    job = await factory.submit(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    delivery = await conn.fetchval("select id from penstock.delivery where job_id = $1", job)
    await passes(conn, clock, 9)
    assert await found(conn) == []
    await passes(conn, clock, 2)
    assert await found(conn) == [(RULES["webhook"], str(delivery))]
    await conn.fetch("select * from penstock.claim_deliveries(1, interval '30 seconds')")
    assert await found(conn) == []


async def test_an_on_finish_callback_that_nobody_runs(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await conn.execute("select penstock.declare_kind('q', 'q', $1)", {"has_on_finish": True})
    await standing(conn)
    job = await factory.submit(conn)
    await conn.execute("select penstock.cancel_job($1)", job)
    await passes(conn, clock, 9)
    assert await found(conn) == []
    await passes(conn, clock, 2)
    assert await found(conn) == [(RULES["callback"], str(job))]


async def test_upkeep_that_does_not_run(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    await standing(conn)
    await clock.advance("19s")
    assert await found(conn) == []
    await clock.advance("2s")
    assert await found(conn) == [(RULES["upkeep"], "measure_waits")]
    [row] = await conn.fetch("select * from penstock.check_liveness()")
    assert await clock.now() - row["since"] < timedelta(seconds=30)


async def test_a_row_that_an_open_transaction_locks_is_seen_as_locked(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """Also through a savepoint that was released, and when other transactions are older."""
    await factory.queue(conn)
    await factory.submit(conn, account="a")
    locked = "select penstock._is_locked(xmax) from penstock.account where name = 'a'"

    async def hold(app: asyncpg.Connection, words: Sequence[str]) -> None:
        for word in words:
            await app.execute(word)

    update = "update penstock.account set weight = weight where name = 'a'"
    for lock in ("select from penstock.account where name = 'a' for no key update", update):
        for before, after in (([], []), (["savepoint s"], ["release savepoint s"])):
            assert not await conn.fetchval(locked)
            older, app = await connect(), await connect()
            await hold(older, ["begin", "select pg_current_xact_id()"])
            await hold(app, ["begin", *before, lock, *after])
            assert await conn.fetchval(locked), (lock, before)
            await hold(app, ["rollback"])
            assert not await conn.fetchval(locked), (lock, before)
            await hold(older, ["rollback"])
