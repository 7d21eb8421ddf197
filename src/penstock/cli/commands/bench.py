"""`penstock bench`: measure this server, and compare with bare commits at the same time."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import asyncpg
import typer

from penstock.base.settings import Settings
from penstock.cli.output.console import Json, answer, settings
from penstock.cli.output.render import Column, listing
from penstock.db import scratch
from penstock.db.connections.connect import open_connection
from penstock.db.embedded.database import Embedded
from penstock.db.embedded.files import ROLE
from penstock.db.schema import migrations

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.worker.worker import Worker

# A single submit or commit waits for the disk, so there are fewer of them than jobs in bulk.
_BULK_PER_SINGLE = 10
# Jobs that an idle worker gets one at a time, and the pause in which it becomes idle again.
_PICKUPS = 100
_IDLE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    value: float
    unit: str
    beside: float | None = None
    """The bare commits of this run, if a ratio to them is meaningful."""

    @property
    def figure(self) -> str:
        return f"{self.value:,.0f}/s" if self.unit == "/s" else f"{self.value:.1f} {self.unit}"

    @property
    def ratio(self) -> str:
        return "-" if self.beside is None else f"{self.value / self.beside:.2f}"


COLUMNS = (
    Column("WHAT", lambda line: line.what),
    Column("FIGURE", lambda line: line.figure, right=True),
    Column("TO COMMITS", lambda line: line.ratio, right=True),
)


def bench(
    *,
    jobs: Annotated[
        int, typer.Option(min=100, max=1_000_000, help="Jobs in bulk; a tenth as many one by one.")
    ] = 10_000,
    as_json: Json = False,
) -> None:
    """Measure submits, a worker and its reaction time, in a database that is dropped afterwards.

    The figures hold for this server, from this machine, at this moment. Your jobs are not touched,
    but the server is under load for some seconds.
    """
    lines = asyncio.run(_measure(settings(), jobs))
    table = listing(COLUMNS, "Nothing was measured.")(lines)
    answer([asdict(line) for line in lines], lambda _: table, as_json=as_json)


async def _measure(settings: Settings, jobs: int) -> list[Line]:
    # Imported here, since it imports the worker with all its dependencies.
    from penstock.client.app import Penstock
    from penstock.client.testing import scratch_database

    refusal = (
        "penstock bench creates a database to measure in, and this role may not. Grant "
        "it CREATEDB, or unset PENSTOCK_DSN: then an embedded server is measured."
    )
    async with AsyncExitStack() as held:
        server = scratch.Server(settings.dsn or "", None)
        if settings.dsn is None:
            embedded = await asyncio.to_thread(Embedded.use, settings.home)
            held.push_async_callback(asyncio.to_thread, embedded.leave)
            server = scratch.Server(embedded.admin_dsn, ROLE)
        dsn = await held.enter_async_context(scratch_database(server, "penstock_bench", refusal))
        conn = await open_connection(dsn)
        held.push_async_callback(conn.close)
        await migrations.up(conn)
        app = Penstock(dsn, name="bench")
        held.push_async_callback(app.close)
        _declare(app)
        await app.engine()
        return await _lines(app, dsn, conn, jobs)


def _declare(app: "Penstock") -> None:
    queue = app.queue("bench")

    @app.job(queue=queue)
    async def noop() -> None:
        pass

    @app.job(queue=queue)
    async def stamp() -> float:
        return time.perf_counter()


async def _lines(app: "Penstock", dsn: str, conn: asyncpg.Connection, jobs: int) -> list[Line]:
    noop, singles = app.kinds["noop"], jobs // _BULK_PER_SINGLE
    await conn.execute("create table bare (id uuid primary key, payload jsonb)")

    def insert() -> Awaitable[object]:
        return conn.execute("insert into bare values (gen_random_uuid(), '{}')")

    bare = await _rate(singles, insert, times=singles)
    submits = await _rate(singles, noop.submit, times=singles)
    bulk = await _rate(jobs, lambda: noop.submit_many({} for _ in range(jobs)))
    work = await _rate(jobs + singles, _worker(app, dsn, until_idle=True).run)
    waits = await _pickups(app, dsn)
    last = statistics.quantiles(waits, n=100)[98]
    return [
        Line("commits of a row, one after the other", bare, "/s"),
        Line("submits, one after the other", submits, "/s", bare),
        Line("submits, many in one call", bulk, "/s"),
        Line("jobs that do nothing, one worker", work, "/s"),
        Line("from submit to attempt, idle worker: p50", statistics.median(waits), "ms"),
        Line("from submit to attempt, idle worker: p99", last, "ms"),
    ]


async def _rate(n: int, call: Callable[[], Awaitable[object]], *, times: int = 1) -> float:
    """Make the calls one after the other; return how many of `n` were done per second."""
    began = time.perf_counter()
    for _ in range(times):
        await call()
    return n / (time.perf_counter() - began)


def _worker(app: "Penstock", dsn: str, *, until_idle: bool = False) -> "Worker":
    from penstock.worker.worker import Options, Worker

    options = Options(name="bench", until_idle=until_idle, webhooks=False)
    return Worker(dsn, app.handlers(), options)


async def _pickups(app: "Penstock", dsn: str) -> list[float]:
    """Return how long each job waited for an idle worker, in milliseconds."""
    worker = _worker(app, dsn)
    running = asyncio.create_task(worker.run())
    waits: list[float] = []
    try:
        for _ in range(_PICKUPS):
            await asyncio.sleep(_IDLE_SECONDS)
            began = time.perf_counter()
            ticket: Any = await app.kinds["stamp"].submit()
            waits.append((await ticket.result(timeout=60) - began) * 1e3)
    finally:
        worker.stop()
        await running
    return waits[1:]  # the first one includes the startup of the worker
