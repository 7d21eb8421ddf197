"""The calls that come most, answered in front of the framework: a submit, a look at a job.

Its router, its stacks for what routes depend on and its handling of errors took as long as the call
itself (2026-11). What is around them stays around these: counts, log, CORS, and that watchers are
told. The document is made of the declared functions, and they answer where an app mounts this one.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

Call = Callable[[Request], Coroutine[Any, Any, Response]]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Response]])
# What is not as long as an id is left to the framework.
_ID_LENGTH = 36


def directly(call: Call) -> Callable[[Endpoint], Endpoint]:
    """`call` finds the arguments of the route by itself; below `@router.get(...)`."""

    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.direct = call  # type: ignore[attr-defined]
        return endpoint

    return mark


class Front:
    """Pure ASGI, around the framework and within all else.

    `handlers`: what the framework calls for errors, by their class.
    """

    def __init__(
        self, app: ASGIApp, routes: Sequence[BaseRoute], handlers: Mapping[Any, Any]
    ) -> None:
        self._app = app
        # Errors that nobody expected go on to what is around everything.
        self._handlers = {
            kind: handler for kind, handler in handlers.items() if kind is not Exception
        }
        self._routes: dict[tuple[str, str], tuple[Route, Call, str | None]] = {}
        for route in routes:
            call = getattr(getattr(route, "endpoint", None), "direct", None)
            if call is not None and isinstance(route, Route):
                path, brace, name = route.path.partition("/{")
                for method in route.methods or ():
                    named = name.removesuffix("}") if brace else None
                    self._routes[method, f"{path}/" if brace else path] = route, call, named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("root_path"):
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        last = path[-_ID_LENGTH:]
        found = self._routes.get((scope["method"], path))
        if found is None or found[2] is not None:
            found = self._routes.get((scope["method"], path[:-_ID_LENGTH]))
            if found is None or found[2] is None or "/" in last:
                await self._app(scope, receive, send)
                return
        route, call, named = found
        # As the router leaves it: counts, log and handlers ask for these.
        scope["route"] = route
        scope["endpoint"] = route.endpoint
        scope["path_params"] = {} if named is None else {named: last}
        request = Request(scope, receive, send)
        try:
            response = await call(request)
        except Exception as error:
            handler = self._handler(error)
            if handler is None:
                raise
            response = await handler(request, error)
        await response(scope, receive, send)

    def _handler(self, error: Exception) -> Callable[..., Awaitable[Response]] | None:
        for kind in type(error).__mro__:
            if kind in self._handlers:
                found: Callable[..., Awaitable[Response]] = self._handlers[kind]
                return found
        return None
