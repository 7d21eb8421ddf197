"""The database is killed under open streams; they stay open, and catch up afterwards."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from penstock.db.connections.pool import prepare
from penstock.db.embedded.database import Embedded
from penstock.db.schema import migrations
from support.db.embedded_uses import QUICK, end_servers, postmaster
from support.factory import claim, finish, queue, submit, worker
from support.http.listening import listening
from support.http.serving import Served, serving

pytestmark = [pytest.mark.alone, pytest.mark.timeout(120)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    end_servers(tmp_path)


async def connected(dsn: str) -> asyncpg.Connection:
    conn = await asyncpg.connect(dsn)
    await prepare(conn)
    return conn


async def test_streams_outlive_the_database(home: Path, tmp_path: Path) -> None:
    first = Embedded.use(home, settings=QUICK)
    conn = await connected(first.dsn)
    await migrations.up(conn)
    await queue(conn)
    job = await submit(conn, topic="a")
    number = await worker(conn, lease="1 hour")
    with serving(first.dsn, tmp_path) as server:
        await _watched_through(server, home, conn, job, number)
    first.leave()


async def _watched_through(
    server: Served, home: Path, conn: asyncpg.Connection, job: object, number: int
) -> None:
    await server.start()
    async with (
        server.client() as client,
        listening(client, "/v1/topics/a/events") as topic,
        listening(client, f"/v1/jobs/{job}/events") as one,
    ):
        await topic.next()
        await one.next()
        os.kill(postmaster(home), signal.SIGKILL)
        conn.terminate()
        again = Embedded.use(home, settings=QUICK)
        conn = await connected(again.dsn)
        await finish(conn, number, await claim(conn, number))
        await topic.status("succeeded", job, seconds=20)
        await one.over(seconds=20)
        assert one.had[-1].data["status"] == "succeeded"
        assert not topic.closed.is_set()
        conn.terminate()
        again.leave()
