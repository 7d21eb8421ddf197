"""`app.testing()`: a database for one test, jobs that run on command, a movable clock."""

from pathlib import Path

import asyncpg
import pytest

from penstock import Fail, Misconfigured, Penstock, Retries, Retry
from penstock.engine.jobs.on_finish import FinishedJob
from penstock.errors import JobFailed, NotFound


@pytest.fixture
def app(tmp_path: Path) -> Penstock:
    return Penstock(home=tmp_path / "home", name="tested")


async def test_due_jobs_run_on_drain_and_retries_after_the_clock_moved(
    app: Penstock,
) -> None:
    """F3: after 5 minutes, then after 10; at most 3 attempts."""
    queue = app.queue("q", retry=Retries(attempts=3))
    tries: list[int] = []

    @app.job(queue=queue)
    async def shaky(n: int) -> None:
        tries.append(n)
        raise Retry("not yet")

    async with app.testing() as t:
        ticket = await shaky.submit(n=1)
        assert tries == []
        assert await t.drain() == 1
        for wait in ("5m", "10m"):
            await t.advance("1m")
            assert await t.drain() == 0
            await t.advance(wait)
            assert await t.drain() == 1
        assert len(tries) == 3
        with pytest.raises(JobFailed, match="attempts_exhausted: not yet"):
            await ticket.result()


async def test_jobs_over_their_retention_are_removed_when_the_clock_moves(app: Penstock) -> None:
    """A finished job is kept and can be read for the retention of its queue."""
    queue = app.queue("q", retention="2d")

    @app.job(queue=queue)
    def brief(n: int) -> int:
        return n

    async with app.testing() as t:
        ticket = await brief.submit(n=1)
        await t.drain()
        await t.advance("1d")
        assert (await ticket.status())["status"] == "succeeded"
        await t.advance("2d")
        with pytest.raises(NotFound):
            await ticket.status()


async def test_only_one_testing_block_is_open_at_a_time(app: Penstock) -> None:
    for _ in range(2):
        async with app.testing():
            with pytest.raises(Misconfigured, match=r"^testing\(\) is already open"):
                async with app.testing():
                    pytest.fail("it was let in")


async def test_each_test_has_its_own_database(app: Penstock) -> None:
    queue = app.queue("q")

    @app.job(queue=queue, dedupe="n")
    def once(n: int) -> int:
        return n

    tickets = []
    for _ in range(2):
        async with app.testing() as t:
            ticket = await once.submit(n=1)
            assert not ticket.deduplicated
            assert await t.drain() == 1
            assert await ticket.result() == 1
            tickets.append(ticket)
    assert tickets[0].id != tickets[1].id


async def test_jobs_of_jobs_run_too_and_on_finish_is_called(app: Penstock) -> None:
    queue = app.queue("q")
    finished: list[tuple[str, str]] = []

    @app.job(queue=queue)
    async def child() -> None:
        raise Fail("no")

    @app.job(queue=queue)
    async def parent() -> None:
        await child.submit()

    @child.on_finish
    async def note(job: FinishedJob, conn: asyncpg.Connection) -> None:
        assert await conn.fetchval("select 1") == 1
        finished.append((job.kind, job.status))

    async with app.testing() as t:
        await parent.submit()
        assert await t.drain() == 2
    assert finished == [("child", "failed")]


async def test_the_app_uses_its_own_database_again_afterwards(database: str) -> None:
    app = Penstock(database, name="tested")
    queue = app.queue("q")

    @app.job(queue=queue)
    def nothing() -> None: ...

    kept = await nothing.submit()
    await app.close()
    assert (await kept.status())["status"] == "queued"
    await app.close()
