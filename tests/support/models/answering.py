"""A server that gives every caller the same bytes as answer, and then closes or hangs."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

Then = Literal["close", "hang", "reset"]

BODIES = Path(__file__).parents[2] / "failures" / "bodies"


def answer(status: int, headers: dict[str, str], body: str, *, missing: int = 0) -> bytes:
    """An HTTP answer; with `missing`, it promises that many bytes more than it has."""
    content = body.encode()
    lines = [
        f"HTTP/1.1 {status} Said",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"content-length: {len(content) + missing}",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


def recorded(name: str) -> bytes:
    """The answer of a file in `bodies`."""
    kept = json.loads((BODIES / f"{name}.json").read_text())
    body = kept["body"] if isinstance(kept["body"], str) else json.dumps(kept["body"])
    return answer(kept["status"], kept["headers"], body)


@asynccontextmanager
async def answering(data: bytes, then: Then = "close") -> AsyncIterator[int]:
    """The port of such a server."""
    leaving = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await _request(reader)
            writer.write(data)
            await writer.drain()
            if then == "hang":
                await leaving.wait()
            if then == "reset":
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        leaving.set()
        server.close()


async def _request(reader: asyncio.StreamReader) -> None:
    first = await reader.read(1)
    if first == b"\x16":  # a TLS handshake: the client waits for an answer before its request
        return
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))


def closed_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
