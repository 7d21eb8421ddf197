"""Dispatched jobs: they keep their slots, the worker is free, and one callback counts."""

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import Row, refused
from support.shapes import Connect

FIRST = "token-of-attempt-1"


async def dispatched(conn: asyncpg.Connection, **job: Any) -> tuple[int, UUID, Row]:
    worker = await factory.worker(conn)
    number = await factory.submit(conn, **job)
    [start] = await factory.claim(conn, worker)
    assert await factory.hand_over(conn, worker, start, FIRST) == "done"
    return worker, number, start


async def test_an_awaiting_job_keeps_its_slots_and_frees_its_worker(
    conn: asyncpg.Connection,
) -> None:
    """M3: it holds the queue's only slot until its callback."""
    await factory.queue(conn, concurrency=1)
    await factory.plan(conn, concurrency=1)
    worker, job, _ = await dispatched(conn, account="u1")
    await factory.submit(conn, account="u1")
    await factory.submit(conn, account="u2")
    assert await factory.claim(conn, worker, limit=5) == []
    assert await conn.fetchval("select running from penstock.worker_health") == 0
    assert await factory.call_back(conn, job, 1, FIRST, result={"image": 1}) == "accepted"
    shown = await factory.read(conn, job)
    assert (shown["status"], shown["result"]) == ("succeeded", {"image": 1})
    assert len(await factory.claim(conn, worker, limit=5)) == 1


