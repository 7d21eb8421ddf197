"""Pages in a real browser that tell what went wrong in them, so that no test overlooks it."""

import os
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    ViewportSize,
    WebError,
    async_playwright,
    expect,
)

# The shell is Chromium without windows: it takes half of the time to start (November 2026).
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
DESK = ViewportSize(width=1280, height=800)
PHONE = ViewportSize(width=390, height=844)
# Generous, since two test runs may share two cores; a page that works needs none of it.
ACTION_MS = 30_000
# A page that is left breaks off what it was loading, its live streams for instance.
BROKEN_OFF = "net::ERR_ABORTED"
# htmx writes the same of a request that another one replaces; of one that fails, Chromium does.
REPLACED = ("htmx:afterRequest,", "htmx:sendAbort,")

expect.set_options(timeout=ACTION_MS)

# For async fixtures in this folder, whose tests run in one loop: conftest.py says why.
in_one_loop = pytest_asyncio.fixture(loop_scope="session")


class Windows:
    """Opens pages, each in a window without cookies of its own kind; hears all of them.

    A console error, an exception, a request that failed and a breach of the content security policy
    are faults. The console tells the last one and answers of 400 and above by itself.
    """

    def __init__(self, browser: Browser, allowed: Sequence[str], pictures: Path | None) -> None:
        self._browser = browser
        self._allowed = allowed
        self._pictures = pictures
        self._contexts: list[BrowserContext] = []
        self.faults: list[str] = []

    async def open(self, *, phone: bool = False, dark: bool = False, **options: Any) -> Page:
        """A page in a window of its own, signed in nowhere. `options` are those of a context."""
        usual: dict[str, Any] = {
            "viewport": PHONE if phone else DESK,
            "is_mobile": phone,
            "has_touch": phone,
            "color_scheme": "dark" if dark else "light",
            "locale": "en-GB",
            "timezone_id": "UTC",
        }
        context = await self._browser.new_context(**usual | options)
        self._contexts.append(context)
        context.set_default_timeout(ACTION_MS)
        context.on("console", self._hear_console)
        context.on("weberror", self._hear_error)
        context.on("requestfailed", self._hear_failure)
        return await context.new_page()

    async def looks(self, page: Page, name: str, *, whole: bool = True) -> None:
        """Keep a picture, where `--screenshots DIR` asks: of the whole page, or what is in view."""
        if self._pictures is not None:
            self._pictures.mkdir(parents=True, exist_ok=True)
            await page.screenshot(path=self._pictures / f"{name}.png", full_page=whole)

    def unexpected(self) -> list[str]:
        """What went wrong, but for what the test allows."""
        return [
            fault
            for fault in self.faults
            if not any(re.search(one, fault) for one in self._allowed)
        ]

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()

    def _hear_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(REPLACED):
            where = message.location.get("url", "")
            self.faults.append(f"console: {message.text} ({where})")

    def _hear_error(self, error: WebError) -> None:
        self.faults.append(f"exception: {error.error}")

    def _hear_failure(self, request: Request) -> None:
        if request.failure != BROKEN_OFF:
            self.faults.append(f"request: {request.failure} ({request.url})")


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        # A test that never runs proves nothing: where it counts, that is a failure.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "there is no Chromium here: `.ci/install-chromium` installs it as root"
        )
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_windows(
    allowed: Sequence[str], pictures: str | None, browser: Browser | None = None
) -> AsyncIterator[Windows]:
    """Windows of a browser that is there already, or of one of their own.

    What goes wrong in their pages unseen, and is not allowed, fails the test.
    """
    async with AsyncExitStack() as stack:
        if browser is None:
            browser = await stack.enter_async_context(open_browser())
        opened = Windows(browser, allowed, Path(pictures) if pictures else None)
        stack.push_async_callback(opened.close)
        yield opened
    found = opened.unexpected()
    assert not found, f"the pages had errors that the test does not expect: {found}"


async def fits_sideways(page: Page) -> None:
    """Assert that nobody has to scroll the page sideways; names what is too wide."""
    assert page.viewport_size
    # Not innerWidth: a phone widens its window to what does not fit.
    width = page.viewport_size["width"]
    told = await page.evaluate(
        """(width) => ({
          whole: document.scrollingElement.scrollWidth,
          wide: [...document.querySelectorAll("body *")]
            .filter((one) => one.getBoundingClientRect().right > width + 0.5)
            .slice(0, 8)
            .map((one) => one.outerHTML.slice(0, 120)),
        })""",
        width,
    )
    assert told["whole"] <= width, f"{told['whole']} px on a screen of {width}: {told['wide']}"


async def mark(page: Page) -> None:
    """Write something into the page that a reload would wipe out."""
    await page.evaluate("window.sameLoad = true")


async def assert_not_reloaded(page: Page) -> None:
    assert await page.evaluate("window.sameLoad === true"), "the page was loaded anew"
