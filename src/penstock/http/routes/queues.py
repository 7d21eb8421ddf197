"""Queues over HTTP: read limits and counts; pause, resume, change and drive queues."""

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
    """The reason that is shown with the paused queue."""


class Anything(RootModel[dict[str, Any]]):
    """Options by name: the database validates them, and reports which one is wrong."""


class _QueueOptions(Strict):
    """Options that may be changed at run time; null restores the declared value."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"concurrency": 4, "rate": "500/min"}, {"rate": None}]}
    )


QueueOptions = with_options("QueueOptions", _QueueOptions, editable(QUEUE))


class Circuit(Answer):
    """The state of the queue towards its provider."""

    state: Literal["closed", "open", "ramping"]
    since: datetime | None
    next_probe_at: datetime | None
    failed_probes: int
    allowed: int | None
    refused: float
    message: str | None


class Queue(Answer):
    """A queue with its current limits; `overrides` are the options changed at run time."""

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
    """All queues are on one page, since an app declares few."""
    return {"items": await backend.engine.lists.queues(), "next_cursor": None}


@routes.add("GET", "/v1/queues/{name}", summary="Read a queue", answer=Queue)
async def read(name: str, _: Service, backend: Backend) -> Row:
    return await _shown(backend, name)


@routes.add(
    "PATCH",
    "/v1/queues/{name}",
    summary="Change a queue's options at run time",
    answer=Queue,
    refuses=(409,),
)
async def edit(
    name: str,
    _: Operator,
    backend: Backend,
    form: Annotated[Anything, Body(code="invalid_option", shown=QueueOptions)],
) -> Row:
    """Changes survive restarts, until `reset` removes them."""
    await backend.engine.queues.edit(name, **form.root)
    return await _changed(backend, name)


@routes.add(
    "POST",
    "/v1/queues/{name}/reset",
    summary="Restore a queue's declared options",
    answer=Queue,
    refuses=(409,),
)
async def reset(name: str, _: Operator, backend: Backend) -> Row:
    await backend.engine.queues.reset(name)
    return await _changed(backend, name)


@routes.add(
    "POST",
    "/v1/queues/{name}/pause",
    summary="Pause a queue: no more jobs start, and running jobs continue",
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
    summary="Resume a paused queue",
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
    """Wake idle workers, as more jobs of the queue may start now; return the queue."""
    await backend.engine.jobs.wake([name])
    return await _shown(backend, name)


async def _shown(backend: Backend, name: str) -> Row:
    [queue] = await backend.engine.lists.queues(name)
    return queue


# Referenced here while they run: the work continues when the caller disconnects.
_working: set[asyncio.Task[Worked]] = set()


class Process(Strict):
    """How long to work, and how many jobs to run."""

    seconds: float = Field(45, ge=1, le=300, description="after this, running jobs are released")
    max_jobs: int | None = Field(None, ge=1, le=1_000_000)
    chain: bool | None = Field(
        None, description="start the next call while jobs are due; by default of a driven queue"
    )


class Processed(Strict):
    """The result of a call."""

    processed: int = Field(description="settled attempts")
    given_back: int = Field(description="attempts that were released, without a failure")
    remaining: int = Field(description="due jobs that wait for an attempt")
    chained: bool = Field(description="whether the next call was started")
    busy: bool = Field(description="another call drives the queue, so this one did nothing")


class Drivers(Allowed):
    """A key of kind process or admin, or a chained call's token for this queue."""

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
    summary="Run due jobs of a queue for a bounded time",
    answer=Processed,
)
async def process(
    name: str,
    _: Annotated[Principal, Drivers("admin", "process")],
    form: Annotated[Process, Body(empty=True)],
    backend: Backend,
) -> dict[str, Any]:
    if form.chain and not backend.drives.knows_address:
        # Never the caller's Host: the next call sends a token that may drive the queue.
        raise Invalid(
            "chain: this server does not know the address of the API for the next call",
            code="no_public_url",
            field="chain",
            hint="Set PENSTOCK_PUBLIC_URL, or leave chain out and call again while jobs remain.",
        )
    task = asyncio.ensure_future(backend.runner.work(name, form.seconds, form.max_jobs))
    _working.add(task)
    task.add_done_callback(_working.discard)
    worked = await asyncio.shield(task)
    # Read after the queue was released: jobs that were submitted before are counted here, and a
    # later submit starts a call itself.
    state = await backend.engine.drive.state(name, backend.kinds.names())
    chained = False
    if not worked.busy and state.due and not state.held:
        chain = form.chain
        if chain is None:
            chain = await backend.engine.drive.is_driven(name)
        # Not after a call in which no attempt finished in time: the next one would not either.
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
