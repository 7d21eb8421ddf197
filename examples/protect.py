"""Middleware: answers unexpected errors, and adds a content security policy to pages.

It is plain ASGI, because the usual middleware classes would buffer live streams.
"""

import logging
import traceback
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The path at which the apps mount Penstock, which sets its own headers.
PENSTOCK = "/penstock"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src {images}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def is_penstocks(path: str) -> bool:
    return path.startswith(f"{PENSTOCK}/")


class Protect:
    """Adds headers to pages and answers unexpected errors.

    sorry      makes the answer to an unexpected error
    images     the sources of pictures
    referrer   the referrer policy
    is_theirs  whether a path does not belong to the app itself
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        sorry: Callable[[], ASGIApp],
        images: str = "'self'",
        referrer: str = "same-origin",
        is_theirs: Callable[[str], bool] = is_penstocks,
    ) -> None:
        self._app = app
        self._sorry = sorry
        self._is_theirs = is_theirs
        self._log = logging.getLogger(f"uvicorn.error.{sorry.__module__.partition('.')[0]}")
        self._headers = (
            (b"content-security-policy", _POLICY.format(images=images).encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", referrer.encode()),
            (b"cache-control", b"no-store"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_theirs(scope["path"]):
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_protected(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": [*message["headers"], *self._headers]}
            await send(message)

        try:
            await self._app(scope, receive, send_protected)
        except Exception as error:
            # The line but never the message: a database error may quote people's texts.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            self._log.error("%s at %s:%s", type(error).__name__, frame.filename, frame.lineno)
            if begun:
                raise
            await self._sorry()(scope, receive, send_protected)
