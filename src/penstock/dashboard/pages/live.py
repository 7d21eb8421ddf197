"""`/live`: tells an open page that something has changed, so that it looks again."""

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.dashboard.frame import ROUTES, backend, outside
from penstock.dashboard.session import signed_in
from penstock.http.middleware.limits import limits
from penstock.http.routes.stream import EventStream


async def live(request: Request) -> Response:
    """Not a page: whoever is not signed in any more is told so, and not led to a form."""
    session = await signed_in(request)
    if session is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)  # an EventSource does not come back
    hub = backend(request).live
    limits(request).hold_page(request.scope, session.id)
    who = {"key": session.key, "expires": session.expires, "grant": session.grant}
    return EventStream(lambda: hub.watch_anything(**who))


ROUTES.append(Route("/live", outside(live), methods=["GET"], name="live"))
