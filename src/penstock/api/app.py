"""The API as an ASGI app: its routers, its errors, its OpenAPI document."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware

from penstock.api import (
    accounts,
    batches,
    callbacks,
    docs,
    front,
    issuing,
    jobs,
    keys,
    limits,
    ops,
    problems,
    process,
    queues,
    requests,
    sending,
    stream,
    telling,
    uploads,
    webhooks,
)
from penstock.api.openapi import describe
from penstock.settings import Settings

# One router per noun; each is written in the module of that name.
ROUTERS: tuple[APIRouter, ...] = (
    jobs.router,
    stream.router,
    batches.router,
    issuing.router,
    keys.router,
    process.router,
    uploads.router,
    accounts.router,
    queues.router,
    ops.router,
    docs.router,
    callbacks.router,
    webhooks.router,
)

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create(settings: Settings, lifespan: Lifespan) -> FastAPI:
    """`lifespan` sets `app.state.backend` before the first request, and closes what it opened."""
    app = FastAPI(
        title="Penstock",
        summary="The durable queue for AI work",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        # Its spans would carry paths and queries, and so accounts and tokens; and to ask whether
        # anybody wants them takes longer than our own counts.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    problems.install(app)
    for router in ROUTERS:
        # Their routes themselves: nothing is to be added to them, and one list is looked through
        # faster than lists in a list.
        app.router.routes.extend(router.routes)
    app.add_middleware(front.Front, routes=app.router.routes, handlers=app.exception_handlers)
    app.add_middleware(sending.Sending)
    app.add_middleware(telling.Telling)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=[
                "Authorization",
                "Content-Type",
                "Idempotency-Key",
                "Last-Event-ID",
                "Prefer",
                "If-None-Match",
            ],
            expose_headers=[
                "Idempotent-Replayed",
                "Location",
                "Preference-Applied",
                "Retry-After",
                "ETag",
                "X-Request-ID",
            ],
            max_age=600,
        )
    app.state.requests = requests.Counts()
    app.state.limits = limits.Limits(settings)
    app.add_middleware(requests.Requests, counts=app.state.requests)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    return app
