"""A request whose body stops in the middle, sent directly to the app: the answer, and when."""

import asyncio
from collections.abc import Iterable
from typing import Any

from support.http.site import Site

SECONDS = 20.0


class HalfSent:
    """Sends the parts, then nothing more until the client disconnects.

    `pause`: seconds before each part but the first.
    """

    def __init__(  # one per part of a request
        self,
        site: Site,
        path: str,
        parts: Iterable[bytes],
        *,
        key: str | None = None,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        pause: float = 0.0,
        address: str = "192.0.2.7",
    ) -> None:
        self._site = site
        self._parts = list(parts)
        self._pause = pause
        self.read_parts = 0
        self.answer: bytes = b""
        self.status: int | None = None
        self._stuck = asyncio.Event()
        self._gone = asyncio.Event()
        sent = {"host": "penstock.test", **(headers or {})}
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        path, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": (address, 1),
            "server": ("penstock.test", 80),
        }

    def begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.run())

    async def run(self) -> None:
        """Run until there is an answer."""
        await self._site.start()
        async with asyncio.timeout(SECONDS):
            await self._site.api(self._scope, self._receive, self._send)

    async def stuck(self) -> None:
        """Wait until the server waits for more, or has answered."""
        async with asyncio.timeout(SECONDS):
            await self._stuck.wait()

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if self.read_parts < len(self._parts):
            if self.read_parts:
                await asyncio.sleep(self._pause)
            part = self._parts[self.read_parts]
            self.read_parts += 1
            return {"type": "http.request", "body": part, "more_body": True}
        self._stuck.set()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
        self.answer += message.get("body", b"")
        self._stuck.set()
