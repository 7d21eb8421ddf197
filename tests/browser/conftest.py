"""A real browser, and a Penstock server for it to look at. What there is, in short:

page            a fresh page at 1280 px; the test fails for what goes wrong in it unseen
windows         `await windows.open(phone=True, dark=True)`: more of them
allowed_errors  append what this test provokes: parts of messages, as regular expressions
live            a server on a real port; `await live.login(page)`
scene           queues and jobs in every state, in one line each
stand_in        an API that does what a test tells it, event by event
watching        an empty page of its app, whose clock can be moved; there is a job `a`, and it runs
axe, looks, fits_sideways
"""

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from browser.live import Live
from browser.scene import Scene
from browser.stand_in import StandIn, standing_in
from browser.watched import Windows, in_one_loop, open_browser, open_windows
from penstock import Penstock
from support.clock import Clock
from support.connections import connections
from support.http.site import SECRET
from support.shapes import Connect

HERE = Path(__file__).parent
Looks = Callable[[Page, str], Awaitable[None]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests and their fixtures in one loop, so that they share a browser.

    One for each test took half of the processor time of most (November 2026).
    """
    for item in items:
        function = getattr(item, "function", None)
        if item.path.parent == HERE and inspect.iscoroutinefunction(function):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of whoever runs the tests, and the secret that they share."""
    for name in list(os.environ):
        if name.startswith("PENSTOCK_") and not name.startswith("PENSTOCK_TEST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)


@pytest.fixture
def allowed_errors() -> list[str]:
    return []


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened


@in_one_loop
async def windows(
    browser: Browser, allowed_errors: list[str], request: pytest.FixtureRequest
) -> AsyncIterator[Windows]:
    folder = request.config.getoption("--screenshots")
    async with open_windows(allowed_errors, folder, browser) as opened:
        yield opened


@in_one_loop
async def connect(database: str) -> AsyncIterator[Connect]:
    async with connections(database) as connect:
        yield connect


@in_one_loop
async def conn(connect: Connect) -> asyncpg.Connection:
    return await connect()


@in_one_loop
async def clock(connect: Connect) -> Clock:
    return Clock(await connect())


@in_one_loop
async def page(windows: Windows) -> Page:
    return await windows.open()


@pytest.fixture
def looks(windows: Windows) -> Looks:
    """`await looks(page, "jobs-dark")`: a picture, where they are asked for."""
    return windows.looks


@pytest.fixture
def origins() -> str:
    """PENSTOCK_ORIGINS of the server; a module whose pages lie elsewhere has its own."""
    return ""


@in_one_loop
async def live(
    database: str, clock: Clock, origins: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Live]:
    monkeypatch.setenv("PENSTOCK_ORIGINS", origins)
    server = Live(database, Penstock(database, name="tests"), clock)
    await server.start()
    yield server
    await server.stop()


@in_one_loop
async def scene(conn: asyncpg.Connection, clock: Clock) -> Scene:
    return await Scene.begin(conn, clock)


@in_one_loop
async def stand_in(windows: Windows) -> AsyncIterator[StandIn]:
    async with standing_in() as found:
        yield found
        # First: what is cut at the end is no fault of a page.
        await windows.close()


@in_one_loop
async def watching(page: Page, stand_in: StandIn) -> Page:
    stand_in.put("a", status="running", attempt=1, stage="one")
    stand_in.pages["empty"] = ""
    await page.clock.install()
    await page.goto(f"{stand_in.base}/pages/empty")
    return page
