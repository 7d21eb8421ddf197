"""How soon does an idle worker start a job that another process submits?

There is one submit every 25 ms. Measured is the time from just before `kind.submit()` to the first
line of the handler, by the clock of the machine, which the processes and Postgres share. In turn
with it, at the same pace: a NOTIFY from one session to another, and the commit of a single row.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

import asyncpg

import bare
from app import build
from penstock.client.kind import Kind
from penstock.db.embedded.database import Embedded
from report import Found, Line, Rounds, percentile
from server import connection, fresh, until
from worker_process import worker_process

EVERY_SECONDS = 0.025
DONE_SECONDS = 30.0
_FINISHED = "select not exists (select from penstock.job where id = any ($1))"


@dataclass(frozen=True, slots=True)
class Sample:
    """Moments of one job, in milliseconds of the machine's clock."""

    called: float
    returned: float
    started: float
    """When the database started its attempt."""
    handler: float


async def paced(samples: int, call: Callable[[], Awaitable[None]]) -> None:
    """Make the calls one after the other at the pace; a slow call delays the next one."""
    due = time.perf_counter()
    for _ in range(samples):
        await call()
        due = max(due + EVERY_SECONDS, time.perf_counter())
        await asyncio.sleep(due - time.perf_counter())


async def picked_up(
    conn: asyncpg.Connection, kind: Kind[..., object], samples: int
) -> list[Sample]:
    """Submit at the pace, wait until all have finished, and read the moments of each."""
    calls: list[tuple[object, float, float]] = []

    async def submit() -> None:
        called = time.time_ns()
        ticket = await kind.submit()
        calls.append((ticket.id, called / 1e6, time.time_ns() / 1e6))

    await paced(samples, submit)
    ids = [job for job, _, _ in calls]
    await until(conn, _FINISHED, ids, seconds=DONE_SECONDS)
    rows = await conn.fetch(
        "select id, started_at, result from penstock.finished where id = any ($1)", ids
    )
    finished = {row["id"]: row for row in rows}
    return [
        Sample(
            called,
            returned,
            _milliseconds(finished[job]["started_at"]),
            finished[job]["result"]["at"] / 1e6,
        )
        for job, called, returned in calls
    ]


async def pickup(running: Embedded, *, quick: bool) -> Found:
    """From submit to handler, compared with a bare NOTIFY and a bare commit."""
    turns, samples = (2, 20) if quick else (5, 100)
    alone: list[Sample] = []
    notifies: list[float] = []
    inserts: list[float] = []
    async with fresh(running) as dsn:
        app = build(dsn)
        stamp = app.kinds["stamp"]
        await app.engine()
        conn, other = await connection(dsn), await connection(dsn)
        await conn.execute(bare.TABLES)
        echo = await bare.Echo.between(conn, other)

        async def notify() -> None:
            notifies.append(await echo.round_trip())

        async def insert() -> None:
            inserts.append(await bare.insert(conn))

        async with worker_process(dsn, conn):
            await picked_up(conn, stamp, samples // 2)  # warm
            for _ in range(turns):
                await paced(samples, notify)
                await paced(samples, insert)
                alone += await picked_up(conn, stamp, samples)
        await app.close()
        await conn.close()
        await other.close()
    times = [each.handler - each.called for each in alone]
    rounds: Rounds = {
        "pickup": times,
        "notify": notifies,
        "insert": inserts,
        "submit call": [each.returned - each.called for each in alone],
        "submit called to start in the database": [each.started - each.called for each in alone],
        "start in the database to handler": [each.handler - each.started for each in alone],
    }
    notify_p50, notify_p99 = percentile(notifies, 50), percentile(notifies, 99)
    insert_p50 = statistics.median(inserts)
    lines = [
        Line(
            f"pickup by an idle worker, p50 of {len(times)}",
            percentile(times, 50),
            "ms",
            notify_p50,
            "NOTIFY round trip, p50",
            2.5,
            of="ours",
            least=False,
        ),
        Line(
            f"pickup by an idle worker, p99 of {len(times)}",
            percentile(times, 99),
            "ms",
            notify_p99,
            "NOTIFY round trip, p99",
            6,
            of="ours",
            least=False,
        ),
    ]
    for name in list(rounds)[3:]:
        part = percentile(rounds[name], 50)
        lines.append(Line(f"  {name}, p50", part, "ms", insert_p50, "commit of a row, p50"))
    return Found(lines, rounds)


def _milliseconds(moment: datetime) -> float:
    return moment.timestamp() * 1e3
