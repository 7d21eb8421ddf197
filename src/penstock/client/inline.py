"""Jobs that run in the process that submits them: the queue turned off, by a switch.

Validation, row, limits and history are the same; only who runs the job differs. The caller gets his
ticket when the start has ended. What is submitted within the caller's own transaction cannot run
before it commits, so it runs in the background, once the job is there to be seen.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from penstock.client.batch import BatchTicket
from penstock.client.run_jobs import run_jobs
from penstock.client.ticket import Ticket
from penstock.errors import NotFound

if TYPE_CHECKING:
    from penstock.client.kind import Kind

# For the caller's transaction to commit; rolled back or later than this, nobody runs the job here.
COMMIT_SECONDS = 60.0
LOOK_SECONDS = 0.05


_inside: ContextVar[bool] = ContextVar("penstock_inline", default=False)


async def run_here(kind: "Kind[..., Any]", tickets: Sequence[Ticket]) -> None:
    """Run these jobs, one after the other, each to the end of its start.

    What such a job submits in turn runs beside it: it may want the slot that its parent has.
    """
    if _inside.get():
        kind.app.in_background(_run_all(kind, tickets))
    else:
        await _run_all(kind, tickets)


async def _run_all(kind: "Kind[..., Any]", tickets: Sequence[Ticket]) -> None:
    token = _inside.set(True)
    try:
        for ticket in each(tickets):
            if not ticket.deduplicated and not ticket.replayed:
                await _run(kind, ticket)
    finally:
        _inside.reset(token)


async def run_when_committed(kind: "Kind[..., Any]", tickets: Sequence[Ticket]) -> None:
    """The same as soon as the caller's transaction has committed."""
    for ticket in each(tickets):
        if await is_committed(ticket):
            await _run_all(kind, [ticket])


def each(tickets: Sequence[Ticket]) -> Iterator[Ticket]:
    """One for each job."""
    for ticket in tickets:
        yield from ticket.tickets if isinstance(ticket, BatchTicket) else (ticket,)


async def _run(kind: "Kind[..., Any]", ticket: Ticket) -> None:
    app = kind.app
    await run_jobs(
        await app.dsn(),
        {kind.name: kind.handler},
        name=f"{app.settings.worker_id} inline",
        tracebacks=app.settings.tracebacks,
        job=ticket.id,
    )


async def is_committed(ticket: Ticket) -> bool:
    """Wait until the transaction that submitted it has committed; False: it has not, for long."""
    try:
        async with asyncio.timeout(COMMIT_SECONDS):
            while True:
                try:
                    await ticket.status()
                except NotFound:
                    await asyncio.sleep(LOOK_SECONDS)
                else:
                    return True
    except TimeoutError:
        return False
