"""Around a whole app: what it did not foresee is answered, and browsers know what its pages may do.

Plain ASGI, and not a decorator's middleware: that would hold on to live streams.
"""

import logging
import traceback
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Where the apps mount Penstock, which has headers of its own.
PENSTOCK = "/penstock"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src {images}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def is_penstocks(path: str) -> bool:
    return path.startswith(f"{PENSTOCK}/")


class Protect:
    """What to do with a page, and with an error that nobody expected.

    sorry      the answer then
    images     where pictures may come from
    referrer   who is told where somebody came from
    is_theirs  whether a path is not the app's own
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
            # Where, and never what: the words of a database error may quote somebody's text.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            self._log.error("%s at %s:%s", type(error).__name__, frame.filename, frame.lineno)
            if begun:
                raise
            await self._sorry()(scope, receive, send_protected)
