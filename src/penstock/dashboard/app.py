"""The dashboard as routes of the API's app: its pages, its files, its pulse, its "not there"."""

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

# Where programs talk: their errors are problems, whatever they say they accept.
_PROGRAMS = ("v1/", "openapi.json", "metrics", "healthz", "readyz")
# Asked again after that, and answered with 304 while nothing has changed.
_FRESH_SECONDS = 300


class Static(StaticFiles):
    """The files of the pages, and `penstock.js` for the pages of others."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = f"public, max-age={_FRESH_SECONDS}"
        # A module of another origin loads only with this; there is nothing secret in it.
        response.headers["Access-Control-Allow-Origin"] = "*"
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        return response


def install(app: Starlette) -> None:
    """After the API's own routes: theirs are asked for more often."""
    files = Static(directory=Path(__file__).with_name("static"))
    app.router.routes += [
        *ROUTES,
        Route("/live", with_headers(_live), methods=["GET"], name="live"),
        Route("/ai-queue", with_headers(_jobs), methods=["GET"]),
        Mount("/static", files, name="static"),
    ]
    app.add_exception_handler(HTTPException, _not_there)


async def _live(request: Request) -> Response:
    """Signals an open page that something has changed, so that it asks for itself again.

    Not a page: whoever is not signed in any more is refused, and not led to a form.
    """
    session = await signed_in(request)
    if session is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)  # an EventSource does not come back
    hub = backend(request).live
    limits(request).hold_page(request.scope, session.id)
    who = {"key": session.key, "expires": session.expires, "grant": Grant(session=session.id)}
    return EventStream(lambda: hub.watch_anything(**who))


async def _jobs(request: Request) -> Response:
    """What the first of the five source systems called its page."""
    return go(request, "jobs")


async def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for it
    is_file = isinstance(request.scope.get("endpoint"), Static)
    is_page = "text/html" in request.headers.get("accept", "") and not is_file
    if not is_page or here(request).startswith(_PROGRAMS):
        return await problems.on_http(request, error)

    async def show(request: Request) -> Response:
        request.state.session = await signed_in(request)
        return render(request, "errors/not_there.html", status=error.status_code)

    return await with_headers(show)(request)
