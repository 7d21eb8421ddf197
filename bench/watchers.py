"""Thousands of cheap clients of one live stream: each is a socket and its times."""

import asyncio
import resource
import time
from dataclasses import dataclass, field
from typing import cast

# Like browsers, clients reconnect after this time (`retry:`), all at the same moment.
RETRY_SECONDS = 2.0
CONNECT_SECONDS = 60.0
_AT_ONCE = 200


@dataclass(slots=True)
class Times:
    """When each client received the awaited event."""

    mark: bytes = b"\xff"
    """The bytes that the awaited event contains."""
    had: dict[int, float] = field(default_factory=dict)
    lost: int = 0
    asked: dict[int, float] = field(default_factory=dict)
    """When each client last requested its stream."""
    came: dict[int, float] = field(default_factory=dict)
    """When it received the first event of that stream."""


class Client(asyncio.Protocol):
    def __init__(self, number: int, request: bytes, times: Times) -> None:
        self._number = number
        self._request = request
        self._times = times
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        received = self._rest + data
        self._rest = received[-64:]
        times = self._times
        if self._number not in times.came and b"event: " in received:
            times.came[self._number] = now
        if times.mark in received:
            times.had.setdefault(self._number, now)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  # the reason does not matter
        self._times.lost += 1
        if not self.gone.done():
            self.gone.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Watchers:
    """`count` clients of one path, which reconnect when their stream ends."""

    def __init__(self, port: int, path: str, key: str, count: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 500)), hard))
        self._port = port
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n"
            "Accept: text/event-stream\r\n\r\n"
        ).encode()
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: dict[int, Client] = {}
        self.count = count
        self.times = Times()

    async def open(self) -> None:
        """Open all streams, a few hundred at a time; return when each has had its first event."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._live(number)) for number in range(self.count)]
        await self.until_all(self.times.came, CONNECT_SECONDS)

    async def until_all(self, of: dict[int, float], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while len(of) < self.count:  # noqa: ASYNC110  # filled by callbacks of the loop
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            client.close()

    async def _live(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        first = True
        while True:
            if first:
                await self._turn.acquire()
            try:
                asked = time.perf_counter()
                _, client = await loop.create_connection(
                    lambda: Client(number, self._request, self.times), "127.0.0.1", self._port
                )
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            finally:
                if first:
                    self._turn.release()
            self.times.asked[number] = asked
            first = False
            self._clients[number] = client
            await client.gone
            await asyncio.sleep(RETRY_SECONDS)
