"""A stage for pages: a small site for them to talk to, and a clock that goes on when told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import uvicorn
from fastapi import FastAPI
from playwright.async_api import Page

from journeys.processes import free_port
from support.waiting import eventually

# For what takes no time at all, on a machine that others use as well.
ACTION_SECONDS = 30


@asynccontextmanager
async def served(app: FastAPI, leave: Callable[[], None]) -> AsyncIterator[int]:
    """The port of a site in this loop; `leave` lets go what it holds back."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    task = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started

    try:
        await eventually(started, "the stage is up", seconds=ACTION_SECONDS)
        yield port
    finally:
        leave()
        server.should_exit = True
        await task


async def stop_clock(page: Page) -> None:
    """From here on its timers go on when the test says so: `await page.clock.run_for(3000)`."""
    now = datetime.now(tz=UTC)
    await page.clock.install(time=now)
    await page.clock.pause_at(now + timedelta(seconds=1))
