"""A repeated report of an outcome waits for the standby like the first one."""

import asyncio

import pytest

from penstock.db.connections.connect import open_connection
from penstock.db.schema import migrations
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Succeeded
from penstock.errors import Unavailable
from support import factory
from support.http.serving import free_port
from support.servers.failover import configure
from support.servers.postmaster import Postmaster, room

ANSWER_SECONDS = 1.0


@pytest.mark.timeout(120)
async def test_a_repeated_outcome_and_a_repeated_cancel_wait_for_the_standby_too() -> None:
    """E9, R-F11b: "stale" would let a worker drop a result that a promoted standby does not have.

    "cancelled" would be reported for a job that the promoted standby starts.
    """
    with room() as folder:
        server = Postmaster(folder / "alone", free_port())
        try:
            await asyncio.to_thread(lambda: server.make().start())
            conn = await open_connection(server.dsn)
            await migrations.up(conn)
            await factory.queue(conn)
            worker = await factory.worker(conn)
            await factory.submit(conn)
            waiting = await factory.submit(conn)
            async with await Engine.open(server.dsn) as before:
                [start] = await before.jobs.claim(worker, "q", 1)
            configure(server, "synchronous_standby_names", "away")
            async with await Engine.open(server.dsn, answer_seconds=ANSWER_SECONDS) as engine:

                async def report() -> str:
                    [answer] = await engine.jobs.finish(worker, [(start, Succeeded({}))])
                    return answer.verdict

                for _ in range(2):
                    with pytest.raises(Unavailable):
                        await report()
                    with pytest.raises(Unavailable):
                        await engine.jobs.cancel(waiting)
                configure(server, "synchronous_standby_names", "")
                assert await report() == "stale"
                assert (await engine.jobs.cancel(waiting))["status"] == "cancelled"
            assert await factory.status(conn, start.id) == "succeeded"
            await conn.close()
        finally:
            server.kill()
