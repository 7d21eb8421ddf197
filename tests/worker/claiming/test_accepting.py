"""A worker reports of which queues it would take one more job: stuck jobs are known by that."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from penstock import Penstock
from penstock.worker.claiming.claims import Claims, _ClaimResult
from support.factory import submit
from support.liveness import RULES, found
from support.waiting import eventually
from support.worker.crew import declare, until_finished, working

OFTEN = timedelta(seconds=0.05)


class Door:
    """A handler that runs until the test lets it return."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.app = Penstock(name="door")
        self.app.queue("q")
        self.app.queue("other")
        self.app.job(queue="q")(self.wait)
        self.app.job(queue="other")(self.beside)

    async def wait(self) -> None:
        await self.open.wait()

    def beside(self) -> None:
        """A plain function, whose slot is a thread."""


async def until_accepting(conn: asyncpg.Connection, queues: set[str]) -> None:
    async def so() -> bool:
        accepting: dict[str, Any] | None = await conn.fetchval(
            "select accepting from penstock.worker"
        )
        return set(accepting or {}) == queues

    await eventually(so, f"the worker accepts jobs of {queues}")


async def test_a_worker_accepts_while_it_has_a_free_slot_and_is_not_leaving(
    database: str, conn: asyncpg.Connection
) -> None:
    """One slot for coroutines: when it is taken, only functions are accepted."""
    door = Door()
    async with working(database, door.app, concurrency=1, beat=OFTEN) as crew:
        await until_accepting(conn, {"q", "other"})
        job = await submit(conn, "wait")
        await until_accepting(conn, {"other"})
        crew.worker.stop()
        await until_accepting(conn, set())
        door.open.set()
        await until_finished(conn, [job])


async def test_a_job_that_its_worker_does_not_claim_is_found(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door()

    async def nothing(*_: Any) -> _ClaimResult:
        return _ClaimResult([], 0, more=False)

    async with working(database, door.app, beat=OFTEN):
        await until_accepting(conn, {"q", "other"})
        assert await found(conn, 0.5) == []
        with monkeypatch.context() as patch:
            patch.setattr(Claims, "_take", nothing)
            job = await submit(conn, "wait")

            async def seen() -> bool:
                return await found(conn, 0.5) == [(RULES["start"], str(job))]

            await eventually(seen, "the job is found")
        door.open.set()
        await until_finished(conn, [job])
        assert await found(conn, 0.5) == []


async def test_a_job_that_waits_for_a_blocked_loop_is_found(
    database: str, conn: asyncpg.Connection
) -> None:
    """The worker's heartbeat goes on, and reports a free slot; but its loop cannot claim."""
    app = Penstock(name="blocking")
    app.queue("q")
    app.queue("other")

    @app.job(queue="other")
    async def block() -> None:
        time.sleep(2)  # noqa: ASYNC251  # on purpose

    @app.job(queue="q")
    async def quick() -> None:
        pass

    await declare(database, app)
    seen: list[tuple[str, str]] = []
    # This test's loop stands still with the worker's, so another thread has to check.
    async with working(database, app, beat=OFTEN):
        await until_accepting(conn, {"q", "other"})
        watching = asyncio.create_task(asyncio.to_thread(_watch, database, seen))
        await submit(conn, "block")
        await watching
    assert {rule for rule, _ in seen} == {RULES["start"]}


def _watch(dsn: str, seen: list[tuple[str, str]]) -> None:
    async def watch() -> None:
        conn = await asyncpg.connect(dsn)
        try:
            await eventually(
                lambda: conn.fetchval("select bool_or(status = 'running') from penstock.job"),
                "it blocks",
            )
            await submit_plain(conn)

            async def stuck() -> bool:
                seen[:] = await found(conn, 0.5)
                return bool(seen)

            await eventually(stuck, "the job is found")
        finally:
            await conn.close()

    async def submit_plain(conn: asyncpg.Connection) -> None:
        await conn.execute("select penstock.submit_job('quick', '{}')")

    asyncio.run(watch())
