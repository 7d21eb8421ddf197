"""Bounds on the bytes and the time of a connection, before a request is complete."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn

from penstock.cli.serving import protocol
from penstock.cli.serving.protocol import HEAD_BYTES, MOST_PIPELINED, BoundedProtocol

CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
SMALL = b"A: b\r\n" * 1_000
WAIT_SECONDS = 10.0


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the number of bytes in the body."""
    assert scope["type"] == "http"
    length, more = 0, True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    answer = str(length).encode()
    headers = [(b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(app: Any = echo, keep_alive: int = 1) -> AsyncIterator[tuple[str, int]]:
    """The address of a server."""
    config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_keep_alive=keep_alive)
    config.load()
    state = uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: BoundedProtocol(config, state, {}, loop), "127.0.0.1", 0
    )
    async with server:
        yield server.sockets[0].getsockname()[:2]


@asynccontextmanager
async def connection(address: tuple[str, int]) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        # Not close(): unsent data would keep the socket open.
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def connected(app: Any = echo) -> AsyncIterator[Streams]:
    async with serving(app) as address, connection(address) as streams:
        yield streams


async def rest(streams: Streams) -> bytes:
    """Read until the server closes the connection."""
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
        reading = asyncio.create_task(rest(streams))
        sent = 0
        while not reading.done() and sent < 100 * HEAD_BYTES:
            streams[1].write(piece)
            sent += len(piece)
            await asyncio.sleep(0)
        answer = await reading
        assert not answer or answer.startswith(b"HTTP/1.1 400"), answer[:200]


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nHo", CHUNKED[:-2]])
async def test_the_wait_for_a_head_is_bounded(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18: also for a later request on the same connection."""
    monkeypatch.setattr("penstock.cli.serving.protocol.HEAD_SECONDS", 0.2)
    async with connected() as streams:
        streams[1].write(begin)
        assert await rest(streams) == b""
    async with connected() as streams:
        streams[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + begin)
        assert (await rest(streams)).startswith(b"HTTP/1.1 200")


async def test_large_bodies_are_accepted() -> None:
    """Bodies in one piece or in chunks of any size, and many requests on one connection."""
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


# --- bodies that no route reads, and clients that read nothing -----------------------------------

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def refuse(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001  # ASGI
    """Answer without reading the body."""
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": b"no"})


async def stay(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001  # ASGI
    """Read the body, and never answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def flood(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001  # ASGI
    """Answer with far more than the system buffers for a client that does not read."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(1_000):
        await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})


async def drip(streams: Streams) -> bytes:
    """Send a byte at intervals until the server closes the connection; return its answer."""
    reading = asyncio.create_task(rest(streams))
    while not reading.done():
        with suppress(ConnectionError):
            streams[1].write(b"1\r\nx\r\n")
        await asyncio.sleep(0.01)
    return await reading


@pytest.mark.parametrize(
    ("app", "bound", "says"),
    [(refuse, "LINGER_SECONDS", b"HTTP/1.1 401"), (stay, "BODY_SECONDS", b"")],
)
async def test_a_dripping_body_does_not_keep_its_connection(
    app: Any, bound: str, says: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: whether its request is answered already, or a route waits for the rest."""
    monkeypatch.setattr(protocol, bound, 0.3)
    async with connected(app) as streams:
        streams[1].write(CHUNKED)
        assert (await drip(streams)).startswith(says)


async def test_a_body_with_progress_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is slow, but enough of it arrives within each deadline."""
    monkeypatch.setattr(protocol, "BODY_SECONDS", 1.0)
    monkeypatch.setattr(protocol, "PROGRESS_BYTES", 2)
    async with connected() as (reader, writer), asyncio.timeout(WAIT_SECONDS):
        writer.write(CHUNKED)
        for _ in range(30):
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.05)
        writer.write(b"0\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(2) == b"30"


async def test_the_number_of_pipelined_requests_is_bounded() -> None:
    """D6: thousands fit into one piece of 256 KB, and each would take a few KB of memory."""
    started = 0

    async def count(scope: Any, receive: Any, send: Any) -> None:
        nonlocal started
        started += 1
        await stay(scope, receive, send)

    async with connected(count) as streams:
        streams[1].write(GET * 5_000)
        answer = await rest(streams)
        assert not answer or b" 400 " in answer
    assert started <= 1
    async with connected() as (reader, writer), asyncio.timeout(WAIT_SECONDS):
        writer.write(GET * MOST_PIPELINED)
        for _ in range(MOST_PIPELINED):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(1) == b"0"


async def test_a_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """D6: otherwise its answer would wait for ever."""
    monkeypatch.setattr(protocol, "STALLED_SECONDS", 0.3)
    stopped = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await flood(scope, receive, send)
        finally:
            stopped.set()

    async with connected(app) as (_, writer):
        # Otherwise the transport of the stream goes on reading.
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET)
        async with asyncio.timeout(WAIT_SECONDS):
            await stopped.wait()


async def test_idle_connections_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """D6: the connection that is idle longest is closed; those with a request go on."""
    monkeypatch.setattr(protocol, "most_connections", lambda: 3)
    async with serving(keep_alive=60) as address, AsyncExitStack() as stack:
        busy = await stack.enter_async_context(connection(address))
        busy[1].write(CHUNKED)
        idle = await stack.enter_async_context(connection(address))
        idle[1].write(GET)
        await idle[0].readuntil(b"\r\n\r\n0")
        for _ in range(5):
            newest = await stack.enter_async_context(connection(address))
            newest[1].write(GET)
            async with asyncio.timeout(WAIT_SECONDS):
                assert (await newest[0].readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200")
        assert await rest(idle) == b""
        busy[1].write(b"1\r\nx\r\n0\r\n\r\n")
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await busy[0].readuntil(b"\r\n\r\n1")).startswith(b"HTTP/1.1 200")
