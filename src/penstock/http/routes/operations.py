"""Routes for operators: liveness, readiness, status, and metrics."""

import asyncio
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.db.schema import version
from penstock.engine.queries.lists import MOST_HOURS
from penstock.errors import PenstockError
from penstock.http.auth.caller import Operator, Service
from penstock.http.backend import Backend
from penstock.http.middleware import problems
from penstock.http.middleware.limits import limits
from penstock.http.routes import prometheus
from penstock.http.routing import Routes
from penstock.http.schemas.answers import Answer, Recovery

routes = Routes("operation", noun="ops")

# A load balancer asks every few seconds, and does not wait long.
READY_SECONDS = 3.0


class Alive(Answer):
    status: Literal["ok"]


class Stuck(Answer):
    """An attempt without progress, or a waiting job that was recovered from such an attempt.

    `class` says what is wrong: stalled, no_callback, worker_lost, …
    """

    model_config = ConfigDict(extra="allow", json_schema_extra={"required": ["id", "class"]})

    id: UUID
    kind: str | None
    stage: str | None
    since: datetime
    recovery: Recovery


class WorkerHealth(Answer):
    worker_id: str
    last_heartbeat: datetime
    running: int
    alive: bool


class Status(Answer):
    """Counts, queues and workers.

    Averages are of the last thousand jobs; a day begins at midnight UTC.
    """

    pending: int
    processing: int
    failed_today: int
    avg_processing_seconds: float | None
    avg_turnaround_seconds: float | None
    queues: list[dict[str, Any]]
    stuck: list[Stuck]
    workers: list[WorkerHealth]


class Timeouts(Answer):
    """Failed attempts and jobs of one `class` in one hour."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"required": ["hour", "class"]})

    hour: datetime
    count: int
    total_duration_ms: int


class Throughput(Answer):
    """Finished jobs (succeeded, failed, cancelled), and attempts whose job did not finish."""

    hour: datetime
    queue: str | None
    kind: str | None
    outcome: str
    count: int
    total_duration_ms: int


class Metrics(Answer):
    timeouts: list[Timeouts]
    throughput: list[Throughput]


@routes.add("GET", "/healthz", summary="Check that the process is alive", answer=Alive)
async def live() -> dict[str, str]:
    return {"status": "ok"}


@routes.add(
    "GET",
    "/readyz",
    summary="Check that the server is ready: the database is reachable, with a matching schema",
    answer=Alive,
)
async def ready(backend: Backend) -> dict[str, str] | Response:
    try:
        async with asyncio.timeout(READY_SECONDS), backend.engine.transaction() as conn:
            await version.require_served(conn)
    except (PenstockError, TimeoutError) as error:
        detail = str(error) or "the database does not answer"
        headers = {"Retry-After": str(problems.RETRY_SECONDS)}
        return problems.problem(503, "not_ready", detail, headers=headers)
    return {"status": "ok"}


@routes.add("GET", "/v1/admin/status", summary="Read counts, workers and stuck jobs", answer=Status)
async def status(_: Operator, backend: Backend) -> dict[str, Any]:
    return await backend.engine.hourly.status()


@routes.add(
    "GET",
    "/v1/admin/metrics",
    summary="Read failures by class, and outcomes by queue and kind, for each hour",
    answer=Metrics,
)
async def metrics(
    _: Operator,
    backend: Backend,
    hours: Annotated[int, Field(ge=1, le=MOST_HOURS, description="How many hours back.")] = 24,
) -> dict[str, Any]:
    return await backend.engine.hourly.metrics(hours)


@routes.add(
    "GET",
    "/metrics",
    summary="Read metrics in the text format of Prometheus",
    responses={
        200: {
            "description": "Successful Response",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
    },
)
async def scrape(
    request: Request,
    _: Service,
    backend: Backend,
) -> Response:
    # Without a worker, nothing else rolls up the counts. With one, this call finds nothing to do.
    await backend.engine.upkeep.roll_up()
    gauges = await backend.engine.hourly.gauges()
    text = prometheus.render(
        gauges,
        request.app.state.requests,
        backend.live.count(),
        limits(request).pools,
    )
    return Response(text, media_type=prometheus.MEDIA_TYPE)
