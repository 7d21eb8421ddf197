"""R-F14: a server without free connections, and clients that need many."""

import asyncio
import time
import uuid
from collections import Counter
from pathlib import Path

import asyncpg
import httpx
import pytest

from support.servers.faulty_machines import Ground, ground
from support.shapes import Scale
from support.waiting import eventually
from support.worker.crew import Process, outcomes, submit_many

MOST = 30
LEAKS = 18
CLIENTS = 200
# The API's own deadline, and the delay by a busy machine.
ANSWER_SECONDS = 25.0
TAKEOVER_SECONDS = 8.0
STRANGER = "stranger"

pytestmark = pytest.mark.timeout(300)


async def leak(on: Ground, n: int | None) -> list[asyncpg.Connection]:
    """Open sessions of another role, idle in a transaction; by default as many as possible."""
    dsn = on.server.dsn.replace("owner@", f"{STRANGER}@")
    found: list[asyncpg.Connection] = []
    while n is None or len(found) < n:
        try:
            conn = await asyncpg.connect(dsn)
        except asyncpg.TooManyConnectionsError:
            break
        await conn.execute("begin; select 1")
        found.append(conn)
    return found


async def storm(on: Ground, each: int) -> Counter[int]:
    """Call with many clients at once: each gets an answer soon."""
    statuses: Counter[int] = Counter()

    async def submit(client: httpx.AsyncClient) -> None:
        for _ in range(each):
            begun = time.monotonic()
            try:
                answer = await on.submit(client, uuid.uuid4().hex)
            except httpx.ReadError:
                continue  # the connection was idle too long, and was closed at this moment
            assert time.monotonic() - begun < ANSWER_SECONDS
            statuses[answer.status_code] += 1
            if not answer.is_success:
                assert answer.json()["code"] == "unavailable"
                assert int(answer.headers["retry-after"]) >= 1

    async with on.client() as client:
        await asyncio.gather(*(submit(client) for _ in range(CLIENTS)))
    return statuses


async def test_a_server_whose_connections_are_all_taken(tmp_path: Path, scale: Scale) -> None:
    """Open sessions work on: lost workers are noticed, jobs run; new clients get the reason."""
    settings = {"max_connections": str(MOST), "superuser_reserved_connections": "0"}
    async with ground(tmp_path, settings=settings) as on:
        await on.conn.execute(f"create role {STRANGER} login")
        await on.api.start()
        dying, living = await on.crew.start("dying"), await on.crew.start("living")
        await on.crew.past_grace()
        few = await leak(on, LEAKS - 10)
        print(f"strangers in part: {dict(await storm(on, scale(1, 20)))}")
        many = await leak(on, None)

        gate = on.crew.gate()
        jobs = await submit_many(on.conn, "hold_first", 4, {"gate": str(gate)})
        await on.crew.until_noted("start", 4)
        begun = time.monotonic()
        dying.kill()
        many += await leak(on, None)  # its connections are taken at once
        await eventually(lambda: _taken(on, jobs), "its jobs are taken", seconds=TAKEOVER_SECONDS)
        took = time.monotonic() - begun
        print(f"strangers everywhere: {dict(await storm(on, scale(1, 20)))}, takeover {took:.2f} s")

        new = Process(on.server.dsn, tmp_path, "new")
        on.crew.started.append(new)
        await asyncio.to_thread(new.popen.wait, 30)
        assert "too many" in new.log_text or "remaining connection slots" in new.log_text
        gate.touch()

        for conn in (*few, *many):
            conn.terminate()
        begun = time.monotonic()
        async with on.client() as client:
            await on.insist(client, "after", within=10)
        print(f"back {time.monotonic() - begun:.2f} s after the strangers left")
        await on.crew.until_finished(jobs)
        for job in jobs:
            assert (await outcomes(on.conn, job))[-1] == "succeeded"
        await on.drained()
        assert living.popen.poll() is None
        assert "Traceback" not in on.logs().replace(new.log_text, "")


async def _taken(on: Ground, jobs: list[uuid.UUID]) -> bool:
    """Each job has finished, or is with a living worker."""
    n = await on.conn.fetchval(
        "select count(*) from penstock.job j join penstock.worker w on w.id = j.worker_id"
        " where j.id = any($1) and w.name = 'dying'",
        jobs,
    )
    return bool(n == 0)
