"""A small transaction pooler: it does to sessions what PgBouncer does, for tests.

Every client gets a server connection from its first message until the server reports that no
transaction is open. Between two transactions it may get another one, which another client used.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_OWN_KEY = b"K" + struct.pack("!iii", 12, 0x7FFFFFFF, 0)
_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


@dataclass
class Pooler:
    """Stands before the server of a test's database; `dsn` is the address through it."""

    server: str
    dsn: str = ""
    _idle: list[Streams] = field(default_factory=list)
    _opened: list[Streams] = field(default_factory=list)
    _clients: set[asyncio.Task[None]] = field(default_factory=set)
    _greeting: bytes = b""

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._clients.add(task)
        try:
            await self._greet(reader, writer)
            message = asyncio.create_task(_message(reader))
            while (await message)[:1] != b"X":
                server = self._idle.pop() if self._idle else await self._connect()
                message = await _transaction(message, (reader, writer), server)
                self._idle.append(server)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has disconnected, or the test is over
        finally:
            writer.close()
            self._clients.discard(task)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            [size] = struct.unpack("!i", await reader.readexactly(4))
            start = await reader.readexactly(size - 4)
            if struct.unpack("!i", start[:4])[0] not in (_SSL_REQUEST, _GSS_REQUEST):
                break
            writer.write(b"N")
        if not self._greeting:
            self._idle.append(await self._connect())
        writer.write(self._greeting)

    async def _connect(self) -> Streams:
        where = urlsplit(self.server)
        query = parse_qs(where.query)
        socket = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        reader, writer = await asyncio.open_unix_connection(socket)
        words = f"user\0{where.username}\0database\0{where.path[1:]}\0\0".encode()
        writer.write(struct.pack("!ii", len(words) + 8, 196608) + words)
        greeting = b""
        while True:
            message = await _message(reader)
            # As PgBouncer: its own number replaces the process id of the server.
            greeting += _OWN_KEY if message[:1] == b"K" else message
            if message[:1] == b"Z":
                break
        self._greeting = self._greeting or greeting
        self._opened.append((reader, writer))
        return reader, writer

    async def close(self) -> None:
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for _, writer in self._opened:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def pooled(dsn: str) -> AsyncIterator[str]:
    """The address of a pooler before this database, for a role that needs no password."""
    pooler = Pooler(dsn)
    listener = await asyncio.start_server(pooler.serve_one, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()[:2]
    where = urlsplit(dsn)
    try:
        yield f"postgresql://{where.username}@{host}:{port}{where.path}"
    finally:
        listener.close()
        await pooler.close()


NextMessage = asyncio.Task[bytes]


async def _transaction(message: NextMessage, client: Streams, server: Streams) -> NextMessage:
    """From this message until the server has no transaction open; the client's next message."""
    answered = asyncio.create_task(_answers(client, server))
    while not answered.done():
        if message.done():
            server[1].write(message.result())
            message = asyncio.create_task(_message(client[0]))
        await asyncio.wait((answered, message), return_when=asyncio.FIRST_COMPLETED)
    answered.result()
    return message


async def _answers(client: Streams, server: Streams) -> None:
    """Forward the server's messages to the client, until no transaction is open."""
    while True:
        answer = await _message(server[0])
        client[1].write(answer)
        if answer == b"Z\0\0\0\5I":
            return


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    [size] = struct.unpack("!i", head[1:])
    return head + await reader.readexactly(size - 4)
