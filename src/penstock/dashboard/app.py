"""The dashboard's routes in the API's app: pages, static files, change events, the 404 page."""

from http import HTTPStatus
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from penstock.dashboard.frame import ROUTES, backend, go, here, render, with_headers
from penstock.dashboard.pages import (  # noqa: F401  # each registers its routes
    accounts,
    bulk,
    credits,  # noqa: A004
    job,
    jobs,
    login,
    overview,
    plans,
    queues,
    stuck,
    workers,
)
from penstock.dashboard.session import signed_in
from penstock.engine.accounts.sessions import Grant
from penstock.http.middleware import problems
from penstock.http.middleware.limits import limits
from penstock.http.routes.stream import EventStream

# Paths for programs. Their errors are problem documents, whatever the Accept header says.
_PROGRAMS = ("v1/", "openapi.json", "metrics", "healthz", "readyz")
# After this time browsers ask again, and get 304 while nothing has changed.
_FRESH_SECONDS = 300


class Static(StaticFiles):
    """The files of the dashboard's pages, and `penstock.js` for the pages of apps."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = f"public, max-age={_FRESH_SECONDS}"
        # A page of another origin can load a module only with this; the files hold no secret.
        response.headers["Access-Control-Allow-Origin"] = "*"
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        return response


def install(app: Starlette) -> None:
    """Add the dashboard's routes after the API's own, which are requested more often."""
    files = Static(directory=Path(__file__).with_name("static"))
    app.router.routes += [
        *ROUTES,
        Route("/live", with_headers(_live), methods=["GET"], name="live"),
        Route("/ai-queue", with_headers(_jobs), methods=["GET"]),
        Mount("/static", files, name="static"),
    ]
    app.add_exception_handler(HTTPException, _not_found)


async def _live(request: Request) -> Response:
    """Stream an event to an open page when something has changed, so that the page reloads.

    This is not a page: a session that is over gets 204, and no redirect to the sign-in form.
    """
    session = await signed_in(request)
    if session is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)  # an EventSource does not reconnect
    hub = backend(request).live
    limits(request).hold_page(request.scope, session.id)
    who = {"key": session.key, "expires": session.expires, "grant": Grant(session=session.id)}
    return EventStream(lambda: hub.watch_anything(**who))


async def _jobs(request: Request) -> Response:
    """Redirect from the name that the first of the five source systems gave its page."""
    return go(request, "jobs")


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for this class
    is_file = isinstance(request.scope.get("endpoint"), Static)
    is_page = "text/html" in request.headers.get("accept", "") and not is_file
    if not is_page or here(request).startswith(_PROGRAMS):
        return await problems.on_http(request, error)

    async def show(request: Request) -> Response:
        request.state.session = await signed_in(request)
        return render(request, "errors/not_found.html", status=error.status_code)

    return await with_headers(show)(request)
