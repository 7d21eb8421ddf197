"""A tab of a real browser, driven: for pages that people click through, not only look at."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from journeys.browser import BROWSER_SECONDS, CHROMIUM
from journeys.processes import free_port
from waiting import eventually

LARGEST_MESSAGE = 64 * 1024 * 1024


class Tab:
    """Commands of the DevTools protocol, one at a time."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0

    async def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        sent = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send_json(sent)
        async with asyncio.timeout(BROWSER_SECONDS):
            while True:
                told = json.loads((await self._socket.receive()).data)
                if told.get("id") == self._number:
                    break
        assert "error" not in told, told
        found: dict[str, Any] = told["result"]
        return found

    async def run(self, script: str) -> Any:
        """What an expression on the page comes to."""
        told = await self.command(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def sees(self, script: str, what: str, *, seconds: float = BROWSER_SECONDS) -> None:
        """Wait until an expression is true; what the page shows is said where it is not."""

        async def true() -> bool:
            return bool(await self.run(script))

        try:
            await eventually(true, what, seconds=seconds)
        except AssertionError as late:
            page = await self.run("document.body.innerText")
            raise AssertionError(f"{late}; the page:\n{page}") from None

    async def open(self, url: str) -> None:
        await self.command("Page.navigate", url=url)
        await self.sees("document.readyState === 'complete'", f"{url} is loaded")

    async def look_like(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the window, and the reader's choice of light or dark."""
        await self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.command("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self) -> bytes:
        """The whole page as PNG, as far down as it goes."""
        size = (await self.command("Page.getLayoutMetrics"))["cssContentSize"]
        told = await self.command(
            "Page.captureScreenshot", captureBeyondViewport=True, clip={**size, "scale": 1}
        )
        return base64.b64decode(told["data"])


@asynccontextmanager
async def tab(folder: Path) -> AsyncIterator[Tab]:
    """A browser of its own with one tab."""
    assert CHROMIUM
    port = free_port()
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *words,
        f"--remote-debugging-port={port}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as client:
            found: list[str] = []

            async def open_pages() -> bool:
                try:
                    async with client.get(f"http://127.0.0.1:{port}/json") as answer:
                        pages = await answer.json()
                except aiohttp.ClientError:
                    return False
                found[:] = [one["webSocketDebuggerUrl"] for one in pages if one["type"] == "page"]
                return bool(found)

            await eventually(open_pages, "the browser is up", seconds=BROWSER_SECONDS)
            async with client.ws_connect(found[0], max_msg_size=LARGEST_MESSAGE) as socket:
                yield Tab(socket)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
