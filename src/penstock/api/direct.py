"""The routes that are called most, without the framework's way of finding what they depend on.

That took 60 of the 110 us of a look at a job, and as much of a submit (2026-11). The document and
the checks of types are made of the declared function all the same.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute

Call = Callable[[Request], Coroutine[Any, Any, Response]]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Response]])


class DirectRoute(APIRoute):
    """Calls what `directly` was told, where it was."""

    def get_route_handler(self) -> Call:
        found: Call | None = getattr(self.endpoint, "direct", None)
        return found or super().get_route_handler()


def directly(call: Call) -> Callable[[Endpoint], Endpoint]:
    """`call` finds the arguments of the route by itself; below `@router.get(...)`."""

    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.direct = call  # type: ignore[attr-defined]
        return endpoint

    return mark
