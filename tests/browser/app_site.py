"""The site of an app, at an origin of its own: its pages embed what Penstock serves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response

from support.http.serving import free_port
from support.waiting import eventually

JAVASCRIPT = "text/javascript"


class AppSite:
    def __init__(self) -> None:
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.pages: dict[str, str] = {}
        self.scripts: dict[str, str] = {}
        self.token = ""
        """What the app's own server gives to a page that asks for one."""
        self.asked = 0

    def app(self) -> FastAPI:
        app = FastAPI()
        app.get("/token")(self._token)
        app.get("/pages/{name}")(self._page)
        app.get("/scripts/{name}")(self._script)
        return app

    async def _token(self) -> Response:
        self.asked += 1
        return Response(self.token, media_type="text/plain")

    async def _page(self, name: str) -> HTMLResponse:
        return HTMLResponse(self.pages[name])

    async def _script(self, name: str) -> Response:
        return Response(self.scripts[name], media_type=JAVASCRIPT)


@asynccontextmanager
async def serving(site: AppSite) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(site.app(), port=site.port, log_level="warning"))
    task = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started

    try:
        await eventually(started, "the site of the app is up")
        yield
    finally:
        server.should_exit = True
        await task
