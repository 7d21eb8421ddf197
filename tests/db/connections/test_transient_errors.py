"""Transactions that Postgres rolls back: ours are retried, the app's raise an error."""

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
    """Return our server process that waits for a lock."""
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
async def test_the_error_for_a_rolled_back_transaction_of_the_app_says_to_run_it_again(
    ready: Engine, conn: asyncpg.Connection, database: str, driver: str
) -> None:
    """D3: with every driver the error says what to do."""
    with sessions_with(database, "database", default_transaction_isolation="repeatable read"):
        async with BORROWERS[driver](database) as app:
            await app.execute("select count(*) from penstock.job")
            await conn.execute("select penstock.pause_queue('q')")
            with pytest.raises(RolledBack) as caught:
                await ready.jobs.submit(NewJob(kind="q"), conn=app.conn)
            assert caught.value.code == "serialization_failure"
            assert "run all of it again" in str(caught.value.hint)
            assert caught.value.__cause__ is not None
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
    """The app locks the two accounts in another order. Postgres undoes the first to check."""
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


async def test_a_call_that_always_conflicts_fails_with_the_reason(
    ready: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def undone(*_: object, **__: object) -> None:
        nonlocal tries
        tries += 1
        raise asyncpg.SerializationError("could not serialize access")

    monkeypatch.setattr("penstock.engine.statements.AGAIN_SECONDS", (0, 0))
    monkeypatch.setattr(ready._pool, "fetch", undone)
    with pytest.raises(RolledBack) as caught:
        await ready.jobs.submit(NewJob(kind="q"))
    assert (caught.value.code, tries) == ("serialization_failure", 3)


async def test_a_statement_that_an_operator_cancels_writes_nothing(
    ready: Engine, conn: asyncpg.Connection, connect: Connect
) -> None:
    app = await connect()
    async with app.transaction():
        await app.execute("select from penstock.account where name = 'a' for update")
        submit = asyncio.create_task(ready.jobs.submit(OF_BOTH[0]))
        await conn.execute("select pg_cancel_backend($1)", await waits(conn))
        with pytest.raises(RolledBack) as caught:
            await submit
    assert caught.value.code == "statement_cancelled"
    assert await conn.fetchval("select count(*) from penstock.job") == 0


@pytest.mark.parametrize("job", [NewJob(kind="q"), OF_BOTH[0]], ids=["plain", "account"])
async def test_a_foreign_lock_refuses_submits_only_to_one_queue(
    ready: Engine, conn: asyncpg.Connection, connect: Connect, job: NewJob
) -> None:
    """Any role that may connect can take the lock. After 3 s the error names its holder."""
    await factory.queue(conn, "other")
    stranger = await connect()
    async with stranger.transaction():
        await stranger.execute(
            "select pg_advisory_xact_lock(1886413172, id) from penstock.queue where name = 'q'"
        )
        submit = asyncio.create_task(ready.jobs.submit(job))
        await waits(conn)
        await ready.jobs.submit(NewJob(kind="other"))
        with pytest.raises(Refused) as caught:
            await submit
    assert (caught.value.status, caught.value.code) == (503, "queue_locked")
    assert f"process {stranger.get_server_pid()}" in caught.value.message
    await ready.jobs.submit(job)


async def test_a_foreign_lock_does_not_block_a_claim_for_ever(
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