async def test_an_awaiting_job_survives_the_death_of_its_worker(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    _, job, _ = await dispatched(conn)
    await clock.advance("60s")
    assert await factory.recover(conn) == []
    assert (
        await conn.fetchval("select count(*) from penstock.worker where lost_at is not null") == 1
    )
    assert await factory.call_back(conn, job, 1, FIRST) == "accepted"
    assert await factory.status(conn, job) == "succeeded"


async def test_only_its_worker_in_its_attempt_can_hand_it_over(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    owner, thief = await factory.worker(conn), await factory.worker(conn)
    job = await factory.submit(conn)
    [start] = await factory.claim(conn, owner)
    assert await factory.hand_over(conn, thief, start, FIRST) == "stale"
    await factory.finish(conn, owner, [start], "released")
    assert await factory.hand_over(conn, owner, start, FIRST) == "stale"
    [again] = await factory.claim(conn, owner)
    assert await factory.hand_over(conn, owner, start, FIRST) == "stale"
    assert await factory.status(conn, job) == "running"
    assert await factory.hand_over(conn, owner, again, FIRST) == "done"
    assert await factory.hand_over(conn, owner, again, FIRST) == "stale"


@pytest.mark.parametrize("token", ["", "fifteen letters", None])
async def test_a_token_that_could_be_guessed_is_refused(
    conn: asyncpg.Connection, token: str
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn)
    [start] = await factory.claim(conn, worker)
    with refused(422, "invalid_token", "token"):
        await factory.hand_over(conn, worker, start, token)


async def test_the_token_itself_is_not_stored(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await dispatched(conn)
    assert FIRST not in await conn.fetchval("select j::text from penstock.job j")


@pytest.mark.parametrize(
    ("outcome", "status", "failures"),
    [("succeeded", "succeeded", 0), ("failed", "failed", 1), ("retry", "scheduled", 1)],
)
async def test_a_callback_settles_the_attempt_with_its_outcome(
    conn: asyncpg.Connection, outcome: str, status: str, failures: int
) -> None:
    await factory.queue(conn)
    _, job, _ = await dispatched(conn)
    error = {"class": "provider_error", "message": "no image"}
    assert await factory.call_back(conn, job, 1, FIRST, outcome, error=error) == "accepted"
    shown = await factory.read(conn, job)
    assert (shown["status"], shown["failures"]) == (status, failures)
    assert (shown["error"] or {}).get("class") == (None if failures == 0 else "provider_error")


async def test_a_repeated_callback_is_a_duplicate_and_changes_nothing(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    _, job, _ = await dispatched(conn)
    await factory.call_back(conn, job, 1, FIRST, result=1)
    before = await factory.contents(conn)
    assert await factory.call_back(conn, job, 1, FIRST, result=2) == "duplicate"
    assert await factory.call_back(conn, job, 1, FIRST, "failed") == "duplicate"
    assert await factory.contents(conn) == before


async def test_a_callback_of_an_older_attempt_is_stale_and_kept_for_people(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn, timeout_seconds=60, delay_seconds=0)
    _, job, _ = await dispatched(conn)
    await clock.advance("61s")
    await factory.recover(conn)
    assert await factory.call_back(conn, job, 1, FIRST, result="between") == "stale"
    worker = await factory.worker(conn)
    [again] = await factory.claim(conn, worker)
    assert await factory.hand_over(conn, worker, again, "token-of-attempt-2") == "done"
    assert await factory.call_back(conn, job, 1, FIRST, result="late") == "stale"
    assert await factory.status(conn, job) == "awaiting"
    assert await conn.fetchval("select count(*) from penstock.late_result where attempt = 1") > 0
    assert await factory.call_back(conn, job, 2, "token-of-attempt-2", result="mine") == "accepted"
    assert (await factory.read(conn, job))["result"] == "mine"
    assert await factory.call_back(conn, job, 1, FIRST, result="very late") == "stale"


async def test_progress_of_an_older_attempt_is_stale(conn: asyncpg.Connection) -> None:
    await factory.queue(conn, delay_seconds=0)
    worker, job, _ = await dispatched(conn)
    assert await factory.call_back(conn, job, 1, FIRST, "retry") == "accepted"
    [again] = await factory.claim(conn, worker)
    assert await factory.hand_over(conn, worker, again, FIRST) == "done"
    assert await factory.call_back(conn, job, 1, FIRST, "progress") == "stale"
    assert await factory.call_back(conn, job, 2, FIRST, "progress") == "accepted"


async def test_a_callback_for_an_unknown_job_is_unknown_and_writes_nothing(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    before = await factory.contents(conn)
    assert await factory.call_back(conn, UUID(int=7), 1, FIRST, result="junk") == "unknown"
    assert await factory.contents(conn) == before


@pytest.mark.parametrize(
    ("attempt", "token", "outcome"),
    [
        (1, "another token, as long", "succeeded"),
        (1, "", "succeeded"),
        (1, None, "succeeded"),
        (1, FIRST, "cancelled"),
        (1, FIRST, "released"),
        (1, FIRST, None),
        (2, FIRST, "succeeded"),
        (0, FIRST, "succeeded"),
        (None, FIRST, "succeeded"),
    ],
)
async def test_a_callback_with_a_wrong_token_is_invalid_and_changes_nothing(
    conn: asyncpg.Connection, attempt: int, token: str | None, outcome: str | None
) -> None:
    await factory.queue(conn)
    _, job, _ = await dispatched(conn)
    before = await factory.contents(conn)
    assert await factory.call_back(conn, job, attempt, token, outcome, result=1) == "invalid"
    assert await factory.contents(conn) == before


async def test_a_callback_before_the_hand_over_is_invalid(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    await factory.claim(conn, worker)
    assert await factory.call_back(conn, job, 1, FIRST) == "invalid"
    assert await factory.status(conn, job) == "running"


async def test_each_callback_of_an_array_has_its_own_verdict(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    good, bad, twice = [(await dispatched(conn))[1] for _ in range(3)]
    rows = await conn.fetch(
        "select job_id, outcome from penstock.resolve_callbacks($1, $2, $3, $4, $5)",
        [good, bad, twice, twice, UUID(int=7)],
        [1] * 5,
        [FIRST, "a token of someone else", FIRST, FIRST, FIRST],
        ["succeeded"] * 5,
        [{"n": n} for n in range(5)],
    )
    verdicts = sorted((row["job_id"], row["outcome"]) for row in rows)
    assert verdicts == sorted(
        [
            (good, "accepted"),
            (bad, "invalid"),
            (twice, "accepted"),
            (twice, "duplicate"),
            (UUID(int=7), "unknown"),
        ]
    )
    assert (await factory.read(conn, twice))["result"] == {"n": 2}
    assert await factory.status(conn, bad) == "awaiting"


async def test_an_array_that_waits_for_accounts_locks_no_queue(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """M3: an app locks one of two accounts: claims from the queue do not wait with the array."""
    await factory.queue(conn, concurrency=10)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    jobs = [await factory.submit(conn, account=account) for account in ("u1", "u2")]
    for start in await factory.claim(conn, worker, limit=2):
        await factory.hand_over(conn, worker, start, FIRST)
    app, caller = await connect(), await connect()
    async with app.transaction():
        await factory.submit(app, account="u2")
        answer = asyncio.ensure_future(
            caller.fetch(
                "select outcome from penstock.resolve_callbacks($1, '{1, 1}', $2,"
                " '{succeeded, succeeded}', p_wait => '30 seconds')",
                jobs,
                [FIRST, FIRST],
            )
        )
        await factory.until_blocked(conn, caller)
        await factory.submit(conn)
        await conn.execute("set lock_timeout = '1s'")
        assert len(await factory.claim(conn, worker)) == 1
    assert [row["outcome"] for row in await answer] == ["accepted", "accepted"]


async def test_a_missing_callback_is_a_failed_attempt(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """M3, E12"""
    await clock.freeze()
    await factory.queue(conn, timeout_seconds=60, attempts=1)
    _, job, _ = await dispatched(conn)
    await clock.advance(59.9)
    assert await factory.recover(conn) == []
    await clock.advance(0.1)
    [row] = await factory.recover(conn)
    assert (row["outcome"], row["status"]) == ("timed_out", "failed")
    error = (await factory.read(conn, job))["error"]
    assert (error["class"], error["reason"]) == ("no_callback", "attempts_exhausted")


async def test_a_silent_function_is_stuck_and_recovered_like_a_worker(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    await factory.queue(conn, timeout_seconds=3600, stuck_after_seconds=300)
    _, job, _ = await dispatched(conn)
    await clock.advance(300)
    [row] = await factory.recover(conn)
    assert (row["outcome"], row["status"]) == ("stuck", "queued")
    assert (await factory.read(conn, job))["recovery"]["count"] == 1


async def test_recovery_cancels_an_awaiting_job_at_once(conn: asyncpg.Connection) -> None:
    """M3: the slot is held until callback, timeout or cancel."""
    await factory.queue(conn, concurrency=1)
    worker, job, _ = await dispatched(conn)
    shown = await conn.fetchval("select penstock.cancel_job($1)", job)
    assert (shown["status"], shown["cancel_requested"]) == ("awaiting", True)
    [row] = await factory.recover(conn)
    assert (row["outcome"], row["status"]) == ("cancelled", "cancelled")
    assert await factory.call_back(conn, job, 1, FIRST, result="late") == "duplicate"
    assert (await factory.read(conn, job))["result"] is None
    await factory.submit(conn)
    assert len(await factory.claim(conn, worker)) == 1


async def test_a_callback_after_the_deadline_counts_if_it_comes_before_recovery(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    _, job, _ = await dispatched(conn)
    await conn.execute("select penstock.cancel_job($1)", job)
    assert await factory.call_back(conn, job, 1, FIRST, result=1) == "accepted"
    assert await factory.status(conn, job) == "succeeded"
