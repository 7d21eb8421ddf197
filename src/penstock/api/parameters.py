"""Query parameters that a route does not know are refused by name.

Ignored, a filter with a slip of the pen (`?stat=failed`) would list everything, and look right.
"""

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from penstock.errors import Invalid


def refuse_unknown(request: Request, *, tokens: bool) -> None:
    """Of a look that takes parameters; `tokens`: it may bring its token as one."""
    route = request.scope.get("route")
    if request.method != "GET" or not request.url.query or not isinstance(route, APIRoute):
        return
    known = list(_names(route.dependant))
    for name in request.query_params:
        if known and name not in known and not (tokens and name == "token"):
            raise Invalid(
                f"{name[:100]} is not a parameter here; known are {', '.join(known)}",
                code="invalid_request",
                field=name[:100],
            )


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for one in dependant.dependencies:
        yield from _names(one)
