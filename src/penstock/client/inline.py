"""Start jobs without a standing worker: run them in the submitting process, or call the API.

An inline job runs in the process that submits it. Validation, row, limits and history are those of
any other job. The caller gets the ticket after the attempt. A job that was submitted within the
caller's own transaction cannot run before the commit, so it runs in the background, once it can be
read.
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

# How long to wait for the commit of the caller's transaction. After a rollback, or a commit later
# than this, the job does not run here.
COMMIT_SECONDS = 60.0
_POLL_SECONDS = 0.05


_is_inside: ContextVar[bool] = ContextVar("penstock_inline", default=False)


async def start(kind: "Kind[..., Any]", tickets: Sequence[Ticket], *, is_committed: bool) -> None:
    """Start a call that drives the queue, or run the jobs to their end, one after the other.

    A job that such a job submits runs in the background: its parent may hold the slot it needs.
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
    """Yield one ticket for each job."""
    for ticket in tickets:
        yield from ticket.tickets if isinstance(ticket, BatchTicket) else (ticket,)


async def _is_committed(ticket: Ticket) -> bool:
    """Wait until the transaction that submitted it has committed; False after a time limit."""
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
    """Run due jobs until there are none, or only `job`; return the number of attempts."""
    # Imported here, since an app that only submits needs no worker.
    from penstock.worker.worker import Options, Worker

    options = Options(name=name, until_idle=True, job=job, webhooks=False, tracebacks=tracebacks)
    return (await Worker(dsn, handlers, options).run()).processed
