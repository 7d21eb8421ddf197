"""Queues over HTTP: limits and what waits; paused, resumed and changed while they run."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, RootModel

from penstock.engine.options.option import editable
from penstock.engine.options.queue import QUEUE
from penstock.http.auth.caller import Operator, Service
from penstock.http.backend import Backend
from penstock.http.routing import Routes
from penstock.http.schemas.answers import Answer
from penstock.http.schemas.body import Body, Strict
from penstock.http.schemas.options import with_options

routes = Routes("queues")

Found = dict[str, Any]


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


class QueuePage(Answer):
    items: list[Queue]
    next_cursor: str | None


@routes.add("GET", "/v1/queues", summary="List queues by name", answer=QueuePage)
async def list_queues(_: Service, backend: Backend) -> Found:
    """All of them on one page: an app declares few."""
    return {"items": await backend.engine.lists.queues(), "next_cursor": None}


@routes.add("GET", "/v1/queues/{name}", summary="Show a queue", answer=Queue)
async def read(name: str, _: Service, backend: Backend) -> Found:
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
) -> Found:
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
async def reset(name: str, _: Operator, backend: Backend) -> Found:
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
) -> Found:
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
) -> Found:
    await backend.engine.queues.resume(name)
    return await _changed(backend, name)


async def _changed(backend: Backend, name: str) -> Found:
    """More of its jobs may start now: workers that rest look again."""
    await backend.engine.jobs.wake([name])
    return await _shown(backend, name)


async def _shown(backend: Backend, name: str) -> Found:
    [found] = await backend.engine.lists.queues(name)
    return found
