"""The whole demo around the API of `penstock dev`: its processes, its visitors, its page.

stage = Stage(own, url, sockets)
stage.install(api)            # the page at /demo
async with stage.running():   # models, worker, web apps, visitors
    …                         # the API serves; stage.stop() stops everything
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple
from pathlib import Path

import aiohttp
import asyncpg
from starlette.applications import Starlette

from demo import setting
from demo.children import Child, End, Life
from demo.healing import Healing
from demo.own import load_own
from demo.people import People
from demo.readings import Readings
from demo.story import Story
from parts import HOST
from penstock.cli.serving.serving import url_of

_CALL_SECONDS = 2.0


class Stage:
    """The whole demo; nothing is started yet.

    own      the file with `penstock dev`'s own kind
    url      the API's address on this machine
    sockets  the sockets of the web apps, by system
    """

    readings: Readings
    people: People

    def __init__(self, own: Path, url: str, sockets: dict[str, socket.socket]) -> None:
        self._models_at = setting.Ports.choose()
        os.environ.update(setting.NOT_OURS)
        os.environ[setting.OWN_MODEL] = setting.at(self._models_at.model)
        self.app = load_own(own)
        self.story = Story()
        self.ports = {key: sock.getsockname()[1] for key, sock in sockets.items()}
        self.urls = {key: url_of(sock) for key, sock in sockets.items()}
        self._env = setting.environment(self.app.settings, url, self._models_at)
        self._life = Life()
        self._hurry = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._visiting: asyncio.Task[None] | None = None
        self._healing: Healing | None = None
        self._pool: asyncpg.Pool | None = None
        self.models = self._child("models", [str(port) for port in astuple(self._models_at)])
        self.worker = self._child("worker", [])
        self.sites = self._child(
            "sites",
            [f"{key}={sock.fileno()}" for key, sock in sockets.items()],
            fds=[sock.fileno() for sock in sockets.values()],
        )
        # The page signs people in to the systems, so it needs their secrets.
        os.environ.update({name: self._env[name] for name in setting.SECRETS})

    def _child(self, name: str, words: list[str], fds: Sequence[int] = ()) -> Child:
        return Child(f"demo.{name}", words, life=self._life, fds=fds, on_end=self._exited)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._start()
        try:
            # While the others load: this starts the database and declares the default plan.
            await self.app.engine()
            self._pool = await asyncpg.create_pool(await self.app.dsn(), min_size=1, max_size=3)
            self.readings = Readings(self._pool)
            self._healing = Healing(
                self.story,
                self.readings,
                answers_model=self.answers_model,
                answers_sites=self.answers_sites,
            )
            self.people = People(self.urls, self._env, self.readings.waiting)
            self._visiting = asyncio.create_task(self.people.live())
            yield
        finally:
            await self._leave()
            self._life.close()

    def _start(self) -> None:
        for child in (self.models, self.worker, self.sites):
            child.start()
            work = child.keep_running(self._env, setting.EXAMPLES)
            self._tasks.append(asyncio.create_task(work))
        self.story.add("begun")

    async def _leave(self) -> None:
        """Stop everything, also if the API has exited without a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hurry.set)
        if self._ending is None:
            self.stop()
        assert self._ending is not None
        await self._ending
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Stop gracefully; at the second call, stop at once."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        else:
            self._hurry.set()

    async def _end(self) -> None:
        """Stop the own tasks first, and the models last, so that running jobs can finish."""
        if self._visiting is not None:
            self._visiting.cancel()
        if self._healing is not None:
            await self._healing.close()
        if self._pool is not None:
            self._pool.terminate()
        await asyncio.gather(self.sites.end(self._hurry), self.worker.end(self._hurry))
        await self.models.end(self._hurry)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _exited(self, child: Child, end: End) -> None:
        """Report a process that exited, once the database is available."""
        if self._healing is None:
            return
        if child is self.models:
            self._healing.model_exited(end, child)
        elif child is self.worker:
            self._healing.worker_exited(end, child)
        else:
            self._healing.sites_exited(end)

    def install(self, api: Starlette) -> None:
        """The page and its buttons, as routes of the API's app."""
        # Imported here, because the systems read their secrets when they are imported.
        from demo.landing import routes

        api.router.routes.extend(routes(self))

    async def answers_model(self) -> bool:
        """Whether all services accept connections."""
        at = self._models_at
        for port in (at.model, at.essays, at.function):
            try:
                _, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                return False
            writer.close()
        return True

    async def answers_sites(self) -> bool:
        """Whether all web apps answer; a connection proves nothing, as their sockets stay open."""
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as client:
            for url in self.urls.values():
                try:
                    async with client.get(url, allow_redirects=False):
                        pass
                except (OSError, TimeoutError, aiohttp.ClientError):
                    return False
        return True
