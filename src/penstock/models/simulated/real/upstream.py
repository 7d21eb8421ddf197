"""Calls to the server of the real model, which listens at a port of its own in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Reply:
    """An answer whose head has come, and whose body is read as it comes."""

    def __init__(self, status: int, headers: dict[str, str], reader: asyncio.StreamReader) -> None:
        self.status = status
        self.content_type = headers.get("content-type", "application/json")
        self.chunked = headers.get("transfer-encoding") == "chunked"
        self._length = int(headers.get("content-length", 0))
        self._reader = reader

    async def parts(self) -> AsyncIterator[bytes]:
        """The body in the pieces in which it was sent."""
        if not self.chunked:
            yield await self._reader.readexactly(self._length)
            return
        while size := int(await self._reader.readline(), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readline()

    async def body(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    async def events(self) -> AsyncIterator[bytes]:
        """What follows `data:`, without the last one that says it is done."""
        rest = b""
        async for part in self.parts():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data: ") and line != b"data: [DONE]":
                    yield line.removeprefix(b"data: ")


@contextlib.asynccontextmanager
async def calling(url: str, path: str, body: bytes) -> AsyncIterator[Reply]:
    """POST; whoever leaves early closes the connection, and so ends the generation."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status = int((await reader.readline()).split(b" ")[1])
        headers = {}
        while line := (await reader.readline()).decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        yield Reply(status, headers, reader)
    finally:
        writer.close()
