"""The process whose API accepts a callback runs the app's on_finish callback, without a worker."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock import FinishedJob
from penstock.security import callback_token
from penstock.security.roots import Roots
from support import factory
from support.http.site import SECRET, Site
from support.waiting import eventually

ROOTS = Roots((SECRET,))


class OnFinish:
    """Records the calls of an app's on_finish callback; the first `failing` calls fail."""

    def __init__(self, *, failing: int = 0) -> None:
        self.ends: list[tuple[UUID, str, Any]] = []
        self._failing = failing

    async def __call__(self, job: FinishedJob, conn: asyncpg.Connection) -> None:
        if self._failing:
            self._failing -= 1
            raise ValueError
        assert await conn.fetchval("select true")
        self.ends.append((job.id, job.status, job.result))


async def _handed_over(
    site: Site, conn: asyncpg.Connection, callback: OnFinish
) -> tuple[UUID, str]:
    @site.penstock.job(queue=site.penstock.queue("q"), name="f")
    async def plain(n: int) -> None: ...

    async def on_finish(job: FinishedJob, own: asyncpg.Connection) -> None:
        await callback(job, own)

    plain.on_finish(on_finish)
    await site.start()
    worker = await factory.worker(conn, lease="2 hours")
    job = await factory.submit(conn, "f", payload={"n": 1})
    [start] = await factory.claim(conn, worker, "q")
    token = callback_token.make(ROOTS, job, start["attempt"])
    assert await factory.hand_over(conn, worker, start, token) == "done"
    return job, token


async def _call_back(site: Site, job: UUID, token: str) -> str:
    item = {"job_id": str(job), "token": token, "status": "succeeded", "result": 7}
    answer = await site.anonymous.post("/v1/callbacks", json=[item])
    [result] = answer.json()["results"]
    outcome: str = result["outcome"]
    return outcome


async def test_a_callback_runs_on_finish_at_once_and_once(
    site: Site, conn: asyncpg.Connection
) -> None:
    """M5, M7: without a worker; a second callback has no effect."""
    on_finish = OnFinish()
    job, token = await _handed_over(site, conn, on_finish)
    assert await _call_back(site, job, token) == "accepted"

    async def is_called() -> bool:
        return bool(on_finish.ends)

    await eventually(is_called, "the app is told")
    assert await _call_back(site, job, token) == "duplicate"
    await site.work()
    assert on_finish.ends == [(job, "succeeded", 7)]


async def test_a_failed_on_finish_callback_is_retried_later(
    site: Site, conn: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The function's callback is accepted nevertheless: the job has finished."""
    on_finish = OnFinish(failing=1)
    job, token = await _handed_over(site, conn, on_finish)
    assert await _call_back(site, job, token) == "accepted"

    async def is_put_off() -> bool:
        return any("on_finish failed" in one.message for one in caplog.records)

    await eventually(is_put_off, "the app could not take it")
    # The log line comes before the row is written.
    put_off = "select tries = 1 from penstock.pending_on_finish"
    await eventually(lambda: conn.fetchval(put_off), "and is told later")
    assert on_finish.ends == []
    await site.clock.advance(60)
    await site.work()
    assert on_finish.ends == [(job, "succeeded", 7)]
