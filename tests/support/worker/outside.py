"""An outside function for tests: it takes jobs, or does what the test asks for."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from aiohttp import web
from aiohttp.test_utils import TestServer

from penstock.engine.engine import Engine
from penstock.engine.jobs.callbacks import Item
from support.waiting import eventually

Answer = Callable[[dict[str, Any]], Awaitable[int]]


class Function:
    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.url = ""
        self.answer: Answer = self.take
        """Handles a job; returns the status of its answer."""
        self.held = asyncio.Event()

    async def take(self, _: dict[str, Any]) -> int:
        return 202

    async def hang(self, _: dict[str, Any]) -> int:
        await self.held.wait()
        return 202

    async def until_taken(self, n: int = 1) -> dict[str, Any]:
        async def enough() -> bool:
            return len(self.taken) >= n

        await eventually(enough, f"the function was called {n} times")
        return self.taken[n - 1]

    async def until_taken_as(self, attempt: int) -> dict[str, Any]:
        """The call for that attempt of its only job."""

        async def came() -> bool:
            return any(job["attempt"] == attempt for job in self.taken)

        await eventually(came, f"the function was called for attempt {attempt}")
        return next(job for job in self.taken if job["attempt"] == attempt)


@asynccontextmanager
async def function() -> AsyncIterator[Function]:
    made = Function()

    async def take(request: web.Request) -> web.Response:
        job = json.loads(await request.read())
        made.taken.append(job)
        return web.Response(status=await made.answer(job))

    app = web.Application()
    app.router.add_post("/f", take)
    server = TestServer(app)
    await server.start_server()
    made.url = f"http://127.0.0.1:{server.port}/f"
    try:
        yield made
    finally:
        made.held.set()
        await server.close()


async def call_back(
    engine: Engine, job: dict[str, Any], outcome: str = "succeeded", **fields: Any
) -> str:
    """The later report of the function, directly to the engine."""
    for name in ("result", "error", "progress"):
        if name in fields:
            fields[name] = json.dumps(fields[name])
    item = Item(
        job_id=UUID(job["job_id"]),
        attempt=job["attempt"],
        token=job["token"],
        outcome=outcome,
        **fields,
    )
    [resolved] = await engine.callbacks.resolve([item])
    return resolved.outcome
