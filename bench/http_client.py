"""A client that costs little beside the server it measures: ready-made requests, sockets kept open.

It reads of an answer what it needs: its status, and how long its body is.
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


class _Line(asyncio.Protocol):
    """One connection: the next request when the answer to the last is complete."""

    def __init__(self, requests: Iterator[bytes], status: int, kept: list[bytes] | None) -> None:
        self._requests = requests
        self._status = b"HTTP/1.1 %d " % status
        self._kept = kept
        self._got = b""
        self._transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a socket: it writes

    def begin(self) -> None:
        assert self._transport
        found = next(self._requests, None)
        if found is None:
            self.done.set_result(None)
            self._transport.close()
        else:
            self._transport.write(found)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, found, body = self._got.partition(_HEAD_END)
        if not found:
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
    """All of them, over so many connections; requests a second. `kept` gets the bodies."""
    loop = asyncio.get_running_loop()
    todo = iter(requests)
    lines = []
    for _ in range(connections):
        _, line = await loop.create_connection(lambda: _Line(todo, status, kept), "127.0.0.1", port)
        lines.append(line)
    began = time.perf_counter()
    for line in lines:
        line.begin()
    await asyncio.gather(*(line.done for line in lines))
    return len(requests) / (time.perf_counter() - began)
