"""HTTP as uvicorn speaks it, with bounds on what comes before a request is one.

uvicorn waits for the head of a request for ever and keeps all of it, and its parser copies what it
has of a header with each piece that comes: whoever can connect could fill the memory, or keep the
server from everything else (16 November 2026: 12 MB of small headers took 270 MB, 200 MB of one
header more than 90 s). Bodies are bounded where they are read (api/body.py).
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# The head of a request, or what follows the last piece of its body.
HEAD_BYTES = 64 * 1024
# From the connection, or from its first byte, until a head is complete.
HEAD_SECONDS = 30.0


class BoundedProtocol(HttpToolsProtocol):
    _deadline: asyncio.TimerHandle | None = None
    _in_head = False
    _got_on = False
    """Whether a head, a body or a message went on with what came last."""
    _bytes = 0
    """What came since."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._got_on = False
        super().data_received(data)
        self._bytes = 0 if self._got_on else self._bytes + len(data)
        if self._bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"More than {HEAD_BYTES} bytes of headers.")
        elif self._in_head and self._deadline is None:
            self._expect_head()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._got_on = False, True
        self._end_deadline()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._got_on = True
        super().on_message_complete()

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._late)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        if self.flow.read_paused:
            self._expect_head()  # it is we who do not read
        else:
            self.transport.close()
