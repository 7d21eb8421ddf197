"""Jobs that run in the process that submits them: the queue turned off, by a switch.

Validation, row, limits and history are the same; only who runs the job differs. The caller gets his
ticket when the start has ended. What is submitted within the caller's own transaction cannot run
before it commits, so it runs in the background, once the job is there to be seen.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.app.ticket import Ticket
from penstock.errors import NotFound
from penstock.worker.worker import Options, Worker

if TYPE_CHECKING:
    from penstock.app.kind import Kind

# For the caller's transaction to commit; rolled back or later than this, nobody runs the job here.
COMMIT_SECONDS = 60.0
LOOK_SECONDS = 0.05


async def run_here(kind: "Kind[..., Any]", tickets: Sequence[Ticket]) -> None:
    """Run these jobs, one after the other, each to the end of its start."""
    for ticket in tickets:
        if not ticket.deduplicated and not ticket.replayed:
            await _run(kind, ticket)


async def run_when_committed(kind: "Kind[..., Any]", tickets: Sequence[Ticket]) -> None:
    """The same as soon as the caller's transaction has committed."""
    for ticket in tickets:
        if await _is_there(ticket):
            await run_here(kind, [ticket])


async def _run(kind: "Kind[..., Any]", ticket: Ticket) -> None:
    app = kind.app
    options = Options(
        name=f"{app.settings.worker_id} inline",
        queues=(kind.queue,),
        until_idle=True,
        job=ticket.id,
    )
    await Worker(await app.dsn(), {kind.name: kind.handler}, options).run()


async def _is_there(ticket: Ticket) -> bool:
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
