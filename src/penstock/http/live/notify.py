"""Calls that may have changed something are told to who watches, here and at other servers."""

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.http.live.hub import Hub

_ONLY_READ = frozenset({"GET", "HEAD", "OPTIONS"})


class Telling:
    """Pure ASGI, around all routes: none of them has to think of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
        if scope["type"] == "http" and scope["method"] not in _ONLY_READ:
            live: Hub = scope["app"].state.backend.live
            live.notify()
