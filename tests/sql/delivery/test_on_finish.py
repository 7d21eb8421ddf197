"""The on_finish callback runs once per finished job, in a transaction in which it can write."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock

End = Callable[[asyncpg.Connection, Clock, UUID], Awaitable[Any]]


async def has_on_finish(conn: asyncpg.Connection, **options: Any) -> None:
    await factory.queue(conn, **options)
    await conn.execute("select penstock.declare_kind('q', 'q', $1)", {"has_on_finish": True})


async def take(conn: asyncpg.Connection) -> list[tuple[UUID, str]]:
    rows = await conn.fetch("select * from penstock.take_on_finish(array['q'])")
    return [(row["id"], row["status"]) for row in rows]


async def by_worker(conn: asyncpg.Connection, _: Clock, __: UUID) -> str:
    worker = await factory.worker(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    return "succeeded"


async def by_cancel(conn: asyncpg.Connection, _: Clock, job: UUID) -> str:
    await conn.execute("select penstock.cancel_job($1)", job)
    return "cancelled"


async def by_timeout(conn: asyncpg.Connection, clock: Clock, _: UUID) -> str:
    await factory.claim(conn, await factory.worker(conn))
    await clock.advance("1h", beats=True)
    await factory.recover(conn)
    return "failed"


async def by_expiry(conn: asyncpg.Connection, clock: Clock, job: UUID) -> str:
    await conn.execute("update penstock.job set expires_at = penstock.clock() where id = $1", job)
    await clock.advance("1s")
    await factory.claim(conn, await factory.worker(conn))
    return "failed"


async def by_callback(conn: asyncpg.Connection, _: Clock, job: UUID) -> str:
    worker = await factory.worker(conn)
    [row] = await factory.claim(conn, worker)
    await factory.hand_over(conn, worker, row, "a token of some length")
    await factory.call_back(conn, job, 1, "a token of some length")
    return "succeeded"


@pytest.mark.parametrize("end", [by_worker, by_cancel, by_timeout, by_expiry, by_callback])
async def test_every_way_to_finish_a_job_records_a_callback(
    conn: asyncpg.Connection, clock: Clock, end: End
) -> None:
    await has_on_finish(conn, attempts=1)
    job = await factory.submit(conn)
    assert await take(conn) == []
    status = await end(conn, clock, job)
    assert await take(conn) == [(job, status)]
    assert await take(conn) == []


async def test_an_attempt_that_does_not_finish_its_job_records_no_callback(
    conn: asyncpg.Connection,
) -> None:
    await has_on_finish(conn)
    await factory.submit(conn)
    worker = await factory.worker(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker), "retry")
    assert await take(conn) == []


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ("stuck", "stuck_exhausted"),
        ("timed_out", "attempts_exhausted"),
        ("retry", "attempts_exhausted"),
        ("failed", None),
        ("cancelled", None),
    ],
)
async def test_the_preview_of_a_job_equals_its_history(
    conn: asyncpg.Connection, outcome: str, reason: str | None
) -> None:
    """S3: an app that writes when a job finishes sees which budget is used up."""
    await has_on_finish(conn, attempts=1, recovery=0)
    await factory.submit(conn)
    worker = await factory.worker(conn)
    [row] = await factory.claim(conn, worker)
    error = {"class": "stalled", "message": "no news", "retryable": True}
    held = await conn.fetchrow(
        "select * from penstock.preview_finish($1, $2, 1, $3, null, $4)",
        worker,
        row["id"],
        outcome,
        error,
    )
    assert held is not None
    await factory.finish(conn, worker, [row], outcome, error=error)
    callback = await conn.fetchrow("select * from penstock.take_on_finish(array['q'])")
    assert callback is not None
    assert held["error"] == callback["error"]
    assert (callback["status"], callback["error"]["reason"]) == (held["status"], reason)


async def test_a_callback_whose_transaction_rolls_back_is_called_again(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await has_on_finish(conn)
    job = await factory.submit(conn)
    await by_cancel(conn, clock, job)
    undone = conn.transaction()
    await undone.start()
    assert len(await take(conn)) == 1
    await undone.rollback()
    await conn.execute("select penstock.postpone_on_finish($1)", job)
    assert await take(conn) == []
    await clock.advance("2s")
    assert len(await take(conn)) == 1


async def test_the_delay_of_a_callback_grows_to_an_hour_at_most(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await has_on_finish(conn)
    job = await factory.submit(conn)
    await by_cancel(conn, clock, job)
    now = await clock.freeze()
    waits = []
    for _ in range(15):
        await conn.execute("select penstock.postpone_on_finish($1)", job)
        next_at = await conn.fetchval("select next_at from penstock.pending_on_finish")
        waits.append((next_at - now).total_seconds())
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-1] == 3600


async def test_a_kind_without_a_callback_records_none(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await has_on_finish(conn)
    await conn.execute("select penstock.declare_kind('q', 'q')")
    await by_cancel(conn, clock, await factory.submit(conn))
    assert await conn.fetchval("select count(*) from penstock.pending_on_finish") == 0
