"""R-F10: clocks that are wrong, or are set under load. Only the database server's clock counts."""

import asyncio
import time
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from support import factory
from support.servers.faulty_machines import Ground, Watch, ground, need
from support.servers.postmaster import room
from support.shapes import Scale
from support.waiting import eventually
from support.worker.crew import outcomes, submit_many

HOUR, DAY = 3_600, 86_400
WAIT_SECONDS = 1.5
# A retry or a takeover after this is late; it includes polls, grace periods and a busy machine.
LATE_SECONDS = 12.0
# After a clock jump no lease expires for a while (worker/membership/clocks.py).
SETTLED_SECONDS = 9.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def tools() -> None:
    need("faketime")


async def waits_its_time(on: Ground) -> None:
    """A delay and a retry take the right time, by a clock that is not set."""
    begun = time.monotonic()
    jobs = [
        await factory.submit(on.conn, "nap", payload={"seconds": 0}, delay_seconds=WAIT_SECONDS),
        await factory.submit(on.conn, "later", payload={"seconds": WAIT_SECONDS}),
    ]
    for job in jobs:
        await on.crew.until_finished([job], seconds=LATE_SECONDS)
        assert time.monotonic() - begun >= WAIT_SECONDS


async def lost(on: Ground) -> int:
    n: int = await on.conn.fetchval(
        "select count(*) from penstock.worker where lost_at is not null"
    )
    return n


async def held(on: Ground, n: int) -> tuple[list[UUID], Path]:
    """Submit jobs that run until the gate file exists."""
    gate = on.crew.gate(f"gate-{time.monotonic()}")
    before = len(on.crew.noted("start"))
    jobs = await submit_many(on.conn, "hold", n, {"gate": str(gate)})
    await on.crew.until_noted("start", before + n)
    return jobs, gate


async def ends_once(on: Ground, jobs: list[UUID], gate: Path) -> None:
    gate.touch()  # noqa: ASYNC240  # a moment
    for row in await on.crew.until_finished(jobs):
        answer = await on.conn.fetch("select * from penstock.attempts where job_id = $1", row["id"])
        assert (row["status"], row["attempt"]) == ("succeeded", 1), f"{answer}\n{on.logs()}"


async def test_clocks_of_workers_and_servers_decide_nothing(tmp_path: Path, scale: Scale) -> None:
    """R-F10, I19: clocks hours and days off, or set while jobs run, change nothing."""
    watch = Watch(tmp_path / "watch", at_once=True)
    async with ground(tmp_path, prefix=watch.prefix) as on:
        await on.api.start()
        await on.crew.start("one", prefix=watch.prefix)
        jobs, gate = await held(on, 5)
        async with on.client() as client:
            for n, ahead in enumerate(scale((HOUR, -DAY), (HOUR, -HOUR, DAY, -DAY, 0) * 3)):
                watch.set(ahead)
                await waits_its_time(on)
                await on.insist(client, f"k{n}")
                made = await client.post(
                    "/v1/tokens", json={"job": str(jobs[0]), "ttl_seconds": 60}
                )
                token = made.json()["token"]
                assert (await _open(client, jobs[0], token)).status_code == 200
                # As with another server, whose clock is an hour ahead of this one's.
                watch.set(ahead + HOUR)
                refused = await _until_refused(client, jobs[0], token)
                assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
                assert "expired" in refused.json()["detail"]
        await ends_once(on, jobs, gate)
        assert await lost(on) == 0
        await on.drained()
        assert "Traceback" not in on.logs()


async def _open(client: httpx.AsyncClient, job: UUID, token: str) -> httpx.Response:
    return await client.get(f"/v1/jobs/{job}", headers={"Authorization": f"Bearer {token}"})


async def _until_refused(client: httpx.AsyncClient, job: UUID, token: str) -> httpx.Response:
    async def refused() -> bool:
        return not (await _open(client, job, token)).is_success

    await eventually(refused, "the token is too old", poll=0.05)
    return await _open(client, job, token)


async def test_a_server_whose_clock_is_set_keeps_working(tmp_path: Path, scale: Scale) -> None:
    """R-F10: after a step forward no living worker is lost; after one back no job waits longer."""
    with room() as folder:
        watch = Watch(folder / "watch", at_once=True)
        async with ground(tmp_path, environment=watch.environment) as on:
            await on.crew.start("one")
            await on.crew.start("two")
            await on.crew.past_grace()
            for ahead in scale((HOUR, 0), (HOUR, 0, DAY, HOUR, -HOUR, 0)):
                jobs, gate = await held(on, 10)
                short = await factory.submit(
                    on.conn, "hold", payload={"gate": str(gate)}, timeout_seconds=60
                )
                await on.crew.until_noted("start", len(on.crew.noted("start")))
                watch.set(ahead)
                await asyncio.sleep(SETTLED_SECONDS)
                await waits_its_time(on)
                await ends_once(on, [*jobs, short], gate)
                assert await lost(on) == 0
            await _a_death_is_seen(on)
            assert "the server's clock went forward by" in on.logs()
            assert "the server's clock went back by" in on.logs()
            await on.drained()


async def _a_death_is_seen(on: Ground) -> None:
    """The jobs of a killed worker run again soon, by any clock."""
    gate = on.crew.gate()
    jobs = await submit_many(on.conn, "hold_first", 4, {"gate": str(gate)})

    async def run() -> bool:
        n = await on.conn.fetchval("select count(*) from penstock.job where status = 'running'")
        return bool(n == len(jobs))

    await eventually(run, "they run")
    on.crew.started[0].kill()
    on.crew.started[1].kill()
    await on.crew.start("three")
    await on.crew.until_finished(jobs, seconds=LATE_SECONDS)
    for job in jobs:
        assert (await outcomes(on.conn, job))[-1] == "succeeded"
