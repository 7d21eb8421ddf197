"""The dashboard as routes of the API's app: its pages, its files, its way of saying "not there"."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from penstock.dashboard.files import Static
from penstock.dashboard.frame import ROUTES, go, here, outside, render
from penstock.dashboard.pages import live, login, overview  # noqa: F401
from penstock.dashboard.pages.accounts import (  # noqa: F401
    account,
    accounts,
    credits,  # noqa: A004
    erasure,
    keys,
    ledger,
    plans,
)
from penstock.dashboard.pages.jobs import batch, bulk, job, jobs  # noqa: F401
from penstock.dashboard.pages.queues import queue, queues, stuck, workers  # noqa: F401
from penstock.dashboard.session import signed_in
from penstock.http.middleware import problems

# Where programs talk: their errors are problems, whatever they say they accept.
_PROGRAMS = ("v1/", "openapi.json", "metrics", "healthz", "readyz")


def install(app: Starlette) -> None:
    """After the API's own routes: theirs are asked for more often."""
    app.router.routes.extend(ROUTES)
    app.router.routes.append(Route("/ai-queue", outside(_jobs), methods=["GET"]))
    app.router.routes.append(Mount("/static", Static(), name="static"))
    app.add_exception_handler(HTTPException, _not_there)


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

    return await outside(show)(request)
