"""Jobs that no standing worker runs: run in the process that submits them, or driven by calls.

Inline, the queue is turned off by a switch. Validation, row, limits and history are the same; only
who runs the job differs. The caller gets the ticket when the attempt has ended. What is submitted
within the caller's own transaction cannot run before it commits, so it runs in the background, once
the job can be read.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.client.tickets import BatchTicket, Ticket
from penstock.errors import NotFound
from penstock.models.handlers.handler import Handler

if TYPE_CHECKING:
    from penstock.client.kind import Kind

# For the caller's transaction to commit; rolled back or later than this, nobody runs the job here.
COMMIT_SECONDS = 60.0
_POLL_SECONDS = 0.05


_is_inside: ContextVar[bool] = ContextVar("penstock_inline", default=False)


async def start(kind: "Kind[..., Any]", tickets: Sequence[Ticket], *, is_committed: bool) -> None:
    """Begin a call that drives the queue, or run the jobs one after the other, to the end of each.

    What such a job submits in turn runs beside it: it may want the slot that its parent has.
    """
    app = kind.app
    if not is_committed:
        app.in_background(_start_when_committed(kind, tickets))
    elif kind.driven:
        app.drive(kind.queue)
    elif kind.inline and _is_inside.get():
        app.in_background(_run_all(kind, tickets))
    elif kind.inline:
        await _run_all(kind, tickets)


async def _start_when_committed(kind: "Kind[..., Any]", tickets: Sequence[Ticket]) -> None:
    jobs = list(_jobs_of(tickets))
    for ticket in jobs[:1] if kind.driven else jobs:  # a call drives the whole queue
        if await _is_committed(ticket):
            await start(kind, [ticket], is_committed=True)


async def _run_all(kind: "Kind[..., Any]", tickets: Sequence[Ticket]) -> None:
    app = kind.app
    token = _is_inside.set(True)
    try:
        for ticket in _jobs_of(tickets):
            if not ticket.deduplicated and not ticket.replayed:
                await run_jobs(
                    await app.dsn(),
                    {kind.name: kind.handler},
                    name=f"{app.settings.worker_id} inline",
                    tracebacks=app.settings.tracebacks,
                    job=ticket.id,
                )
    finally:
        _is_inside.reset(token)


def _jobs_of(tickets: Sequence[Ticket]) -> Iterator[Ticket]:
    """One for each job."""
    for ticket in tickets:
        yield from ticket.tickets if isinstance(ticket, BatchTicket) else (ticket,)


async def _is_committed(ticket: Ticket) -> bool:
    """Wait until the transaction that submitted it has committed; False: it has not, for long."""
    try:
        async with asyncio.timeout(COMMIT_SECONDS):
            while True:
                try:
                    await ticket.status()
                except NotFound:
                    await asyncio.sleep(_POLL_SECONDS)
                else:
                    return True
    except TimeoutError:
        return False


async def run_jobs(
    dsn: str,
    handlers: Mapping[str, Handler],
    *,
    name: str,
    tracebacks: bool,
    job: UUID | None = None,
) -> int:
    """Run what is due until there is nothing, or only `job`; how many attempts there were."""
    # Here, since an app that only submits needs no worker.
    from penstock.worker.worker import Options, Worker

    options = Options(name=name, until_idle=True, job=job, webhooks=False, tracebacks=tracebacks)
    return (await Worker(dsn, handlers, options).run()).processed
