"""What comes before a request is one: bounded, in bytes and in time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn

from penstock.cli.protocol import HEAD_BYTES, BoundedProtocol

CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
SMALL = b"A: b\r\n" * 1_000
WAIT_SECONDS = 10.0


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with how many bytes the body had."""
    assert scope["type"] == "http"
    length, more = 0, True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    said = str(length).encode()
    headers = [(b"content-length", str(len(said)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected() -> AsyncIterator[Streams]:
    config = uvicorn.Config(echo, lifespan="off", log_config=None, timeout_keep_alive=1)
    config.load()
    state = uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: BoundedProtocol(config, state, {}, loop), "127.0.0.1", 0
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        try:
            yield reader, writer
        finally:
            # Not close(): what the server did not take would keep the socket open.
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


async def rest(streams: Streams) -> bytes:
    """What comes until the server closes the connection."""
    async with asyncio.timeout(WAIT_SECONDS):
        try:
            return await streams[0].read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n", SMALL),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: ", b"a" * 10_000),
        (b"GET /", b"a" * 10_000),
        (CHUNKED + b"1\r\nx\r\n0\r\n", SMALL),
        (CHUNKED + b"1;", b"a" * 10_000),
    ],
)
async def test_headers_without_end_are_cut_off(begin: bytes, piece: bytes) -> None:
    """C18: in the head, in the address, behind the body, beside a piece of it."""
    async with connected() as streams:
        streams[1].write(begin)
        ended = asyncio.create_task(rest(streams))
        sent = 0
        while not ended.done() and sent < 100 * HEAD_BYTES:
            streams[1].write(piece)
            sent += len(piece)
            await asyncio.sleep(0)
        said = await ended
        assert not said or said.startswith(b"HTTP/1.1 400"), said[:200]


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHo", CHUNKED[:-2]])
async def test_a_head_is_not_waited_for_for_ever(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18: also of a later request on the same connection."""
    monkeypatch.setattr("penstock.cli.protocol.HEAD_SECONDS", 0.2)
    async with connected() as streams:
        streams[1].write(said)
        assert await rest(streams) == b""
    async with connected() as streams:
        streams[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + said)
        assert (await rest(streams)).startswith(b"HTTP/1.1 200")


async def test_what_is_large_and_no_head_is_taken() -> None:
    """Bodies at once, in pieces of any size, and many requests on one connection."""
    body = b"x" * (4 * HEAD_BYTES)
    pieces = b"1\r\nx\r\n" * HEAD_BYTES + b"0\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    async with connected() as (reader, writer), asyncio.timeout(WAIT_SECONDS):
        for sent, length in (
            (head % len(body) + body, len(body)),
            (CHUNKED + pieces, HEAD_BYTES),
            (head % 0 + b"", 0),
        ):
            for _ in range(3):
                writer.write(sent)
                answer = await reader.readuntil(b"\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 200"), answer
                assert await reader.readexactly(len(str(length))) == str(length).encode()
