"""A submit on a connection of the app in a state in which no statement can succeed."""

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from penstock import Penstock
from penstock.engine.engine import Engine
from penstock.engine.jobs.jobs import NewJob
from penstock.errors import Invalid, NotFound, Unavailable
from support import factory
from support.caller_connections import BORROWERS

every_driver = pytest.mark.parametrize("driver", BORROWERS)

CLOSED = (
    "conn is closed or was returned to its pool: use it inside the block that acquires it; nothing "
    "was written"
)
ABORTED = (
    "conn is in a transaction that a failed statement has aborted: roll it back, or roll back to a "
    "savepoint before that statement, and try again; nothing was written"
)
READ_ONLY = (
    "conn is read-only, and this call writes: begin the transaction with READ WRITE, check whether "
    "default_transaction_read_only is set, and connect to the primary if this server is a standby; "
    "nothing was written"
)
PREPARED = (
    "conn has a prepared two-phase transaction, which can only be committed or rolled back: use "
    "conn before tpc_prepare(); nothing was written"
)
BUSY = (
    "conn is running another statement, and a connection runs one at a time: await that one "
    "first, or pass another connection; nothing was written"
)


@pytest.fixture
async def ready(engine: Engine, conn: asyncpg.Connection) -> Engine:
    await factory.queue(conn)
    return engine


async def refused(engine: Engine, conn: Any, message: str) -> None:
    for submit in (
        engine.jobs.submit(NewJob(kind="q"), conn=conn),
        engine.jobs.submit_many([NewJob(kind="q")], conn=conn),
    ):
        with pytest.raises(Invalid) as caught:
            await submit
        assert caught.value.message == message
        assert (caught.value.code, caught.value.field) == ("invalid_connection", "conn")
        assert caught.value.__cause__ is not None


@every_driver
async def test_an_aborted_transaction_is_reported_with_a_remedy(
    ready: Engine, database: str, driver: str
) -> None:
    async with BORROWERS[driver](database) as app:
        with pytest.raises(Exception, match="division by zero"):
            await app.execute("select 1 / 0")
        await refused(ready, app.conn, ABORTED)
        await app.end(commits=False)


@every_driver
async def test_a_read_only_transaction_is_reported_with_a_remedy(
    ready: Engine, database: str, driver: str
) -> None:
    async with BORROWERS[driver](database) as app:
        await app.execute("set transaction read only")
        with pytest.raises(Invalid) as caught:
            await ready.jobs.submit(NewJob(kind="q"), conn=app.conn)
        assert caught.value.message == READ_ONLY
        await app.end(commits=False)


@every_driver
async def test_a_lost_connection_is_reported_with_a_remedy(
    ready: Engine, conn: asyncpg.Connection, database: str, driver: str
) -> None:
    async with BORROWERS[driver](database) as app:
        await app.execute("select 1")
        await conn.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where state = 'idle in transaction' and datname = current_database()"
        )
        with pytest.raises((Unavailable, Invalid)) as caught:
            await ready.jobs.submit(NewJob(kind="q"), conn=app.conn)
        # asyncpg may have noticed the loss before: then it reports a closed connection.
        assert str(caught.value).startswith(("The connection conn was lost", CLOSED))
        with suppress(Exception):  # drivers raise an error, SQLAlchemy does not
            await app.end(commits=False)


async def test_a_closed_connection_is_reported_with_a_remedy(ready: Engine, database: str) -> None:
    blocking = psycopg.connect(database)
    blocking.close()
    waiting = await psycopg.AsyncConnection.connect(database)
    await waiting.close()
    other = await asyncpg.connect(database)
    await other.close()
    async with asyncpg.create_pool(database, min_size=1) as pool:
        lent = await pool.acquire()
        await pool.release(lent)
        engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:", 1))
        connection = engine.connect()
        connection.close()
        loop_engine = create_async_engine(database.replace("postgresql:", "postgresql+asyncpg:", 1))
        loop_connection = await loop_engine.connect()
        await loop_connection.close()
        for conn in (blocking, waiting, other, lent, connection, loop_connection):
            await refused(ready, conn, CLOSED)
        engine.dispose()
        await loop_engine.dispose()


async def test_a_busy_connection_is_reported_with_a_remedy(ready: Engine, database: str) -> None:
    conn = await asyncpg.connect(database)
    sleeping = asyncio.ensure_future(conn.execute("select pg_sleep(60)"))
    await asyncio.sleep(0)  # now the statement is sent
    await refused(ready, conn, BUSY)
    sleeping.cancel()
    await asyncio.gather(sleeping, return_exceptions=True)
    await conn.close()


async def test_psycopgs_pipeline_mode_works(
    ready: Engine, conn: asyncpg.Connection, database: str
) -> None:
    with psycopg.connect(database) as blocking, blocking.pipeline():
        first = await ready.jobs.submit(NewJob(kind="q"), conn=blocking)
        blocking.execute("select 1")
        many = await ready.jobs.submit_many([NewJob(kind="q")] * 2, conn=blocking)
    async with await psycopg.AsyncConnection.connect(database) as waiting, waiting.pipeline():
        second = await ready.jobs.submit(NewJob(kind="q"), conn=waiting)
    ids = [first.id, *(one.id for one in many), second.id]
    assert await conn.fetchval("select array_agg(id order by id) from penstock.job") == sorted(ids)


async def test_refusals_in_a_pipeline_have_penstocks_errors(ready: Engine, database: str) -> None:
    with psycopg.connect(database) as conn:
        with pytest.raises(NotFound, match="there is no job kind nope"), conn.pipeline():
            await ready.jobs.submit(NewJob(kind="nope"), conn=conn)
        conn.rollback()
        with conn.pipeline():
            conn.execute("select 1 / 0")
            with pytest.raises(psycopg.errors.DivisionByZero):  # the app's own error comes first
                await ready.jobs.submit(NewJob(kind="q"), conn=conn)
            await refused(ready, conn, ABORTED)
        conn.rollback()


async def test_a_two_phase_commit_includes_the_job(conn: asyncpg.Connection, database: str) -> None:
    """Postgres cannot prepare a transaction with a NOTIFY: workers find such a job by polling."""
    app = Penstock(database, name="two phases")

    @app.job(queue=app.queue("q"))
    async def mark() -> None: ...

    with psycopg.connect(database) as own:
        own.tpc_begin("both")
        ticket = await mark.using(conn=own).submit()
        tickets = await mark.using(conn=own).submit_many([{}, {}])
        own.tpc_prepare()
        with pytest.raises(Invalid) as caught:
            await mark.using(conn=own).submit()
        assert caught.value.message == PREPARED
        own.tpc_commit()
    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:", 1))
    with engine.connect() as connection:
        whole = connection.begin_twophase()
        other = await mark.using(conn=connection).submit()
        whole.prepare()
        with pytest.raises(Invalid) as caught:
            await mark.using(conn=connection).submit()
        assert caught.value.message == PREPARED
        whole.commit()
    with Session(engine, twophase=True) as session:
        session.execute(text("select 1"))
        third = await mark.using(conn=session).submit()
        session.prepare()
        with pytest.raises(Invalid) as caught:
            await mark.using(conn=session).submit()
        assert caught.value.message == PREPARED
        session.commit()
    engine.dispose()
    ids = {ticket.id, *(one.id for one in tickets), other.id, third.id}
    found = await conn.fetch("select id from penstock.job")
    assert {row["id"] for row in found} == ids
    await app.close()
