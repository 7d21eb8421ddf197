"""Chromium, for pages and scripts as people have them; and a small site for it to look at."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from playwright.async_api import Page, async_playwright, expect

from browser.watched import ACTION_MS, Windows
from journeys.processes import free_port
from waiting import eventually

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
BROWSER_SECONDS = 60


@asynccontextmanager
async def served(app: FastAPI, leave: Callable[[], None]) -> AsyncIterator[int]:
    """The port of a site in this loop; `leave` lets go what it holds back."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    task = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started

    try:
        await eventually(started, "the stage is up")
        yield port
    finally:
        leave()
        server.should_exit = True
        await task


@asynccontextmanager
async def open_windows(allowed: Sequence[str], pictures: Path | None) -> AsyncIterator[Windows]:
    """For pages to click through. What goes wrong in them unseen, and is not allowed, fails."""
    # Pages of whole apps, while other tests have the processor.
    expect.set_options(timeout=ACTION_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        opened = Windows(browser, allowed, pictures)
        try:
            yield opened
        finally:
            await opened.close()
            await browser.close()
    found = opened.unexpected()
    assert not found, f"the pages had errors that the test does not expect: {found}"


async def stop_clock(page: Page) -> None:
    """From here on its timers go on when the test says so: `await page.clock.run_for(3000)`."""
    now = datetime.now(tz=UTC)
    await page.clock.install(time=now)
    await page.clock.pause_at(now + timedelta(seconds=1))


async def printed_page(url: str, folder: Path) -> str:
    """The page as the browser has it once it is loaded."""
    assert CHROMIUM
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *words,
        "--dump-dom",
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(BROWSER_SECONDS):
            told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return told.decode()
