"""Transactions that Postgres undoes: ours are run again, the app's are named."""

import asyncio
from urllib.parse import urlsplit

import asyncpg
import pytest

from penstock.engine.engine import Engine
from penstock.engine.jobs.jobs import NewJob
from penstock.errors import Invalid, Refused, RolledBack
from support import factory
from support.caller_connections import BORROWERS
from support.cluster import Cluster
from support.interleave import Step
from support.session_settings import sessions_with
from support.shapes import Connect

OF_BOTH = [NewJob(kind="q", account=name) for name in ("a", "b")]


@pytest.fixture
async def ready(engine: Engine, conn: asyncpg.Connection) -> Engine:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    for name in ("a", "b"):
        await conn.execute("select penstock.create_account($1)", name)
    return engine


async def waits(conn: asyncpg.Connection) -> int:
    """The process of ours that waits for a lock."""
    async with asyncio.timeout(10):
        while True:
            pid: int | None = await conn.fetchval(
                "select pid from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid() and wait_event_type = 'Lock'"
                " and application_name like 'penstock%'"
            )
            if pid:
                return pid
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("driver", BORROWERS)
async def test_a_transaction_of_the_apps_that_is_undone_is_to_be_run_again(
    ready: Engine, conn: asyncpg.Connection, database: str, driver: str
) -> None:
    """D3: whatever driver it is, the error says what to do."""
    with sessions_with(database, "database", default_transaction_isolation="repeatable read"):
        async with BORROWERS[driver](database) as app:
            await app.execute("select count(*) from penstock.job")
            await conn.execute("select penstock.pause_queue('q')")
            with pytest.raises(RolledBack) as told:
                await ready.jobs.submit(NewJob(kind="q"), conn=app.conn)
            assert told.value.code == "serialization_failure"
            assert "run all of it again" in str(told.value.hint)
            assert told.value.__cause__ is not None
            with pytest.raises(Invalid, match="roll it back") as aborted:
                await ready.jobs.submit(NewJob(kind="q"), conn=app.conn)
            assert aborted.value.code == "invalid_connection"
            await app.end(commits=False)
        async with BORROWERS[driver](database) as app:
            await ready.jobs.submit(NewJob(kind="q"), conn=app.conn)
            await app.end(commits=True)
    assert await conn.fetchval("select count(*) from penstock.job") == 1


async def test_a_deadlock_with_an_apps_transaction_is_run_again(
    cluster: Cluster, ready: Engine, conn: asyncpg.Connection, database: str
) -> None:
    """The app locks the two accounts in another order. Postgres undoes whoever looks first."""
    admin = cluster.superuser_dsn(urlsplit(database).path[1:])
    with sessions_with(admin, "database", deadlock_timeout="3s"):
        ready.renew()
        app = await asyncpg.connect(admin, server_settings={"deadlock_timeout": "60s"})
        async with app.transaction():
            await app.execute("select from penstock.account where name = 'b' for update")
            submit = asyncio.create_task(ready.jobs.submit_many(OF_BOTH))
            await waits(conn)
            await app.execute("select from penstock.account where name = 'a' for update")
        await app.close()
    assert len(await submit) == 2
    assert await conn.fetchval("select count(*) from penstock.job") == 2


async def test_who_always_meets_others_is_told_so(
    ready: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def undone(*_: object, **__: object) -> None:
        nonlocal tries
        tries += 1
        raise asyncpg.SerializationError("could not serialize access")

    monkeypatch.setattr("penstock.engine.engine.AGAIN_SECONDS", (0, 0))
    monkeypatch.setattr(ready._pool, "fetch", undone)
    with pytest.raises(RolledBack) as told:
        await ready.jobs.submit(NewJob(kind="q"))
    assert (told.value.code, tries) == ("serialization_failure", 3)


async def test_a_statement_that_an_operator_cancels_wrote_nothing(
    ready: Engine, conn: asyncpg.Connection, connect: Connect
) -> None:
    app = await connect()
    async with app.transaction():
        await app.execute("select from penstock.account where name = 'a' for update")
        submit = asyncio.create_task(ready.jobs.submit(OF_BOTH[0]))
        await conn.execute("select pg_cancel_backend($1)", await waits(conn))
        with pytest.raises(RolledBack) as told:
            await submit
    assert told.value.code == "statement_cancelled"
    assert await conn.fetchval("select count(*) from penstock.job") == 0


@pytest.mark.parametrize("job", [NewJob(kind="q"), OF_BOTH[0]], ids=["plain", "account"])
async def test_a_lock_that_a_stranger_keeps_refuses_submits_to_one_queue_alone(
    ready: Engine, conn: asyncpg.Connection, connect: Connect, job: NewJob
) -> None:
    """Any role that may connect can take it. Three seconds, and then it is said who has it."""
    await factory.queue(conn, "other")
    stranger = await connect()
    async with stranger.transaction():
        await stranger.execute(
            "select pg_advisory_xact_lock(1886413172, id) from penstock.queue where name = 'q'"
        )
        submit = asyncio.create_task(ready.jobs.submit(job))
        await waits(conn)
        await ready.jobs.submit(NewJob(kind="other"))
        with pytest.raises(Refused) as told:
            await submit
    assert (told.value.status, told.value.code) == (503, "queue_locked")
    assert f"process {stranger.get_server_pid()}" in told.value.message
    await ready.jobs.submit(job)


async def test_nor_is_a_claim_kept_for_ever(
    ready: Engine, conn: asyncpg.Connection, connect: Connect
) -> None:
    worker = await factory.worker(conn)
    await ready.jobs.submit(NewJob(kind="q"))
    stranger, claimer = await connect(), await connect()
    async with stranger.transaction():
        await stranger.execute(
            "select pg_advisory_xact_lock(1886413171, id) from penstock.queue where name = 'q'"
        )
        claim = Step(claimer, factory.claim(claimer, worker))
        assert await claim.waits(conn)
        with factory.refused(503, "queue_locked", "queue"):
            await claim
    assert len(await factory.claim(conn, worker)) == 1
