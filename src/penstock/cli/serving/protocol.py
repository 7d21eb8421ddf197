"""uvicorn's HTTP protocol, with bounds on the time and memory of a connection.

uvicorn waits for ever for the head of a request, for its body and for a client that reads nothing.
It keeps all of a head, and its parser copies the part of a header that it has with each piece that
arrives. Any client could fill the memory or block the server (16 November 2026: 12 MB of small
headers took 270 MB, 200 MB of one header more than 90 s; 19 November: 12,000 requests in one piece
of 256 KB took 60 MB). The size of a body is bounded where it is read (http/routing.py). This module
bounds how long its connection lasts, even if no route reads the body.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.http.middleware.limits import RESERVED_DESCRIPTORS, descriptors
from penstock.http.routing import PROGRESS_BYTES, PROGRESS_SECONDS

# The head of a request, or the bytes after the last piece of its body.
HEAD_BYTES = 64 * 1024
# From the connection, or from its first byte, until a head is complete.
HEAD_SECONDS = 30.0
# Longer than the routes wait for a body: they answer before the connection is closed.
BODY_SECONDS = PROGRESS_SECONDS + 5
# When a request is answered before its body is complete, the rest is discarded for this long.
LINGER_SECONDS = 5.0
# A client that reads nothing of an answer for this long is disconnected.
STALLED_SECONDS = 60.0
# Requests that may wait behind another one on their connection. Browsers send none.
MOST_PIPELINED = 16

_waiting: dict["BoundedProtocol", None] = {}
"""Connections without a request, the longest waiting first."""


class TooManyRequests(Exception):  # noqa: N818  # it ends the parsing, and then the connection
    """A connection has more pipelined requests than allowed."""


class BoundedProtocol(HttpToolsProtocol):
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _in_head = False
    _in_body = False
    _got_on = False
    """Whether the last data completed a head or a message, or added to a body."""
    _bytes = 0
    """How many bytes have come since."""
    _progress = 0
    """How many bytes of a body have come since its deadline was set."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _waiting[self] = None
        self._expect(HEAD_SECONDS)
        if len(self.connections) > most_connections():
            # Connections with a request stay; this idle client connects again when it has one.
            longest = next(iter(_waiting))
            del _waiting[longest]
            longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        _waiting.pop(self, None)
        self._end_deadline()
        self._end_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._got_on = False
        super().data_received(data)
        self._bytes = 0 if self._got_on else self._bytes + len(data)
        if self._bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"More than {HEAD_BYTES} bytes of headers.")
        elif self._deadline is None and (self._in_head or self._in_body):
            self._expect(HEAD_SECONDS if self._in_head else BODY_SECONDS)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._got_on = False, True, True
        self._progress = 0
        self._end_deadline()
        _waiting.pop(self, None)
        super().on_headers_complete()
        if len(self.pipeline) > MOST_PIPELINED:
            raise TooManyRequests

    def on_body(self, body: bytes) -> None:
        self._got_on = True
        super().on_body(body)
        self._progress += len(body)
        if self._progress >= PROGRESS_BYTES and not self.cycle.response_complete:
            self._progress = 0
            self._end_deadline()

    def on_message_complete(self) -> None:
        self._in_body, self._got_on = False, True
        self._end_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete:
            self._end_deadline()
            self._expect(LINGER_SECONDS)
        if self.cycle.response_complete and not self.transport.is_closing():
            _waiting[self] = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_stall()
        self._stall = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def _expect(self, seconds: float) -> None:
        self._deadline = self.loop.call_later(seconds, self._late, seconds)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _late(self, seconds: float) -> None:
        if self.flow.read_paused:
            self._expect(seconds)  # the server does not read at present: not the client's fault
        else:
            self.transport.close()


def most_connections() -> int:
    """Return how many connections leave enough descriptors for the database and files."""
    return max(1, descriptors() - RESERVED_DESCRIPTORS)
