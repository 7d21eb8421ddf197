"""A client that uses little CPU: ready-made requests over persistent connections.

It parses only the status and the length of an answer.
"""

import asyncio
import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"


def request(method: str, path: str, *, key: str | None = None, body: Any = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if key is not None:
        head.append(f"Authorization: Bearer {key}")
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join(head).encode() + _HEAD_END + content


class _Connection(asyncio.Protocol):
    """One connection: it sends the next request when the last answer is complete."""

    def __init__(self, requests: Iterator[bytes], status: int, kept: list[bytes] | None) -> None:
        self._requests = requests
        self._status = b"HTTP/1.1 %d " % status
        self._kept = kept
        self._got = b""
        self._transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # that of a socket can write

    def begin(self) -> None:
        assert self._transport
        request = next(self._requests, None)
        if request is None:
            self.done.set_result(None)
            self._transport.close()
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, separator, body = self._got.partition(_HEAD_END)
        if not separator:
            return
        length = _LENGTH.search(head)
        assert length, head
        if len(body) < int(length[1]):
            return
        if not head.startswith(self._status):
            self.done.set_exception(AssertionError(self._got[:1_000].decode()))
            return
        if self._kept is not None:
            self._kept.append(body)
        self._got = b""
        self.begin()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(AssertionError("the server closed the connection"))


async def send(
    port: int,
    requests: Sequence[bytes],
    *,
    connections: int,
    status: int,
    kept: list[bytes] | None = None,
) -> float:
    """Send all requests; return requests per second. `kept` gets the bodies."""
    loop = asyncio.get_running_loop()
    todo = iter(requests)
    lines = []
    for _ in range(connections):
        _, line = await loop.create_connection(
            lambda: _Connection(todo, status, kept), "127.0.0.1", port
        )
        lines.append(line)
    began = time.perf_counter()
    for line in lines:
        line.begin()
    await asyncio.gather(*(line.done for line in lines))
    return len(requests) / (time.perf_counter() - began)
