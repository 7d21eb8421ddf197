"""Server-sent events: how they are written, and an HTTP answer that goes on."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from penstock.http.live.watchers import Watcher

RETRY_MILLISECONDS = 2_000
# So much is handed to the connection at once: what a slow client does not take stays shared.
SLICE_BYTES = 16_384

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # Proxies neither keep nor gather it.
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_BEGIN = f"retry: {RETRY_MILLISECONDS}\n\n".encode()
_HEARTBEAT = b":\n\n"


class EventStream(Response):
    """Sends what its watcher has to tell until that is over, or the client has gone.

    Written as plain ASGI: Starlette's own keeps four tasks and a dozen objects per client.
    """

    media_type = "text/event-stream"

    def __init__(self, watch: Callable[[], Watcher]) -> None:
        """`watch` is called when the answer begins."""
        self.status_code = 200
        self.background = None
        self.body = b""
        self.raw_headers = list(_HEADERS)
        self._watch = watch

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002  # ASGI
        # Not before: an answer that is never sent would watch for ever.
        watcher = self._watch()
        gone = asyncio.get_running_loop().create_task(_until_gone(receive, watcher))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _send(send, watcher, _BEGIN)
            while not watcher.closed:
                # Read after the watcher's own state, and without a pause before `wait`.
                events = await watcher.events()
                if events:
                    await _send(send, watcher, events)
                elif watcher.over:
                    break
                elif await watcher.wait():
                    await _send(send, watcher, _HEARTBEAT)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass  # servers say so when the client has gone
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not watcher.stalled or task is None:
                raise
            task.uncancel()  # by us: this answer ends here
        finally:
            watcher.leave()
            gone.cancel()


async def _send(send: Any, watcher: Watcher, events: bytes) -> None:
    for at in range(0, len(events), SLICE_BYTES):
        if watcher.closed:
            return
        watcher.sending()
        body = events[at : at + SLICE_BYTES]
        await send({"type": "http.response.body", "body": body, "more_body": True})
    watcher.sent()


async def _until_gone(receive: Any, watcher: Watcher) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    watcher.close()
