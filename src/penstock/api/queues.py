"""Queues over HTTP: limits and what waits; paused, resumed and changed while they run."""

import json
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Response
from pydantic import ConfigDict, Field, RootModel

from penstock.api import problems
from penstock.api.answers import Answer
from penstock.api.auth import Principal, allowed
from penstock.api.backend import Backend, backend
from penstock.api.body import Body, Strict, documented
from penstock.api.headers import JSON

router = APIRouter(prefix="/v1/queues", tags=["queues"])

Reader = Annotated[Principal, Depends(allowed("admin", "app"))]
Operator = Annotated[Principal, Depends(allowed("admin"))]
Behind = Annotated[Backend, Depends(backend)]

_WRITES = (401, 403, 404, 409, 413, 422, 429, 503)


class Pause(Strict):
    reason: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Why, for those who see it."""


class Anything(RootModel[dict[str, Any]]):
    """Options by name: the database knows them all, and says which one is wrong."""


class QueueOptions(Strict):
    """What may be changed while the queue runs; null goes back to what is declared."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"concurrency": 4, "rate": "500/min"}, {"rate": None}]}
    )

    concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    rate: str | None = None
    burst: Annotated[int, Field(ge=1)] | None = None
    order: Literal["strict", "aging", "fair"] | None = None
    aging_step_seconds: Annotated[float, Field(ge=0)] | None = None
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    stale_after_seconds: Annotated[float, Field(gt=0)] | None = None
    stuck_after_seconds: Annotated[float, Field(gt=0)] | None = None
    attempts: Annotated[int, Field(ge=1, le=1000)] | None = None
    backoff: Literal["constant", "linear", "exponential"] | None = None
    delay_seconds: Annotated[float, Field(ge=0)] | None = None
    backoff_max_seconds: Annotated[float, Field(ge=0)] | None = None
    recovery: Annotated[int, Field(ge=0, le=1000)] | None = None
    retention_seconds: Annotated[float, Field(gt=0)] | Literal["forever"] | None = None
    retention_failed_seconds: Annotated[float, Field(gt=0)] | Literal["forever"] | None = None


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


@router.get(
    "",
    summary="List queues by name",
    response_model=QueuePage,
    responses=problems.documented(401, 403, 429, 503),
)
async def list_queues(_: Reader, behind: Behind) -> Response:
    """All of them on one page: an app declares few."""
    return _json({"items": await behind.engine.lists.queues(), "next_cursor": None})


@router.get(
    "/{name}",
    summary="Show a queue",
    response_model=Queue,
    responses=problems.documented(401, 403, 404, 422, 429, 503),
)
async def read(name: str, _: Reader, behind: Behind) -> Response:
    return await _shown(behind, name)


@router.patch(
    "/{name}",
    summary="Change a queue's limits while it runs",
    description="Changes survive restarts, until `reset` drops them.",
    response_model=Queue,
    openapi_extra=documented(QueueOptions),
    responses=problems.documented(*_WRITES),
)
async def edit(
    name: str,
    _: Operator,
    behind: Behind,
    said: Annotated[Anything, Depends(Body(Anything, code="invalid_option"))],
) -> Response:
    await behind.engine.queues.edit(name, **said.root)
    return await _changed(behind, name)


@router.post(
    "/{name}/reset",
    summary="Drop what was changed at run time",
    response_model=Queue,
    responses=problems.documented(401, 403, 404, 409, 422, 429, 503),
)
async def reset(name: str, _: Operator, behind: Behind) -> Response:
    await behind.engine.queues.reset(name)
    return await _changed(behind, name)


@router.post(
    "/{name}/pause",
    summary="Start nothing more; what runs goes on",
    response_model=Queue,
    openapi_extra=documented(Pause, required=False),
    responses=problems.documented(*_WRITES),
)
async def pause(
    name: str,
    _: Operator,
    behind: Behind,
    said: Annotated[Pause, Depends(Body(Pause, empty=True))],
) -> Response:
    await behind.engine.queues.pause(name, reason=said.reason)
    return await _shown(behind, name)


@router.post(
    "/{name}/resume",
    summary="Let a paused queue go on",
    response_model=Queue,
    openapi_extra=documented(Pause, required=False),
    responses=problems.documented(*_WRITES),
)
async def resume(
    name: str,
    _: Operator,
    behind: Behind,
    __: Annotated[Pause, Depends(Body(Pause, empty=True))],
) -> Response:
    await behind.engine.queues.resume(name)
    return await _changed(behind, name)


async def _changed(behind: Backend, name: str) -> Response:
    """More of its jobs may start now: workers that rest look again."""
    await behind.engine.jobs.wake([name])
    return await _shown(behind, name)


async def _shown(behind: Backend, name: str) -> Response:
    [found] = await behind.engine.lists.queues(name)
    return _json(found)


def _json(found: dict[str, Any]) -> Response:
    return Response(json.dumps(found), media_type=JSON)
