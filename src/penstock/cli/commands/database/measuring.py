"""What `penstock bench` measures: submits, a worker, and how soon a resting worker starts a job."""

import asyncio
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from penstock.base.settings import Settings
from penstock.client.app import Penstock
from penstock.db import scratch
from penstock.db.connections.connect import open_connection
from penstock.db.embedded.database import Embedded
from penstock.db.embedded.files import ROLE
from penstock.db.schema import migrations
from penstock.errors import Misconfigured
from penstock.worker.worker import Options, Worker

# Single submits and commits wait for the disk each time: one for so many in bulk is enough.
_BULK_PER_SINGLE = 10
# Jobs that a resting worker gets one by one, and the pause in which it comes to rest.
_PICKUPS = 100
_REST_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    value: float
    unit: str
    beside: float | None = None
    """The bare commits of this run, where a ratio to them means something."""


async def measure(found: Settings, jobs: int) -> list[Line]:
    async with _database(found) as dsn:
        app = Penstock(dsn, name="bench")
        _declare(app)
        try:
            await app.engine()
            conn = await open_connection(dsn)
            try:
                return await _lines(app, dsn, conn, jobs)
            finally:
                await conn.close()
        finally:
            await app.close()


def _declare(app: Penstock) -> None:
    queue = app.queue("bench")

    @app.job(queue=queue)
    async def noop() -> None:
        pass

    @app.job(queue=queue)
    async def stamp() -> float:
        return time.perf_counter()


async def _lines(app: Penstock, dsn: str, conn: asyncpg.Connection, jobs: int) -> list[Line]:
    noop, singles = app.kinds["noop"], jobs // _BULK_PER_SINGLE
    await conn.execute("create table bare (id uuid primary key, payload jsonb)")

    async def commits() -> None:
        for _ in range(singles):
            await conn.execute("insert into bare values (gen_random_uuid(), '{}')")

    async def submits() -> None:
        for _ in range(singles):
            await noop.submit()

    async def bulk() -> None:
        await noop.submit_many({} for _ in range(jobs))

    async def work() -> None:
        options = Options(name="bench", until_idle=True, webhooks=False)
        await Worker(dsn, app.handlers(), options).run()

    bare = await _rate(singles, commits)
    lines = [
        Line("commits of a row, one after the other", bare, "/s"),
        Line("submits, one after the other", await _rate(singles, submits), "/s", bare),
        Line("submits, many in one call", await _rate(jobs, bulk), "/s"),
        Line("jobs that do nothing, one worker", await _rate(jobs + singles, work), "/s"),
    ]
    waits = await _pickups(app, dsn)
    lines.append(Line("from submit to start, worker at rest: half", statistics.median(waits), "ms"))
    last = statistics.quantiles(waits, n=100)[98]
    lines.append(Line("from submit to start, worker at rest: 99 of 100", last, "ms"))
    return lines


async def _rate(n: int, work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return n / (time.perf_counter() - began)


async def _pickups(app: Penstock, dsn: str) -> list[float]:
    """How long each job waited for a worker that had nothing to do, in milliseconds."""
    worker = Worker(dsn, app.handlers(), Options(name="bench", webhooks=False))
    running = asyncio.create_task(worker.run())
    waits: list[float] = []
    try:
        for _ in range(_PICKUPS):
            await asyncio.sleep(_REST_SECONDS)
            began = time.perf_counter()
            ticket: Any = await app.kinds["stamp"].submit()
            waits.append((await ticket.result(timeout=60) - began) * 1e3)
    finally:
        worker.stop()
        await running
    return waits[1:]  # with the first it also begins its life


@asynccontextmanager
async def _database(found: Settings) -> AsyncIterator[str]:
    embedded = None
    if found.dsn is None:
        embedded = await asyncio.to_thread(Embedded.use, found.home)
    server = (
        scratch.Server(embedded.admin_dsn, ROLE)
        if embedded is not None
        else scratch.Server(found.dsn or "", None)
    )
    name = f"penstock_bench_{uuid.uuid4().hex[:16]}"
    try:
        maker = await open_connection(server.maker)
        try:
            try:
                await scratch.create(maker, name, server.owner)
            except asyncpg.InsufficientPrivilegeError:
                raise Misconfigured(
                    "penstock bench makes a database to measure in, and this role may not. Grant "
                    "it CREATEDB, or leave PENSTOCK_DSN away: then an embedded server is measured."
                ) from None
            try:
                conn = await open_connection(server.dsn(name))
                try:
                    await migrations.up(conn)
                finally:
                    await conn.close()
                yield server.dsn(name)
            finally:
                await scratch.drop(maker, name)
        finally:
            await maker.close()
    finally:
        if embedded is not None:
            await asyncio.to_thread(embedded.leave)
