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

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from api.site import SECRET
from browser.live import Live
from browser.scene import Scene
from browser.stand_in import StandIn, standing_in
from browser.watched import ACTION_MS, CHROMIUM, Windows
from clock import Clock
from penstock import Penstock

expect.set_options(timeout=ACTION_MS)

Looks = Callable[[Page, str], Awaitable[None]]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of whoever runs the tests, and the secret that they share."""
    for name in list(os.environ):
        if name.startswith("PENSTOCK_") and not name.startswith("PENSTOCK_TEST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """One for each test, as each has a loop of its own: half a second (November 2026)."""
    if CHROMIUM is None:
        # A test that never runs proves nothing: where it counts, that is a failure.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "there is no Chromium here: `.ci/install-chromium` installs it as root"
        )
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield found
        await found.close()


@pytest.fixture
def allowed_errors() -> list[str]:
    return []


@pytest.fixture
async def windows(
    browser: Browser, allowed_errors: list[str], request: pytest.FixtureRequest
) -> AsyncIterator[Windows]:
    folder = request.config.getoption("--screenshots")
    opened = Windows(browser, allowed_errors, Path(folder) if folder else None)
    yield opened
    await opened.close()
    assert opened.unexpected() == [], "the pages of this test had errors that it does not expect"


@pytest.fixture
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


@pytest.fixture
async def live(
    database: str, clock: Clock, origins: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Live]:
    monkeypatch.setenv("PENSTOCK_ORIGINS", origins)
    server = Live(database, Penstock(database, name="tests"), clock)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def scene(conn: asyncpg.Connection, clock: Clock) -> Scene:
    return Scene(conn, clock)


@pytest.fixture
async def stand_in(windows: Windows) -> AsyncIterator[StandIn]:
    async with standing_in() as found:
        yield found
        # First: what is cut at the end is no fault of a page.
        await windows.close()


@pytest.fixture
async def watching(page: Page, stand_in: StandIn) -> Page:
    stand_in.put("a", status="running", attempt=1, stage="one")
    stand_in.pages["empty"] = ""
    await page.clock.install()
    await page.goto(f"{stand_in.base}/pages/empty")
    return page
