"""A minimal HTTP/1.1 server that controls every byte, for the requests that clients of models send.

A framework prevents half-sent bodies, wrong lengths and resets; the simulated model must produce
them. So a connection is a plain asyncio protocol: it reads one request after the other, answers
each in a task, and cancels that task when the client disconnects.
"""

import asyncio
import errno
import json
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from penstock.errors import Misconfigured

_log = logging.getLogger("penstock.simulated")

JSON = "application/json; charset=utf-8"
# Larger than any prompt. A larger body is a mistake, and would be held in memory.
_LARGEST_BODY = 64 * 1024 * 1024
_LARGEST_HEAD = 64 * 1024
PHRASES = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}
# Linger for 0 seconds: closing sends RST instead of FIN.
_NO_LINGER = struct.pack("ii", 1, 0)
_BACKLOG = 1_024
# How many waiting clients are accepted at once, before the loop runs other tasks.
_ACCEPTED_AT_ONCE = 64


class Refusal(Exception):  # noqa: N818
    """The refusal of a call, with its status and message."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str  # without the query
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def fields(self) -> dict[str, Any]:
        """The JSON object of the body."""
        try:
            fields = json.loads(self.body or b"{}")
        except ValueError as wrong:
            raise Refusal(400, f"the body is not valid JSON: {type(wrong).__name__}") from None
        if not isinstance(fields, dict):
            raise Refusal(400, "the body is JSON, but not an object")
        return fields


Handler = Callable[[Request, "Connection"], Awaitable[None]]


class Connection(asyncio.Protocol):
    """The connection of one client. A handler answers by `send`, or by `begin`, `chunk`, `end`."""

    def __init__(self, handler: Handler, open_connections: set["Connection"]) -> None:
        self._handler = handler
        self._open = open_connections
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport
        self.gone = False  # the client left before its answer was complete
        self.closing = False  # the server closed the connection
        self.status: int | None = None
        self.first_byte_at: float | None = None

    # Called by the event loop.

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
        except Refusal as refusal:
            self.send(refusal.status, b"", "text/plain")
            self.close()
            return
        if request is not None:
            self.status = self.first_byte_at = None
            self._task = asyncio.get_running_loop().create_task(self._serve(request))

    def _request(self) -> Request | None:
        """Return the next request if it is complete."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _LARGEST_HEAD:
                raise Refusal(431, PHRASES[431])
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        words = first.split(" ")
        fields = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        length = headers.get("content-length", "0")
        if len(words) != 3 or not length.isascii() or not length.isdigit():  # noqa: PLR2004
            raise Refusal(400, PHRASES[400])
        if "transfer-encoding" in headers:
            raise Refusal(411, PHRASES[411])
        if int(length) > _LARGEST_BODY:
            raise Refusal(413, PHRASES[413])
        begin, after = end + 4, end + 4 + int(length)
        if len(self._buffer) < after:
            # curl waits for this answer before it sends a large body.
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
        except Exception as error:  # noqa: BLE001  # after a bug the client must get an answer
            # Only the type of the error: its text may quote the prompt.
            _log.error("the simulated model failed: %s", type(error).__name__)
            if self.status is None:
                self.send(500, b'{"error":"the simulated model has a bug"}')
            self.close()
        finally:
            self._task = None
        if request.headers.get("connection", "").lower() == "close":
            self.close()
        self._next()

    # Called by handlers.

    def send(
        self,
        status: int,
        body: bytes,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a complete answer."""
        self.raw(self.head(status, content_type, headers, len(body)) + body)

    def begin(self, status: int, content_type: str) -> None:
        """Send the head of an answer that follows in chunks."""
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
            f"HTTP/1.1 {status} {PHRASES.get(status, 'Unknown')}",
            f"Content-Type: {content_type}",
            "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}",
        ]
        if headers:
            lines.extend(f"{name}: {value}" for name, value in headers.items())
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def raw(self, data: bytes) -> None:
        """Send bytes unchanged; faults use this to send malformed answers."""
        if self.first_byte_at is None:
            self.first_byte_at = time.time()
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection in good order."""
        self.closing = True
        self._transport.close()

    def reset(self) -> None:
        """Abort the connection: the client gets "connection reset by peer"."""
        self.closing = True
        own: socket.socket | None = self._transport.get_extra_info("socket")
        if own is not None and own.fileno() >= 0:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()


class Listener:
    """A listening port that can stop listening and still keep the port.

    While it is stopped, the socket stays bound but does not listen: connections are refused, as by
    a server that is down, and no other program can take the port.
    """

    def __init__(self, host: str, port: int, handler: Handler) -> None:
        self._host, self._port = host, port
        self._handler = handler
        self._socket: socket.socket | None = None
        self.listens = False
        self._accepting: set[asyncio.Task[object]] = set()
        self.connections: set[Connection] = set()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def start(self) -> None:
        """Listen. After the first call the port stays reserved until `close`."""
        if self.listens:
            return
        if self._socket is None:
            self._socket = self._bound()
            self._port = self._socket.getsockname()[1]
        # Connections inherit the option. Without it, an old one would prevent binding the port
        # again.
        _reuse(self._socket, on=True)
        self._socket.listen(_BACKLOG)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)
        self.listens = True

    def stop(self) -> None:
        """Refuse new connections and reset open ones."""
        if not self.listens:
            return
        self.close()
        self._socket = self._bound()

    def close(self) -> None:
        if self._socket is not None:
            if self.listens:
                asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self.listens = False
        for connection in list(self.connections):
            connection.reset()

    def _bound(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            _reuse(bound, on=True)
            bound.settimeout(0)
            bound.bind((self._host, self._port))
            # If the option stayed on, another program with it could take the port while this one
            # does not listen.
            _reuse(bound, on=False)
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRINUSE:
                raise Misconfigured(
                    f"Port {self._port} of {self._host} is taken by another program (11434 is"
                    " Ollama's port). Stop it, or choose another port; 0 takes a free one."
                ) from None
            raise Misconfigured(
                f"Cannot listen at {self._host}, port {self._port}: {error.strerror or error}."
            ) from None
        return bound

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._socket is None:
                return
            try:
                client, _address = self._socket.accept()
            except OSError:  # no more clients wait, or the client has disconnected
                return
            client.settimeout(0)
            made = loop.create_task(
                loop.connect_accepted_socket(
                    lambda: Connection(self._handler, self.connections), client
                )
            )
            self._accepting.add(made)
            made.add_done_callback(self._accepting.discard)


def _reuse(bound: socket.socket, *, on: bool) -> None:
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, on)
