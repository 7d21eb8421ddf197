"""A running worker measures the data for positions and ETAs."""

import asyncpg

from penstock import Penstock
from penstock.worker.maintenance import upkeep
from support.factory import read, submit
from support.waiting import eventually
from support.worker.crew import until_finished, working


async def test_a_worker_measures_how_long_jobs_take(
    database: str, conn: asyncpg.Connection
) -> None:
    """F2"""
    app = Penstock(name="measuring")
    app.queue("q", concurrency=1)

    @app.job(queue="q")
    async def nothing() -> None: ...

    async with working(database, app):
        await until_finished(conn, [await submit(conn, "nothing")])
        await eventually(
            lambda: conn.fetchval("select count(*) from penstock.pace"),
            "the kind has a pace",
            seconds=upkeep.MEASURE_SECONDS * 4,
        )
        await conn.execute("select penstock.pause_queue('q', null)")
        job = await submit(conn, "nothing")
        row = await read(conn, job)
        assert (row["position"], row["eta_seconds"]) == (1, None)
