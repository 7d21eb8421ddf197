"""Without workers, calls that drive a queue do all the upkeep."""

from datetime import timedelta
from uuid import UUID

import asyncpg

from penstock import Job
from penstock.errors import NotFound
from penstock.http.routes.queues import Process
from support.http.site import Site

CALLS = 5


def test_a_call_works_for_45_seconds_by_default() -> None:
    """M12"""
    assert Process.model_fields["seconds"].default == 45


async def test_a_call_recovers_times_out_refunds_and_prunes(
    site: Site, conn: asyncpg.Connection
) -> None:
    """M12: one job is of a lost worker, one has timed out, one finished long ago."""
    queue = site.penstock.queue("marks", timeout="1m", stuck_after="1h")

    @site.penstock.job(queue=queue)
    async def mark(job: Job) -> int:
        return job.attempt

    @site.penstock.job(queue=queue, account="pupil", price=4)
    async def draw(pupil: str) -> str:
        return pupil

    old = await mark.submit()
    await site.start()
    await site.engine.accounts.grant("u1", 10, reason="bought")
    client = site.client(await site.make_key("process"))
    call = "/v1/queues/marks/process"
    assert (await client.post(call, json={"seconds": 20})).json()["processed"] == 1

    await site.clock.advance(timedelta(days=9))
    left = await mark.submit()
    slow = await draw.using(account="u1", max_attempts=1).submit(pupil="u1")
    assert await _balance(conn) == 6
    gone = await site.engine.workers.register("gone", lease=timedelta(seconds=5))
    there = await site.engine.workers.register("there", lease=timedelta(days=1))
    [claimed] = await site.engine.jobs.claim(gone, "marks", 1)
    assert claimed.id == left.id
    [claimed] = await site.engine.jobs.claim(there, "marks", 1)
    assert claimed.id == slow.id
    await site.clock.advance("10s")
    assert (await client.post(call, json={"seconds": 20})).json()["processed"] == 1
    assert await left.result(timeout=1) == 2
    await site.clock.advance("1m")

    # Each call drops one partition of history, which is a day.
    for _ in range(CALLS):
        done = (await client.post(call, json={"seconds": 20, "chain": False})).json()
        assert (done["processed"], done["remaining"]) == (0, 0)
    finished = await site.engine.jobs.read(slow.id)
    assert (finished["status"], finished["error"]["class"]) == ("failed", "timeout")
    assert finished["credits"] == {"reserved": 4, "charged": 0, "refunded": 4}
    assert await _balance(conn) == 10
    assert await _is_gone(site, old.id)
    assert not await _is_gone(site, left.id)


async def _balance(conn: asyncpg.Connection) -> int:
    found: int = await conn.fetchval("select balance from penstock.account where name = 'u1'")
    return found


async def _is_gone(site: Site, job: UUID) -> bool:
    try:
        await site.engine.jobs.read(job)
    except NotFound:
        return True
    return False
