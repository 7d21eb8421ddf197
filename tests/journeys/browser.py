"""Chromium, for pages and scripts as people have them; and a small site for it to look at."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

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
