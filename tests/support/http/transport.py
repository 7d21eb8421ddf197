"""httpx over ASGI that streams: the library's own waits for the end of a response, and a live one
has none."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

import httpx

Message = MutableMapping[str, Any]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]


class StreamingTransport(httpx.AsyncBaseTransport):
    """Each request runs as a task; closing the response is a client that disconnects.

    `raises`: an exception of the app fails the test instead of being a response with status 500.
    """

    def __init__(
        self, app: Asgi, before: Callable[[], Awaitable[None]], *, raises: bool, address: str
    ) -> None:
        self._app = app
        self._before = before
        self._raises = raises
        self._address = address

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await self._before()
        body = b"".join([part async for part in request.stream])  # type: ignore[union-attr]
        answer = _Answer(body)
        call: Any = self._app(self._scope(request), answer.receive, answer.send)
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(call)
        task.add_done_callback(lambda _: answer.over())
        try:
            await answer.started.wait()
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done() and task.exception() is not None and self._raises:
            raise task.exception()  # type: ignore[misc]
        assert answer.status is not None, "the app sent no response"
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Stream(answer, task, raises=self._raises)
        )

    def _scope(self, request: httpx.Request) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "server": (request.url.host, request.url.port or 80),
            "client": (self._address, 123),
            "root_path": "",
        }


class _Answer:
    """The messages between one request and the app."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self.parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.started = asyncio.Event()
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = list(message.get("headers", []))
            self.started.set()
        elif message["type"] == "http.response.body":
            if message.get("body"):
                self.parts.put_nowait(message["body"])
            if not message.get("more_body", False):
                self.parts.put_nowait(None)

    def over(self) -> None:
        self.parts.put_nowait(None)
        self.started.set()

    def leave(self) -> None:
        self._gone.set()


class _Stream(httpx.AsyncByteStream):
    def __init__(self, answer: _Answer, task: asyncio.Task[None], *, raises: bool) -> None:
        self._answer = answer
        self._task = task
        self._raises = raises

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._answer.parts.get()) is not None:
            yield part

    async def aclose(self) -> None:
        self._answer.leave()
        _, late = await asyncio.wait([self._task], timeout=5)
        if late:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            raise AssertionError("the app did not see that its client has gone")
        if self._task.cancelled():
            return
        error = self._task.exception()
        if error is not None and self._raises:
            raise error
