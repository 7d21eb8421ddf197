"""The database dies or is unavailable for a while; when it is back, the workers go on."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock.db.connections.pool import prepare
from penstock.db.embedded.database import Embedded
from penstock.db.schema import migrations
from support.db.embedded_uses import QUICK, end_servers, postmaster
from support.factory import submit_rows
from support.shapes import Scale
from support.waiting import eventually
from support.worker.apps import app
from support.worker.crew import Crew, count, declare, until_finished

pytestmark = [pytest.mark.alone, pytest.mark.timeout(120)]


# What the driver raises when the server dies, depending on the moment.
GONE = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class Server:
    """A Postgres of this test, which can be killed and restarted."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._uses = [Embedded.use(home, settings=QUICK)]
        self.dsn = self._uses[0].dsn

    def kill(self) -> None:
        os.kill(postmaster(self.home), signal.SIGKILL)

    def start(self) -> None:
        """Start it, as a supervisor would; return when it accepts connections."""
        self._uses.append(Embedded.use(self.home, settings=QUICK))

    def stop(self) -> None:
        while self._uses:
            self._uses.pop().leave()

    async def connect(self) -> asyncpg.Connection:
        conn = await asyncpg.connect(self.dsn)
        await prepare(conn)
        return conn


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "home")
    yield server
    server.stop()
    end_servers(tmp_path)


@pytest.fixture
async def crew(server: Server, tmp_path: Path) -> AsyncIterator[Crew]:
    conn = await server.connect()
    await migrations.up(conn)
    await declare(server.dsn, app)
    crew = Crew(server.dsn, conn, tmp_path)
    yield crew
    crew.close()
    crew.conn.terminate()


async def reconnect(crew: Crew, server: Server) -> None:
    crew.conn.terminate()
    crew.conn = await server.connect()


class Load:
    """A caller that keeps submitting jobs, and knows which were acknowledged."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.accepted: list[UUID] = []
        self._task = asyncio.create_task(self._submit())

    async def _submit(self) -> None:
        while True:
            with suppress(*GONE):
                conn = await self._server.connect()
                try:
                    while True:
                        jobs = [{"kind": "nap", "payload": {"seconds": 0}}] * 20
                        self.accepted += await submit_rows(conn, jobs)
                        await asyncio.sleep(0.02)
                finally:
                    conn.terminate()
            await asyncio.sleep(0.02)

    async def end(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@pytest.mark.timeout(600)
async def test_workers_reconnect_after_the_server_was_killed(
    server: Server, crew: Crew, scale: Scale, record_property: Any
) -> None:
    """M2, M4, E12, F6: each acknowledged job finishes once; running jobs are not restarted."""
    workers = [await crew.start("a"), await crew.start("b")]
    long_ones = await submit_rows(
        crew.conn, [{"kind": "hold", "payload": {"gate": str(crew.gate())}}] * 10
    )
    await crew.until_noted("start", 10)
    load = Load(server)
    waits = []
    for n in range(scale(3, 20)):
        before = len(crew.noted("end"))
        await crew.until_noted("end", before + 200)
        if n == 0:
            workers[1].signal(signal.SIGSTOP)  # so that it comes back later than the other
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        back = time.time()
        await reconnect(crew, server)

        async def works(since: float = back) -> bool:
            return any(line.at > since for line in crew.noted("start"))

        await eventually(works, "a job begins after the server is back")
        waits.append(min(line.at for line in crew.noted("start") if line.at > back) - back)
        if n == 0:
            await eventually(lambda: crew.conn.fetchval(_UPKEEP_HAS_RUN), "a pass of upkeep")
            workers[1].signal(signal.SIGCONT)
        for worker in workers:
            await crew.settled(worker)
        settled = time.time() - back
        assert settled < 5, "both workers hold their keys again"
    await load.end()
    print("first attempt after the server was back:", ", ".join(f"{wait:.2f}" for wait in waits))
    record_property("first_start_after_restart_seconds", [round(wait, 3) for wait in waits])
    assert max(waits) < 2
    # Upkeep expires no leases for 3 s; only then would it restart jobs whose workers seem lost.
    await crew.past_grace()

    async def nothing_left() -> bool:
        left = await crew.conn.fetchval("select count(*) from penstock.job")
        return bool(left == len(long_ones))

    await eventually(nothing_left, "all short jobs finish", seconds=30)
    crew.gate().touch()
    rows = await until_finished(crew.conn, long_ones)
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 1)}
    assert count(line.job for line in crew.noted("start") if line.job in set(long_ones)) == (
        dict.fromkeys(long_ones, 1)
    )
    rows = await until_finished(crew.conn, load.accepted)
    assert {row["status"] for row in rows} == {"succeeded"}
    assert {(row["failures"], row["crashes"]) for row in rows} == {(0, 0)}
    lost = await crew.conn.fetchval(
        "select count(*) from penstock.worker where lost_at is not null"
    )
    assert lost == 0
    assert not await crew.conn.fetch("select * from penstock.check()")


# Upkeep runs about every half second. The slower worker needs the 3 s without expired leases.
_UPKEEP_HAS_RUN = """
select bool_or(backend_start < clock_timestamp() - interval '0.7 seconds')
from pg_stat_activity where application_name = 'penstock upkeep'
"""


async def test_handlers_go_on_while_the_database_is_unavailable(
    server: Server, crew: Crew, scale: Scale
) -> None:
    """F6, E12: their outcomes are written when it is back, and nothing is restarted."""
    await crew.start("a")
    [ends_meanwhile] = await submit_rows(
        crew.conn, [{"kind": "hold", "payload": {"gate": str(crew.gate("first"))}}]
    )
    goes_on = await submit_rows(
        crew.conn, [{"kind": "hold", "payload": {"gate": str(crew.gate("second"))}}] * 5
    )
    await crew.until_noted("start", 6)
    await asyncio.to_thread(server.stop)
    crew.gate("first").touch()
    [end] = await crew.until_noted("end", 1)
    assert end.job == ends_meanwhile
    outage_ends = time.monotonic() + scale(2, 30)

    async def long_enough() -> bool:
        return time.monotonic() > outage_ends

    await eventually(long_enough, "the outage is over", seconds=40)
    await asyncio.to_thread(server.start)
    await reconnect(crew, server)
    [row] = await until_finished(crew.conn, [ends_meanwhile])
    assert (row["status"], row["attempt"]) == ("succeeded", 1)
    [more] = await submit_rows(crew.conn, [{"kind": "nap", "payload": {"seconds": 0}}])
    [row] = await until_finished(crew.conn, [more])
    assert row["attempt"] == 1
    await crew.past_grace()
    crew.gate("second").touch()
    rows = await until_finished(crew.conn, goes_on)
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 1)}
    assert "declared lost" not in crew.started[0].log_text


@pytest.mark.faults
async def test_it_leaves_also_while_the_database_is_unavailable(server: Server, crew: Crew) -> None:
    """F6: without unregistering; its jobs are released when the server is back."""
    worker = await crew.start("leaving", drain=0.1)
    jobs = await submit_rows(
        crew.conn, [{"kind": "hold_first", "payload": {"gate": str(crew.gate())}}] * 3
    )
    await crew.until_noted("start", 3)
    await asyncio.to_thread(server.stop)
    worker.signal(signal.SIGTERM)
    assert (await worker.left())["reason"] == "stopped"
    await asyncio.to_thread(server.start)
    await reconnect(crew, server)
    await crew.start("other")
    rows = await until_finished(crew.conn, jobs)
    assert {(row["status"], row["attempt"], row["failures"]) for row in rows} == {
        ("succeeded", 2, 0)
    }
