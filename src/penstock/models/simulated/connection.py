"""HTTP/1.1 by hand, as far as clients of models use it, with every byte in our own hands.

A framework protects its user from half-sent bodies, wrong lengths and resets. Here they are the
product. So a connection is a plain asyncio protocol: it reads one request after the other, has each
answered in a task, and ends that task when the client goes away.
"""

import asyncio
import json
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

_log = logging.getLogger("penstock.simulated")

JSON = "application/json; charset=utf-8"
# More than any prompt; a body beyond it is a mistake, and would be held in memory.
_LARGEST_BODY = 64 * 1024 * 1024
_LARGEST_HEAD = 64 * 1024
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
# Linger for 0 seconds: closing sends RST instead of FIN.
_AT_ONCE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str  # without what follows a question mark
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def fields(self) -> dict[str, Any]:
        """The JSON object of the body; `ValueError` where it is none."""
        found = json.loads(self.body or b"{}")
        if not isinstance(found, dict):
            raise ValueError("the body is JSON, but no object")  # noqa: TRY004  # one kind to catch
        return found


class _TooMuch(Exception):  # noqa: N818
    """What comes is no request that we read; its argument is the status that says so."""


Handler = Callable[[Request, "Connection"], Awaitable[None]]


class Connection(asyncio.Protocol):
    """One client. A handler answers by `send`, or by `begin`, `chunk` and `end`."""

    def __init__(self, handler: Handler, open_connections: set["Connection"]) -> None:
        self._handler = handler
        self._open = open_connections
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport
        self.gone = False  # the client left before its answer was complete
        self.closing = False  # we did
        self.status: int | None = None
        self.first_byte_at: float | None = None

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._task is None:
            self._next()

    def connection_lost(self, _error: Exception | None) -> None:
        self._open.discard(self)
        if self._task is not None:
            self.gone = not self.closing
            self._task.cancel()

    def _next(self) -> None:
        if not self._buffer or self.closing:
            return
        try:
            request = self._request()
        except _TooMuch as refusal:
            self.send(refusal.args[0], b"", "text/plain")
            self.close()
            return
        if request is not None:
            self.status = self.first_byte_at = None
            self._task = asyncio.get_running_loop().create_task(self._serve(request))

    def _request(self) -> Request | None:
        """The next request, if it has come wholly."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _LARGEST_HEAD:
                raise _TooMuch(431)
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        words = first.split(" ")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = headers.get("content-length", "0")
        if len(words) != 3 or not length.isascii() or not length.isdigit():  # noqa: PLR2004
            raise _TooMuch(400)
        if "transfer-encoding" in headers:
            raise _TooMuch(411)
        if int(length) > _LARGEST_BODY:
            raise _TooMuch(413)
        begin, after = end + 4, end + 4 + int(length)
        if len(self._buffer) < after:
            # curl asks for leave before it sends a large body.
            if headers.get("expect") == "100-continue" and len(self._buffer) == begin:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return None
        body = bytes(self._buffer[begin:after])
        del self._buffer[:after]
        return Request(words[0], words[1].partition("?")[0], headers, body)

    async def _serve(self, request: Request) -> None:
        try:
            await self._handler(request, self)
        except asyncio.CancelledError:
            if not self.gone and not self.closing:
                raise
        except Exception as error:  # noqa: BLE001  # a client must not wait for our mistakes
            # Only its kind: the text may hold what was asked.
            _log.error("the simulated model failed: %s", type(error).__name__)
            if self.status is None:
                self.send(500, b'{"error":"the simulated model has a bug"}')
            self.close()
        finally:
            self._task = None
        if request.headers.get("connection", "").lower() == "close":
            self.close()
        self._next()

    # What handlers call.

    def send(
        self,
        status: int,
        body: bytes,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """A whole answer."""
        self.raw(self.head(status, content_type, headers, len(body)) + body)

    def begin(self, status: int, content_type: str) -> None:
        """The head of an answer that comes in chunks."""
        self.raw(self.head(status, content_type, None, None))

    def chunk(self, data: bytes) -> None:
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.raw(b"0\r\n\r\n")

    def head(
        self,
        status: int,
        content_type: str,
        headers: Mapping[str, str] | None,
        length: int | None,
    ) -> bytes:
        self.status = status
        lines = [
            f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}",
            f"Content-Type: {content_type}",
            "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}",
        ]
        if headers:
            lines.extend(f"{name}: {value}" for name, value in headers.items())
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def raw(self, data: bytes) -> None:
        """Bytes as they are: whoever wants a wrong answer writes it with this."""
        if self.first_byte_at is None:
            self.first_byte_at = time.time()
        self._transport.write(data)

    def close(self) -> None:
        """Say no more: the client sees the end of the connection."""
        self.closing = True
        self._transport.close()

    def reset(self) -> None:
        """Leave at once: the client sees "connection reset by peer"."""
        self.closing = True
        own: socket.socket | None = self._transport.get_extra_info("socket")
        if own is not None and own.fileno() >= 0:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._transport.abort()
