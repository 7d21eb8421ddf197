"""Driving a queue by HTTP alone: a call works for a bounded time, and starts the next one."""

import asyncio
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request

from penstock.errors import Invalid
from penstock.http.auth.caller import Allowed, Principal, bearer
from penstock.http.backend import Backend, Worked
from penstock.http.routing import Routes
from penstock.http.schemas.body import Body, Strict
from penstock.net import drive_call

routes = Routes("queues", noun="process")

# Held while they run: a caller may leave, and the work goes on.
_working: set[asyncio.Task[Worked]] = set()


class Process(Strict):
    """How long to work, and on how much."""

    seconds: float = Field(45, ge=1, le=300, description="what runs then is given back")
    max_jobs: int | None = Field(None, ge=1, le=1_000_000)
    chain: bool | None = Field(
        None, description="start the next call while work is due; of a driven queue unless said"
    )


class Processed(Strict):
    """What a call has done."""

    processed: int = Field(description="starts that ended")
    given_back: int = Field(description="starts that were broken off, free of charge")
    remaining: int = Field(description="jobs that wait for a start")
    chained: bool = Field(description="whether the next call was started")
    busy: bool = Field(description="whether another call drives the queue; then nothing was done")


class Drivers(Allowed):
    """A key of kind process or admin, or the token that a chain brings for this queue."""

    async def __call__(self, request: Request) -> Principal:
        roots = request.app.state.backend.roots
        given = bearer(request)
        if given is not None and drive_call.is_token(roots, given, request.path_params["name"]):
            return Principal(who="process", holder="drive")
        return await super().__call__(request)


@routes.add(
    "POST",
    "/v1/queues/{name}/process",
    summary="Run what is due in a queue for a while",
    answer=Processed,
)
async def process(
    name: str,
    _: Annotated[Principal, Drivers("admin", "process")],
    form: Annotated[Process, Body(empty=True)],
    backend: Backend,
) -> dict[str, Any]:
    if form.chain and not backend.drives.knows_address:
        # Never the caller's Host: the next call carries a token that drives the queue.
        raise Invalid(
            "chain: this server does not know the address of the API, so it can call nobody",
            code="no_public_url",
            field="chain",
            hint="Set PENSTOCK_PUBLIC_URL, or leave chain out and call again while jobs remain.",
        )
    task = asyncio.ensure_future(backend.runner.work(name, form.seconds, form.max_jobs))
    _working.add(task)
    task.add_done_callback(_working.discard)
    worked = await asyncio.shield(task)
    # After it has let go of the queue: what was submitted until then is seen here, and what comes
    # later starts a call itself.
    state = await backend.engine.drive.state(name, backend.kinds.names())
    chained = False
    if not worked.busy and state.due and not state.held:
        chain = form.chain
        if chain is None:
            chain = await backend.engine.drive.is_driven(name)
        # A call that could not even end what it began: the next one could not either.
        if chain and (worked.processed or not worked.given_back):
            body: dict[str, object] = form.model_dump(exclude_none=True)
            chained = await backend.drives.call(name, body=body)
    return {
        "processed": worked.processed,
        "given_back": worked.given_back,
        "remaining": state.due,
        "chained": chained,
        "busy": worked.busy,
    }
