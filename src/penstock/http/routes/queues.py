"""Queues over HTTP: limits and what waits; paused, resumed and changed while they run."""

import asyncio
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, RootModel
from starlette.requests import Request

from penstock.engine.options.option import editable
from penstock.engine.options.queue import QUEUE
from penstock.errors import Invalid
from penstock.http.auth.caller import Allowed, Operator, Principal, Service, bearer
from penstock.http.backend import Backend, Worked
from penstock.http.routing import Body, Routes, Strict
from penstock.http.schemas.answers import Answer, page_of
from penstock.http.schemas.forms import with_options
from penstock.net import drive_call

routes = Routes("queues")

Row = dict[str, Any]


class Pause(Strict):
    reason: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Why, for those who see it."""


class Anything(RootModel[dict[str, Any]]):
    """Options by name: the database knows them all, and says which one is wrong."""


class _QueueOptions(Strict):
    """What may be changed while the queue runs; null goes back to what is declared."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"concurrency": 4, "rate": "500/min"}, {"rate": None}]}
    )


QueueOptions = with_options("QueueOptions", _QueueOptions, editable(QUEUE))


class Circuit(Answer):
    """Whether the provider behind the queue answers."""

    state: Literal["closed", "open", "ramping"]
    since: datetime | None
    next_probe_at: datetime | None
    failed_probes: int
    allowed: int | None
    refused: float
    message: str | None


class Queue(Answer):
    """A queue with the limits that are in force; `overrides` are those changed at run time."""

    name: str
    concurrency: int | None
    rate: str | None
    order: str
    timeout_seconds: float
    attempts: int
    paused: bool
    paused_at: datetime | None
    paused_reason: str | None
    circuit: Circuit
    scheduled: int
    queued: int
    running: int
    awaiting: int
    oldest_queued_at: datetime | None
    overrides: dict[str, Any]
    declared_by: str | None
    drive: Literal["worker", "http"]
    workers: int


QueuePage = page_of("QueuePage", Queue)


@routes.add("GET", "/v1/queues", summary="List queues by name", answer=QueuePage)
async def list_queues(_: Service, backend: Backend) -> Row:
    """All of them on one page: an app declares few."""
    return {"items": await backend.engine.lists.queues(), "next_cursor": None}


@routes.add("GET", "/v1/queues/{name}", summary="Show a queue", answer=Queue)
async def read(name: str, _: Service, backend: Backend) -> Row:
    return await _shown(backend, name)


@routes.add(
    "PATCH",
    "/v1/queues/{name}",
    summary="Change a queue's limits while it runs",
    answer=Queue,
    refuses=(409,),
)
async def edit(
    name: str,
    _: Operator,
    backend: Backend,
    form: Annotated[Anything, Body(code="invalid_option", shown=QueueOptions)],
) -> Row:
    """Changes survive restarts, until `reset` drops them."""
    await backend.engine.queues.edit(name, **form.root)
    return await _changed(backend, name)


@routes.add(
    "POST",
    "/v1/queues/{name}/reset",
    summary="Drop what was changed at run time",
    answer=Queue,
    refuses=(409,),
)
async def reset(name: str, _: Operator, backend: Backend) -> Row:
    await backend.engine.queues.reset(name)
    return await _changed(backend, name)


@routes.add(
    "POST",
    "/v1/queues/{name}/pause",
    summary="Start nothing more; what runs goes on",
    answer=Queue,
    refuses=(409,),
)
async def pause(
    name: str,
    _: Operator,
    backend: Backend,
    form: Annotated[Pause, Body(empty=True)],
) -> Row:
    await backend.engine.queues.pause(name, reason=form.reason)
    return await _shown(backend, name)


@routes.add(
    "POST",
    "/v1/queues/{name}/resume",
    summary="Let a paused queue go on",
    answer=Queue,
    refuses=(409,),
)
async def resume(
    name: str,
    _: Operator,
    backend: Backend,
    __: Annotated[Pause, Body(empty=True)],
) -> Row:
    await backend.engine.queues.resume(name)
    return await _changed(backend, name)


async def _changed(backend: Backend, name: str) -> Row:
    """More of its jobs may start now: workers that rest look again."""
    await backend.engine.jobs.wake([name])
    return await _shown(backend, name)


async def _shown(backend: Backend, name: str) -> Row:
    [queue] = await backend.engine.lists.queues(name)
    return queue


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
        credential = bearer(request)
        if credential is not None and drive_call.is_token(
            roots, credential, request.path_params["name"]
        ):
            return Principal(who="process", holder="drive")
        return await super().__call__(request)


@routes.add(
    "POST",
    "/v1/queues/{name}/process",
    operation="process_process",
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
        if chain and (worked.processed or not worked.released):
            body: dict[str, object] = form.model_dump(exclude_none=True)
            chained = await backend.drives.call(name, body=body)
    return {
        "processed": worked.processed,
        "given_back": worked.released,
        "remaining": state.due,
        "chained": chained,
        "busy": worked.busy,
    }
