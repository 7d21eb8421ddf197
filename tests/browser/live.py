"""A Penstock server on a real port, in the test's own loop, with a worker when told."""

import asyncio

import uvicorn
from playwright.async_api import Page, expect
from starlette.applications import Starlette

from penstock import Penstock
from penstock.engine.engine import Engine
from penstock.server import api, leave
from penstock.worker.worker import Options, Worker
from support.clock import Clock
from support.http.serving import free_port
from support.http.site import SECRET
from support.waiting import eventually

GRACEFUL_SECONDS = 3


class Live:
    """Declare queues and kinds on `penstock`, then `await live.declare()`."""

    def __init__(self, dsn: str, penstock: Penstock, clock: Clock) -> None:
        self.dsn = dsn
        self.penstock = penstock
        self.clock = clock
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.secret = SECRET
        self._api: Starlette | None = None
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def api(self) -> Starlette:
        assert self._api
        return self._api

    async def start(self) -> None:
        """Returns when it takes requests; always at the same address."""
        self._api = api(self.penstock, base=self.base)
        server = uvicorn.Server(
            uvicorn.Config(
                self._api,
                port=self.port,
                log_level="warning",
                ws="none",
                timeout_graceful_shutdown=GRACEFUL_SECONDS,
            )
        )
        task = asyncio.create_task(server.serve())
        self._server, self._task = server, task

        async def started() -> bool:
            if task.done():
                task.result()
                raise AssertionError("the server ended instead of starting; its log says why")
            return server.started

        await eventually(started, "the server is up", seconds=20)

    async def stop(self) -> None:
        """As a server leaves that is told to: open streams end first."""
        if self._server is None or self._task is None or self._api is None:
            return
        leave(self._api)
        self._server.should_exit = True
        await self._task
        self._server = None

    async def declare(self) -> Engine:
        """Tell the database of what was declared since."""
        return await self.penstock.engine()

    async def work(self) -> int:
        """Run what is due, and what becomes due by that; how many starts."""
        await self.declare()
        options = Options(name="tests", until_idle=True)
        ran = await Worker(self.dsn, self.penstock.handlers(), options).run()
        return ran.processed

    async def login(self, page: Page, key: str = SECRET) -> None:
        """Sign in as a person does; ends at the overview."""
        await self.open(page, "/", key)

    async def open(self, page: Page, path: str, key: str = SECRET) -> None:
        """A page of the dashboard: whoever is not signed in is asked to, and led there."""
        await page.goto(f"{self.base}{path}")
        await page.get_by_label("Key").fill(key)
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{self.base}{path}")
