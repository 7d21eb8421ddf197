"""A running API on the test's database: clients by key, and a worker on request."""

import asyncio
from typing import Any

import httpx
from starlette.applications import Starlette

from penstock import Penstock
from penstock.engine.engine import Engine
from penstock.errors import Conflict
from penstock.server import api
from penstock.worker.worker import Options, Worker
from support.clock import Clock
from support.http.transport import StreamingTransport
from support.signing import SECRET as SECRET  # noqa: PLC0414  # others import it from here

START_SECONDS = 20


class Site:
    """Declare queues and kinds on `penstock`; the first request starts the server."""

    def __init__(self, dsn: str, penstock: Penstock, engine: Engine, clock: Clock) -> None:
        self.dsn = dsn
        self.penstock = penstock
        self.engine = engine
        """Directly on the database, beside the server."""
        self.clock = clock
        self._api: Starlette | None = None
        self._life: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._stop = asyncio.Event()
        self._clients: list[httpx.AsyncClient] = []
        self.admin = self.client(SECRET)
        self.anonymous = self.client(None)
        self.app_client = self.anonymous  # `open` gives it a key

    async def open(self) -> None:
        self.app_client = self.client(await self.make_key("app"))

    @property
    def api(self) -> Starlette:
        if self._api is None:
            self._api = api(self.penstock)
        return self._api

    def client(
        self,
        key: str | None,
        *,
        raises: bool = True,
        address: str = "192.0.2.7",
        prefix: str = "",
    ) -> httpx.AsyncClient:
        """A client with this key or token. Without `raises`, an error inside is a 500.

        `prefix`: as if another app had mounted the API there.
        """

        async def call(scope: Any, receive: Any, send: Any) -> None:
            if prefix:
                scope |= {"root_path": prefix, "path": prefix + scope["path"]}
            await self.api(scope, receive, send)

        made = httpx.AsyncClient(
            transport=StreamingTransport(call, self.start, raises=raises, address=address),
            base_url="http://penstock.test",
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=30,
        )
        self._clients.append(made)
        return made

    async def make_key(self, kind: str, account: str | None = None) -> str:
        if account is not None:
            await self.make_account(account)
        key, _ = await self.engine.keys.create(kind, account=account)
        return key

    async def account_client(self, account: str) -> httpx.AsyncClient:
        """A client with a key of that account, which is made if it does not exist."""
        return self.client(await self.make_key("account", account))

    async def make_account(self, name: str, *, plan: str | None = None, credits: int = 0) -> None:  # noqa: A002
        await self.penstock.engine()  # plans are declared
        try:
            await self.engine.accounts.create(name, plan=plan)
        except Conflict:
            assert plan is None, f"account {name} exists"
        if credits:
            await self.engine.accounts.grant(name, credits, reason="test")

    async def start(self) -> None:
        """Start the server, and declare in the database what was added since."""
        if self._life is None:
            self._life = asyncio.get_running_loop().create_task(self._live())
        waiting = asyncio.ensure_future(self._started.wait())
        await asyncio.wait(
            [waiting, self._life], timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        if self._life.done():
            self._life.result()
        assert self._started.is_set(), "the server did not start"
        await self.penstock.engine()

    async def work(self) -> int:
        """Run due jobs, and jobs that become due by that; return the number of attempts."""
        await self.penstock.engine()
        options = Options(name="tests", until_idle=True)
        ran = await Worker(self.dsn, self.penstock.handlers(), options).run()
        return ran.processed

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()
        self._stop.set()
        if self._life is not None:
            await self._life
        await self.penstock.close()

    async def _live(self) -> None:
        # In its own task, as a server does: the task that opens resources closes them.
        async with self.api.router.lifespan_context(self.api):
            self._started.set()
            await self._stop.wait()


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Assert a refusal in the form of RFC 9457; return its fields."""
    assert response.status_code == status, f"{response.status_code}: {response.text}"
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status, body
    assert body["code"] == code, body
    assert body["type"], body
    assert body["title"], body
    assert body["detail"], body
    return body
