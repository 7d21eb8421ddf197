"""A connection to Postgres that can be slow, silent or cut. Each process has its own relay.

pass     bytes are passed on
delay    bytes are passed on after a while
silence  nothing is passed on, neither bytes nor the end of a connection. Afterwards the held bytes
         are passed on, as TCP would send them again
reset    every connection breaks at once
"""

import asyncio
from contextlib import suppress
from typing import Self

CHUNK = 65_536


class Relay:
    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._heard = asyncio.Event()
        self._heard.set()
        self.delay = 0.0
        self.port = 0

    async def open(self) -> Self:
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)
        self.reset()

    @property
    def silent(self) -> bool:
        return not self._heard.is_set()

    def silence(self) -> None:
        self._heard.clear()

    def heal(self) -> None:
        self.delay = 0.0
        self._heard.set()

    def reset(self) -> None:
        """Break each connection, so that both ends notice at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        to: asyncio.StreamWriter | None = None
        try:
            await self._heard.wait()
            there, to = await asyncio.open_connection(self._host, self._port)
            self._writers.add(to)
            # When one end closes, close the other: half a connection is of no use to a session.
            ways = [
                asyncio.ensure_future(self._pass(reader, to)),
                asyncio.ensure_future(self._pass(there, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass  # the server is unavailable, so the relay refuses
        finally:
            for one in (writer, to):
                if one is not None:
                    self._writers.discard(one)
                    one.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._heard.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        await self._heard.wait()
