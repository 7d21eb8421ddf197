"""What a worker does beside its jobs: it recovers, prunes, renews connections, and is quiet."""

import logging
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from penstock import Penstock
from penstock.db.connections import listener
from penstock.worker import worker as worker_module
from penstock.worker.maintenance import upkeep
from penstock.worker.membership import heartbeat, registration
from support import factory
from support.clock import Clock
from support.waiting import eventually
from support.worker.crew import submit_many, until_finished, working


@pytest.fixture
def app() -> Penstock:
    app = Penstock(name="house")
    app.queue("q")

    @app.job(queue="q")
    async def nod() -> None: ...

    return app


async def test_a_worker_recovers_again_and_again(
    database: str, conn: asyncpg.Connection, clock: Clock, app: Penstock
) -> None:
    """S1: three attempts time out one after the other; it polls twice a second."""
    assert upkeep.PASS_SECONDS == 0.5
    await factory.queue(conn, "elsewhere", timeout_seconds=60)
    async with working(database, app):
        for _ in range(3):
            job = await factory.submit(conn, "elsewhere")
            hanging = await factory.worker(conn, "hanging", lease="1 day")
            assert len(await factory.claim(conn, hanging, "elsewhere")) == 1
            await clock.advance("65s", beats=True)

            async def is_back(job: UUID = job) -> bool:
                return await factory.status(conn, job) != "running"

            await eventually(is_back, "the job is queued again", seconds=30)


async def test_a_worker_makes_a_burst_known_to_the_planner(
    database: str, conn: asyncpg.Connection, app: Penstock
) -> None:
    """Plans made at a quiet time read every job, until the planner knows that there are many."""
    await factory.queue(conn, "elsewhere")
    await conn.execute("alter table penstock.job set (autovacuum_enabled = off)")
    await conn.execute("vacuum analyze penstock.job")
    async with working(database, app):
        await submit_many(conn, "elsewhere", 1_500, {})

        async def is_known() -> bool:
            return not await conn.fetchval("select penstock._has_few_by_statistics('penstock.job')")

        await eventually(is_known, "the planner knows", seconds=30)


async def test_a_worker_prunes_without_being_asked(
    database: str,
    conn: asyncpg.Connection,
    clock: Clock,
    app: Penstock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M14: history older than seven days is deleted while it runs, one day's partition per pass."""
    monkeypatch.setattr(upkeep, "TIDY_SECONDS", 0.1)
    async with working(database, app):
        await until_finished(conn, await submit_many(conn, "nod", 3, {}))
    await clock.advance(timedelta(days=9))

    async def gone() -> bool:
        return not await conn.fetchval("select count(*) from penstock.finished")

    assert not await gone()
    async with working(database, app):
        await eventually(gone, "history is pruned", seconds=30)


async def test_connections_are_renewed_every_half_hour(
    database: str, conn: asyncpg.Connection, app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: heartbeat, control, and those for claims and outcomes; the worker goes on meanwhile."""
    for module, name in (
        (worker_module, "RENEW_SECONDS"),
        (registration, "RENEW_SECONDS"),
        (heartbeat, "_RENEW_SECONDS"),
    ):
        assert getattr(module, name) == 30 * 60
        monkeypatch.setattr(module, name, 0.2)
    monkeypatch.setattr(listener, "_ALIVE_SECONDS", 0.2)

    async def sessions() -> set[int]:
        rows = await conn.fetch(
            "select pid from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and application_name <> 'penstock upkeep'"
        )
        return {row["pid"] for row in rows}

    async with working(database, app, beat=0.1, poll=0.05):
        await until_finished(conn, await submit_many(conn, "nod", 1, {}))
        first = await sessions()
        assert first

        async def renewed() -> bool:
            await submit_many(conn, "nod", 1, {})  # an unused connection is not renewed
            return not first & await sessions()

        await eventually(renewed, "none of the first connections is left", seconds=30)
        await until_finished(conn, await submit_many(conn, "nod", 5, {}))
    lost = await conn.fetchval("select count(*) from penstock.worker where lost_at is not null")
    assert lost == 0


async def test_jobs_that_go_well_are_not_logged(
    database: str, conn: asyncpg.Connection, app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    """F8: the volume of logs grows with what goes wrong, not with what is done."""
    caplog.set_level(logging.INFO, logger="penstock")
    async with working(database, app):
        await until_finished(conn, await submit_many(conn, "nod", 500, {}))
    logs = [one for one in caplog.records if one.name.startswith("penstock")]
    assert len(logs) < 10, [one.getMessage() for one in logs]
    assert not [one for one in logs if hasattr(one, "job")]
