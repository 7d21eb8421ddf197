"""Faults of the circuit: once one is corrected, its test moves to the file of its subject."""

from typing import Any

import asyncpg
import pytest

from support import factory
from support.circuits import circuit, end, fail, noticed, opened
from support.clock import Clock
from support.interleave import Step
from support.shapes import Connect

SIGN = "a sign of some length"


async def ready(conn: asyncpg.Connection, jobs: int, **options: Any) -> int:
    await factory.queue(conn, **options)
    await factory.submit_rows(conn, [{"kind": "q"}] * jobs)
    await noticed(conn)
    return await factory.worker(conn, lease="100 days")


async def test_callbacks_of_two_queues_do_not_deadlock_with_a_finish_of_both(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """resolve_callbacks settles one by one: the first queue's circuit, then the second's gate."""
    for name, options in (("first", {}), ("free", {}), ("tight", {"concurrency": 5})):
        await factory.queue(conn, name, **options)
    worker = await factory.worker(conn, lease="100 days")
    # From here on every finish locks the circuits of its queues.
    await conn.execute("update penstock.circuit set in_row = 1")
    outside, inside = [], []
    for name in ("free", "tight"):
        await factory.submit_rows(conn, [{"kind": name}] * 2)
        handed, kept = await factory.claim(conn, worker, name, 2)
        await factory.hand_over(conn, worker, handed, SIGN)
        outside.append(handed["id"])
        inside.append(kept)
    await factory.submit(conn, "first")
    inside += await factory.claim(conn, worker, "first")
    holder, caller, finisher = [await connect() for _ in range(3)]
    async with holder.transaction():
        await holder.execute(
            "select from penstock.circuit c join penstock.queue q on q.id = c.queue_id"
            " where q.name = 'first' for no key update of c"
        )
        finish = Step(finisher, factory.finish(finisher, worker, inside))
        assert await finish.waits(conn)  # it has the gate of tight, and waits for the circuits
        calls = Step(
            caller,
            caller.fetch(
                "select * from penstock.resolve_callbacks($1, '{1,1}', $2, $3)",
                outside,
                [SIGN, SIGN],
                ["succeeded", "succeeded"],
            ),
        )
        # It has the circuit of free, and waits for the gate of tight.
        assert await calls.waits(conn)
    try:
        await finish
    finally:
        await calls


async def test_a_parked_job_without_an_error_does_not_stop_upkeep(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """null || '{"reason": ...}' is null: every pass of recover_jobs fails from then on."""
    worker = await ready(conn, 1, attempts=1)
    [row] = await factory.claim(conn, worker)
    await factory.finish(conn, worker, [row], "provisional")
    await clock.advance("61s")
    await factory.recover(conn)
    assert await factory.status(conn, row["id"]) == "failed"


async def test_a_parked_job_that_a_person_retries_is_tried_again(
    conn: asyncpg.Connection,
) -> None:
    worker = await ready(conn, 1, attempts=1)
    job = await fail(conn, worker, "interrupted")
    await conn.execute("select penstock.retry_job($1)", job)
    await factory.recover(conn)
    assert await factory.status(conn, job) == "queued"


async def test_a_failure_is_uncounted_although_a_claim_holds_the_job_when_the_circuit_opens(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    worker = await ready(conn, 2)
    hurt, opener = await factory.claim(conn, worker, limit=2)
    await end(conn, worker, [hurt], "interrupted", delay="5s")
    await clock.advance("5s")
    claimer = await connect()
    async with claimer.transaction():
        [again] = await factory.claim(claimer, worker)
        assert again["id"] == hurt["id"]
        await end(conn, worker, [opener], "unavailable")
    await end(conn, worker, [again], "unavailable")
    await clock.advance("2m")
    await factory.recover(conn)
    assert (await factory.read(conn, hurt["id"]))["failures"] == 0


async def test_an_outcome_without_an_effect_does_not_open_the_circuit(
    conn: asyncpg.Connection,
) -> None:
    """`charged` gives the effect "none" to each deferral that says nothing about the provider."""
    worker = await ready(conn, 1)
    started = await factory.claim(conn, worker)
    error = {"class": "unavailable", "message": "pool is full"}
    await factory.finish(conn, worker, started, "deferred", error=error, delay="1s", effect="none")
    assert (await circuit(conn))["state"] == "closed"


async def test_the_alert_changes_when_a_provider_is_back_and_refuses_the_key(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await opened(conn)
    await clock.advance("1s")
    await fail(conn, worker, "auth")
    assert await conn.fetchval("select class from penstock.alert") == "auth"


async def test_a_claim_that_waited_for_the_gate_sees_that_the_circuit_has_opened(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    worker = await ready(conn, 6, concurrency=5)
    [first] = await factory.claim(conn, worker)
    one, other = await connect(), await connect()
    async with one.transaction():
        await end(one, worker, [first], "unavailable")
        claim = Step(other, factory.claim(other, worker, limit=5))
        assert await claim.waits(conn)
    assert await claim == []


async def test_all_failures_of_the_last_minute_are_uncounted(conn: asyncpg.Connection) -> None:
    worker = await ready(conn, 2, attempts=5)
    opener, *_ = await factory.claim(conn, worker)
    first = await fail(conn, worker, "interrupted", delay="0")
    assert await fail(conn, worker, "interrupted", delay="0") == first
    await end(conn, worker, [opener], "unavailable")
    assert (await factory.read(conn, first))["failures"] == 0


async def test_a_stale_outcome_in_a_report_says_nothing_about_the_provider(
    conn: asyncpg.Connection,
) -> None:
    worker = await ready(conn, 1)
    [old] = await factory.claim(conn, worker)
    await factory.finish(conn, worker, [old], "released")
    [new] = await factory.claim(conn, worker)
    unavailable = {"class": "unavailable", "message": "no"}
    rows = await conn.fetch(
        "select verdict from penstock.finish_jobs($1, $2, $3, $4, null, $5,"
        " p_effects => '{opens, null}')",
        worker,
        [old["id"], new["id"]],
        [old["attempt"], new["attempt"]],
        ["deferred", "succeeded"],
        [unavailable, None],
    )
    assert sorted(row["verdict"] for row in rows) == ["done", "stale"]
    assert (await circuit(conn))["state"] == "closed"


async def test_an_outside_function_does_not_stop_a_queue(conn: asyncpg.Connection) -> None:
    """Nor can it name an address to which every worker then connects: it has no column for that."""
    worker = await ready(conn, 1)
    [row] = await factory.claim(conn, worker)
    await factory.hand_over(conn, worker, row, SIGN)
    error = {"class": "auth", "message": "no"}
    await factory.call_back(
        conn, row["id"], row["attempt"], SIGN, "retry", error=error, effect="stops"
    )
    assert (await circuit(conn))["state"] == "closed"


@pytest.mark.parametrize(("effect", "state"), [("stops", "closed"), ("opens", "open")])
async def test_an_outside_function_may_report_that_it_is_unavailable(
    conn: asyncpg.Connection, effect: str, state: str
) -> None:
    """F5: as its reply to a call would. It cannot report what only an operator can correct."""
    worker = await ready(conn, 3)
    for row in await factory.claim(conn, worker, limit=3):
        await factory.hand_over(conn, worker, row, SIGN)
        error = {"class": "unavailable", "message": "no"}
        answer = await factory.call_back(
            conn, row["id"], row["attempt"], SIGN, "deferred", error=error, effect=effect
        )
        assert answer == "accepted"
    assert (await circuit(conn))["state"] == state
    failures = await conn.fetch("select failures from penstock.job")
    assert {row["failures"] for row in failures} == {0}


async def test_an_error_that_is_only_a_string_is_accepted(conn: asyncpg.Connection) -> None:
    worker = await ready(conn, 1)
    [row] = await factory.claim(conn, worker)
    await conn.execute(
        "select count(*) from penstock.finish_jobs($1, $2, '{1}', '{failed}', null,"
        " array['\"no\"'::jsonb])",
        worker,
        [row["id"]],
    )
    assert await factory.status(conn, row["id"]) == "failed"


async def test_a_check_does_not_shorten_the_wait_that_an_overloaded_provider_asked_for(
    conn: asyncpg.Connection,
) -> None:
    """A connection shows only for a provider that was unreachable that it is back."""
    worker = await ready(conn, 2)
    running = await factory.claim(conn, worker, limit=2)
    await end(conn, worker, running, "overloaded", after=30, address="10.0.0.1:80")
    assert (await circuit(conn))["state"] == "open"
    await conn.execute("select penstock.report_check('q', true)")
    assert await factory.claim(conn, worker) == []
