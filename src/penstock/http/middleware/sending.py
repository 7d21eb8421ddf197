"""Large answers: counted until their client has read them, and sent in pieces.

A server keeps an answer in memory until its client has read it. A page of a list may have 9 MB, and
a client may ask for many of them and read none.
"""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import RateLimited
from penstock.http.middleware.limits import limits
from penstock.http.middleware.problems import on_http, on_refused

# Of smaller ones the system's buffers take nearly all.
LARGE_BYTES = 256 * 1024
PIECE_BYTES = 64 * 1024
# What another method has done is done: its answer is never refused.
_READS = frozenset({"GET", "HEAD"})


class Sending:
    """Pure ASGI, around the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _READS:
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        refused = False

        async def send_bounded(message: Message) -> None:
            nonlocal start, refused
            if message["type"] == "http.response.start" and _is_large(message):
                start = message  # is sent with the first bytes, unless they are refused
                return
            body = message.get("body", b"")
            if start is not None:
                refused = await _refuse(scope, receive, send, len(body))
                if not refused:
                    await send(start)
                start = None
            if refused:
                return
            if len(body) < LARGE_BYTES:
                await send(message)
                return
            more = message.get("more_body", False)
            # The server takes a piece when the client has read most of those before it.
            for at in range(0, len(body), PIECE_BYTES):
                piece, goes_on = body[at : at + PIECE_BYTES], more or at + PIECE_BYTES < len(body)
                await send({"type": "http.response.body", "body": piece, "more_body": goes_on})

        await self._app(scope, receive, send_bounded)


async def _refuse(scope: Scope, receive: Receive, send: Send, amount: int) -> bool:
    """Count so many bytes of an answer; whether that was too much, and was said instead of it."""
    request = Request(scope)
    try:
        limits(request).hold_answer(request, amount)
    except RateLimited as error:
        refusal = await on_refused(request, error)
    except HTTPException as error:
        refusal = await on_http(request, error)
    else:
        return False
    await refusal(scope, receive, send)
    return True


def _is_large(start: Message) -> bool:
    for name, value in start.get("headers", ()):
        if name == b"content-length":
            return int(value) >= LARGE_BYTES
    return False
