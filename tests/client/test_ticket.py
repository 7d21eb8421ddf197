"""Tickets: waiting for a result, and a sentence if there is none."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock import (
    BatchTicket,
    Invalid,
    JobCancelled,
    JobFailed,
    Kind,
    NotFound,
    Penstock,
    Ticket,
)
from penstock.engine.jobs.attempts import Error, Failed, Outcome, Succeeded

End = Callable[[Outcome], Awaitable[None]]


@pytest.fixture
def task(app: Penstock) -> Kind[..., Any]:
    app.queue("q")

    @app.job(queue="q")
    def task(answer: str) -> None: ...

    return task


@pytest.fixture
def end(app: Penstock) -> End:
    """Run the queued jobs, as a worker would."""

    async def finish(outcome: Outcome) -> None:
        engine = await app.engine()
        worker = await engine.workers.register("w")
        started = await engine.jobs.claim(worker, "q", 10)
        await engine.jobs.finish(worker, [(job, outcome) for job in started])

    return finish


async def test_result_waits_until_the_job_has_finished(task: Kind[..., Any], end: End) -> None:
    ticket = await task.submit(answer="s")
    waiting = asyncio.create_task(ticket.result(timeout="1m"))
    await end(Succeeded({"score": 7}))
    assert await waiting == {"score": 7}
    assert await ticket.result() == {"score": 7}
    assert (await ticket.status())["status"] == "succeeded"


async def test_none_is_a_result_too(task: Kind[..., Any], end: End) -> None:
    ticket = await task.submit(answer="s")
    await end(Succeeded(None))
    assert await ticket.result() is None
    assert await ticket.result(timeout=0) is None


async def test_a_failure_is_raised_with_its_class(task: Kind[..., Any], end: End) -> None:
    ticket = await task.submit(answer="sesame")
    await end(Failed(Error("refused", "the model declined", retryable=False)))
    with pytest.raises(JobFailed, match=r"\(task\) failed: refused: the model declined") as caught:
        await ticket.result(timeout=5)
    error = caught.value
    assert (error.job_id, error.error_class, error.reason) == (ticket.id, "refused", None)
    assert "sesame" not in str(error)


async def test_a_cancelled_job_has_no_result(task: Kind[..., Any]) -> None:
    ticket = await task.submit(answer="s")
    assert (await ticket.cancel())["status"] == "cancelled"
    with pytest.raises(JobCancelled, match=r"job .* \(task\) was cancelled") as caught:
        await ticket.result()
    assert caught.value.job_id == ticket.id


async def test_after_the_timeout_the_job_goes_on(task: Kind[..., Any]) -> None:
    ticket = await task.submit(answer="s")
    with pytest.raises(TimeoutError, match=r"has not finished within 0.03 s; it goes on"):
        await ticket.result(timeout=0.03)
    assert (await ticket.status())["status"] == "queued"
    with pytest.raises(TimeoutError, match="within 0 s"):
        await ticket.result(timeout=0)
    with pytest.raises(Invalid, match="timeout is 'soon'"):
        await ticket.result(timeout="soon")


async def test_a_ticket_is_made_from_an_id(app: Penstock, task: Kind[..., Any]) -> None:
    ticket = await task.submit(answer="s")
    assert (await app.ticket(str(ticket.id)).status())["kind"] == "task"
    assert app.ticket(ticket.id) == Ticket(ticket.id, app=app)
    for wrong in ("", "5", None, 5):
        with pytest.raises(Invalid, match="id must be the id of a job"):
            app.ticket(wrong)  # type: ignore[arg-type]  # the point of the test


async def test_an_unknown_job_is_refused(app: Penstock) -> None:
    ticket = app.ticket(uuid4())
    for ask in (ticket.status, ticket.result, ticket.cancel):
        with pytest.raises(NotFound, match="there is no job"):
            await ask()


def test_the_repr_of_a_ticket_shows_its_values(app: Penstock) -> None:
    ticket = Ticket(UUID(int=5), "mark", deduplicated=True, app=app)
    assert "mark" in repr(ticket)
    assert "Penstock" not in repr(ticket)
    assert hash(ticket) == hash(Ticket(UUID(int=5), "mark", deduplicated=True, app=app))


def test_tickets_of_one_job_are_equal(app: Penstock) -> None:
    first, second = (Ticket(UUID(int=n), app=app) for n in (1, 2))
    whole = BatchTicket(UUID(int=1), app=app, tickets=(first, second))
    assert len({first, second, Ticket(UUID(int=1), app=app), whole}) == 3
