"""What a job waits for, in one word: the first that holds, in the order of the contract."""

from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock

LONG_LEASE = "100 days"
SIGN = "a sign of some length"


async def reason(conn: asyncpg.Connection, job: UUID) -> str | None:
    told: str | None = (await factory.read(conn, job))["waiting_for"]
    return told


async def stop(conn: asyncpg.Connection, by: str | None) -> None:
    """The circuit says so."""
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


async def test_of_several_reasons_the_first_is_told(conn: asyncpg.Connection, clock: Clock) -> None:
    """Each is taken away in turn, and the next one shows."""
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


async def test_who_is_behind_others_waits_for_the_queue(conn: asyncpg.Connection) -> None:
    """Also in the moment between an end and the next claim."""
    await factory.queue(conn, concurrency=2)
    await factory.worker(conn, lease=LONG_LEASE)
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 3)
    assert [await reason(conn, job) for job in jobs] == [None, None, "queue_limit"]


async def test_a_worker_that_is_silent_is_none(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    await factory.worker(conn, lease="15 seconds")
    job = await factory.submit(conn)
    assert await reason(conn, job) is None
    await clock.advance("16s")
    assert await reason(conn, job) == "no_worker"


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("retry", "backoff"),
        ("deferred", "backoff"),
        ("timed_out", "backoff"),
        ("stuck", "backoff"),
        ("snoozed", None),
    ],
)
async def test_what_waits_after_a_start(
    conn: asyncpg.Connection, clock: Clock, outcome: str, said: str | None
) -> None:
    """A failure or the provider makes it back off; a handler that snoozes wants to wait."""
    await factory.queue(conn)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    job = await factory.submit(conn)
    started = await factory.claim(conn, worker)
    await factory.finish(conn, worker, started, outcome, delay="1 minute")
    assert await reason(conn, job) == said
    await conn.execute("select penstock.pause_queue('q', null)")
    assert await reason(conn, job) == said, "it would not start now anyway"
    await clock.advance("2m")
    assert await reason(conn, job) == "paused", "it is due"


async def test_what_its_caller_wants_later_waits_for_nothing(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    job = await factory.submit(conn, delay_seconds=60)
    assert await reason(conn, job) is None
    await clock.advance("2m")
    assert await reason(conn, job) == "no_worker", "due, and nobody there"


async def test_what_was_handed_over_waits_for_its_callback(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await factory.submit(conn)
    [row] = await factory.claim(conn, worker)
    assert await reason(conn, row["id"]) is None
    await factory.hand_over(conn, worker, row, SIGN)
    assert await reason(conn, row["id"]) == "callback"


async def test_what_has_ended_waits_for_nothing(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await factory.submit(conn)
    started = await factory.claim(conn, worker)
    await factory.finish(conn, worker, started)
    job = await factory.read(conn, started[0]["id"])
    names = ("waiting_for", "position", "eta_seconds", "staleness")
    assert [job[name] for name in names] == [None] * 4
