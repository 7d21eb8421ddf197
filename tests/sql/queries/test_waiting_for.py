"""What a job waits for, as one word: the first reason that holds, in the order of the contract."""

from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock

LONG_LEASE = "100 days"
SIGN = "a sign of some length"


async def reason(conn: asyncpg.Connection, job: UUID) -> str | None:
    found: str | None = (await factory.read(conn, job))["waiting_for"]
    return found


async def stop(conn: asyncpg.Connection, by: str | None) -> None:
    """Open or close the circuit with this class."""
    classes = {"circuit_open": "unavailable", "rate_limit": "rate_limited", "paused": "auth"}
    if by is None:
        await conn.execute("select penstock.close_circuit(name) from penstock.queue")
    else:
        await conn.execute(
            "with c as (update penstock.circuit set state = 'open', next_at = penstock.clock(),"
            " class = $1 returning circuit) select penstock._publish_circuit('q', c.circuit,"
            " penstock.clock()) from c",
            classes[by],
        )


async def test_of_several_reasons_the_first_is_returned(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """Each reason is removed in turn, and the next one is returned."""
    await stop(conn, None)
    await factory.queue(conn, concurrency=1, rate="1/min", burst=1)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await factory.submit(conn, account="a")
    job = await factory.submit(conn, account="a")
    running = await factory.claim(conn, worker)
    await conn.execute("select penstock.stop_worker($1)", worker)
    await stop(conn, "circuit_open")
    await conn.execute("select penstock.pause_queue('q', null)")
    assert await reason(conn, job) == "paused"
    await conn.execute("select penstock.resume_queue('q')")
    await stop(conn, "paused")
    assert await reason(conn, job) == "paused", "by the circuit: an operator has to act"
    await stop(conn, "circuit_open")
    assert await reason(conn, job) == "no_worker"
    other = await factory.worker(conn, lease=LONG_LEASE)
    assert await reason(conn, job) == "circuit_open"
    await stop(conn, "rate_limit")
    assert await reason(conn, job) == "rate_limit", "the provider asked for it"
    await stop(conn, None)
    assert await reason(conn, job) == "rate_limit", "its own bucket is empty"
    await clock.advance("1m")
    assert await reason(conn, job) == "account_limit"
    await conn.execute("select penstock.edit_plan('free', '{\"concurrency\": 5}')")
    assert await reason(conn, job) == "queue_limit"
    await factory.finish(conn, worker, running)
    assert await reason(conn, job) is None, "the next claim takes it"
    assert await factory.claim(conn, other)
    assert await reason(conn, job) is None, "it runs"


async def test_a_job_behind_others_waits_for_the_queue_limit(conn: asyncpg.Connection) -> None:
    """Also in the moment between a finish and the next claim."""
    await factory.queue(conn, concurrency=2)
    await factory.worker(conn, lease=LONG_LEASE)
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 3)
    assert [await reason(conn, job) for job in jobs] == [None, None, "queue_limit"]


async def test_a_silent_worker_does_not_count(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    await factory.worker(conn, lease="15 seconds")
    job = await factory.submit(conn)
    assert await reason(conn, job) is None
    await clock.advance("16s")
    assert await reason(conn, job) == "no_worker"


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("retry", "backoff"),
        ("deferred", "backoff"),
        ("timed_out", "backoff"),
        ("stuck", "backoff"),
        ("snoozed", None),
    ],
)
async def test_the_reason_of_a_wait_after_an_attempt(
    conn: asyncpg.Connection, clock: Clock, outcome: str, expected: str | None
) -> None:
    """After a failure or an outage it backs off; a handler that snoozes wants the delay."""
    await factory.queue(conn)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    job = await factory.submit(conn)
    started = await factory.claim(conn, worker)
    await factory.finish(conn, worker, started, outcome, delay="1 minute")
    assert await reason(conn, job) == expected
    await conn.execute("select penstock.pause_queue('q', null)")
    assert await reason(conn, job) == expected, "it would not start now anyway"
    await clock.advance("2m")
    assert await reason(conn, job) == "paused", "it is due"


async def test_a_job_delayed_by_its_caller_waits_for_nothing(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    job = await factory.submit(conn, delay_seconds=60)
    assert await reason(conn, job) is None
    await clock.advance("2m")
    assert await reason(conn, job) == "no_worker", "due, and no worker is alive"


async def test_a_dispatched_job_waits_for_its_callback(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await factory.submit(conn)
    [row] = await factory.claim(conn, worker)
    assert await reason(conn, row["id"]) is None
    await factory.hand_over(conn, worker, row, SIGN)
    assert await reason(conn, row["id"]) == "callback"


async def test_a_finished_job_waits_for_nothing(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await factory.submit(conn)
    started = await factory.claim(conn, worker)
    await factory.finish(conn, worker, started)
    job = await factory.read(conn, started[0]["id"])
    names = ("waiting_for", "position", "eta_seconds", "staleness")
    assert [job[name] for name in names] == [None] * 4
