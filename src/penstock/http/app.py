"""The API as an ASGI app: its routes, its error handlers and its middleware."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette import routing
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from penstock.base.settings import Settings
from penstock.http.middleware import limits, problems, requests
from penstock.http.routes import (
    accounts,
    batches,
    callbacks,
    jobs,
    keys,
    openapi,
    operations,
    queues,
    stream,
    uploads,
    webhooks,
)
from penstock.http.routing import Route

# Matched in this order, so the routes with the most requests come first.
ROUTES: tuple[Route, ...] = (
    *jobs.routes,
    *stream.routes,
    *batches.routes,
    *keys.routes,
    *uploads.routes,
    *accounts.routes,
    *queues.routes,
    *operations.routes,
    *openapi.routes,
    *callbacks.routes,
    *webhooks.routes,
)

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def create(settings: Settings, lifespan: Lifespan) -> Starlette:
    """Create the app; `lifespan` sets `app.state.backend` before the first request.

    `lifespan` also closes what it opened.
    """
    counts = requests.Counts()
    app = Starlette(
        routes=[*ROUTES, routing.Route("/openapi.json", openapi.document)],
        # The first one wraps all others.
        middleware=[
            Middleware(requests.Requests, counts=counts),
            *([_cors(settings.origins)] if settings.origins else ()),
            Middleware(requests.LargeAnswers),
        ],
        exception_handlers=problems.HANDLERS,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.requests = counts
    app.state.limits = limits.Limits(settings)
    return app


def _cors(origins: tuple[str, ...]) -> Middleware:
    """Allow pages of these origins to call the API and to read its answers."""
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
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
