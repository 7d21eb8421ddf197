"""Providers that are neither up nor down: they refuse calls by chance, or beyond a capacity."""

from typing import Any

import asyncpg
import pytest

from support import factory
from support.circuits import circuit
from support.clock import Clock
from support.provider_model import Run, half_up, room_for

pytestmark = pytest.mark.one_version


async def submitted(conn: asyncpg.Connection, jobs: int, **options: Any) -> None:
    await factory.queue(conn, **({"concurrency": 8} | options))
    await factory.submit_rows(conn, [{"kind": "q"}] * jobs)


async def failures(conn: asyncpg.Connection) -> int:
    total: int = await conn.fetchval(
        "select coalesce(sum(failures), 0) from"
        " (select failures from penstock.job union all select failures from penstock.finished) f"
    )
    return total


@pytest.mark.parametrize(("seed", "seconds"), [(1, 0.2), (2, 1.0), (3, 2.0), (4, 1.0)])
async def test_a_provider_that_refuses_half_of_its_calls_is_used(
    conn: asyncpg.Connection, clock: Clock, seed: int, seconds: float
) -> None:
    """D4: at least 24 of 60 jobs in 90 s at concurrency 8, and no failure is counted."""
    await submitted(conn, 60)
    run = Run(conn, clock, half_up(seconds=seconds), seed=seed)
    await run.until(90)
    assert run.served >= 24
    assert await failures(conn) == 0
    assert await conn.fetchval("select count(*) from penstock.finished") == run.served


@pytest.mark.parametrize(("share", "least"), [(0.5, 0.4), (0.75, 0.7), (0.95, 0.8)])
async def test_a_provider_gets_most_of_the_calls_that_it_would_answer(
    conn: asyncpg.Connection, clock: Clock, share: float, least: float
) -> None:
    """D4: each of eight slots could have an answer a second."""
    await submitted(conn, 1_000)
    run = Run(conn, clock, half_up(share))
    await run.until(60)
    assert run.served >= least * 8 * 60


@pytest.mark.parametrize("failure", ["overloaded", "unavailable", "provider_error", "interrupted"])
async def test_a_provider_that_is_down_gets_few_calls(
    conn: asyncpg.Connection, clock: Clock, failure: str
) -> None:
    """D4: at most 40 calls in 60 s at concurrency 8."""
    await submitted(conn, 200)
    run = Run(conn, clock, half_up(0, failure=failure))
    await run.until(60)
    assert len(run.calls) <= 40
    assert await failures(conn) == 0


async def test_a_provider_that_was_half_up_and_goes_down_gets_few_calls_too(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """D4: the first failures open the circuit, and the provider is used again when it is back."""
    await submitted(conn, 1_000)
    run = Run(conn, clock, half_up())
    await run.until(20)
    before, run.provider = len(run.calls), half_up(0)
    await run.until(80)
    assert len(run.calls) - before <= 40
    before, run.provider = run.served, half_up(1)
    await run.until(170)
    assert run.served - before >= 8 * 20, "within a minute, and then as before"
    assert await failures(conn) == 0


async def test_calls_beyond_a_capacity_are_refused_and_the_others_go_on(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """D4: a provider with capacity for four of eight calls works all the time."""
    await submitted(conn, 1_000)
    run = Run(conn, clock, room_for(4))
    await run.until(60)
    assert run.served >= 0.8 * 4 * 60
    assert len(run.calls) <= 4 * run.served
    assert await failures(conn) == 0


async def test_interrupted_answers_of_a_provider_that_is_half_up_fail_no_job(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """D4: three attempts each, of which chance alone would use up half."""
    await submitted(conn, 100, attempts=3, delay_seconds=5)
    run = Run(conn, clock, half_up(failure="interrupted"), seed=5)
    await run.until(120)
    assert run.served >= 60
    lost = await conn.fetchval("select count(*) from penstock.finished where status = 'failed'")
    assert lost <= 1


async def test_operators_see_how_much_is_refused(conn: asyncpg.Connection, clock: Clock) -> None:
    """D4"""
    await submitted(conn, 400)
    run = Run(conn, clock, half_up(0.4))
    while (await circuit(conn))["state"] != "ramping":
        await run.until(run.now + 1)
    row = await circuit(conn)
    [shown] = [row["job"] for row in await conn.fetch("select * from penstock.list_queues() job")]
    shown_circuit = shown["circuit"]
    assert shown_circuit["allowed"] == row["allowed"]
    assert shown_circuit["refused"] == pytest.approx(row["refused"], abs=0.006)
    assert f"at most {row['allowed']} of 8 run at once" in shown_circuit["message"]
    assert "of its calls" in shown_circuit["message"]
