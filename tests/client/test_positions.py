"""A submit returns the position in the queue, and the ETA."""

import asyncio
from typing import Any

import pytest

from penstock import Kind, Penstock
from penstock.engine.jobs.attempts import Succeeded


@pytest.fixture
def task(app: Penstock) -> Kind[..., Any]:
    app.queue("q", concurrency=1)

    @app.job(queue="q")
    def task(n: int) -> None: ...

    return task


async def test_a_ticket_has_position_and_eta(app: Penstock, task: Kind[..., Any]) -> None:
    """G9, F2"""
    first = await task.submit(n=0)
    assert (first.position, first.eta_seconds, first.balance) == (1, None, None)
    engine = await app.engine()
    worker = await engine.workers.register("w")
    [started] = await engine.jobs.claim(worker, "q", 1)
    await engine.jobs.finish(worker, [(started, Succeeded(None))])
    assert await engine.upkeep.measure_waits()
    tickets = [await task.submit(n=n) for n in range(3)]
    assert [ticket.position for ticket in tickets] == [1, 2, 3]
    waits = [ticket.eta_seconds for ticket in tickets]
    assert waits[0] == 0
    assert None not in waits
    job = await tickets[2].status()
    assert (job["position"], job["waiting_for"]) == (3, "queue_limit")


async def test_fifty_jobs_at_once_have_fifty_positions(task: Kind[..., Any]) -> None:
    """F2: no two have the same position, once all are submitted."""
    tickets = await asyncio.gather(*(task.submit(n=n) for n in range(50)))
    assert all(1 <= (ticket.position or 0) <= 50 for ticket in tickets)
    positions = [(await ticket.status())["position"] for ticket in tickets]
    assert sorted(positions) == list(range(1, 51))


async def test_a_repeated_submit_has_the_position_of_the_first(task: Kind[..., Any]) -> None:
    await task.submit(n=0)
    asked = task.using(idempotency_key="k")
    first, again = await asked.submit(n=1), await asked.submit(n=1)
    assert (first.position, again.position) == (2, 2)
    assert again.replayed


async def test_a_scheduled_job_has_no_position(task: Kind[..., Any]) -> None:
    assert (await task.using(delay="5m").submit(n=0)).position is None


async def test_a_bulk_submit_returns_no_positions(task: Kind[..., Any]) -> None:
    tickets = await task.submit_many({"n": n} for n in range(3))
    assert [(ticket.position, ticket.eta_seconds) for ticket in tickets] == [(None, None)] * 3
