"""Calls that their caller cancels leave nothing behind: no log line, no running statement."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from penstock import Penstock, Unavailable
from penstock.db.connections.pool import open_pool
from support.waiting import eventually

CALLS, ROUNDS = 10, 12


@asynccontextmanager
async def by_tcp(dsn: str) -> AsyncIterator[str]:
    """Serve the test's database over TCP, where the driver first requests TLS."""
    parts = urlsplit(dsn)
    options = {key: values[0] for key, values in parse_qs(parts.query).items()}
    path = f"{options['host']}/.s.PGSQL.{options['port']}"

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_unix_connection(path)
        copies = {
            asyncio.ensure_future(copy(reader, to)),
            asyncio.ensure_future(copy(there, writer)),
        }
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        for each in copies:
            each.cancel()
        for end in (to, writer):
            end.close()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            writer.write(piece)

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    server.close()


@pytest.fixture
async def logged() -> list[dict[str, Any]]:
    """Collect what the loop would log about exceptions that were never retrieved."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


async def cancel_calls(call: Callable[[], Awaitable[Any]]) -> None:
    for number in range(ROUNDS):
        calls = [asyncio.ensure_future(call()) for _ in range(CALLS)]
        for _ in range(number):  # cancelled a little later each time
            await asyncio.sleep(0)
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_cancelled_calls_log_nothing(
    database: str, conn: asyncpg.Connection, logged: list[dict[str, Any]]
) -> None:
    async with by_tcp(database) as dsn:
        app = Penstock(dsn, name="hasty")

        @app.job(queue=app.queue("q"))
        async def mark(n: int) -> None: ...

        ticket = await mark.submit(n=0)
        await cancel_calls(lambda: mark.submit(n=1))
        await cancel_calls(lambda: mark.submit_many([{"n": n} for n in range(50)]))
        await cancel_calls(ticket.status)
        await cancel_calls(lambda: ticket.result(60))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ticket.result(), 0.01)
        await app.close()
    await eventually(lambda: none_of_ours(conn), "all connections are gone")
    gc.collect()
    assert logged == []


async def none_of_ours(conn: asyncpg.Connection) -> bool:
    others = "select count(*) from pg_stat_activity where application_name = 'penstock'"
    found: int = await conn.fetchval(f"{others} and datname = current_database()")
    return found == 0


async def test_a_cancelled_statement_ends_on_the_server(
    database: str, conn: asyncpg.Connection
) -> None:
    pool = await open_pool(database)
    sleeping = asyncio.ensure_future(pool.fetch("select pg_sleep(600)"))
    at_work = (
        "select exists (select from pg_stat_activity where query like '%pg_sleep(6%'"
        " and state = 'active' and datname = current_database() and pid <> pg_backend_pid())"
    )
    await eventually(lambda: conn.fetchval(at_work), "it sleeps")
    sleeping.cancel()
    await asyncio.gather(sleeping, return_exceptions=True)
    await pool.close()
    assert not await conn.fetchval(at_work)


async def test_when_all_callers_gave_up_an_unavailable_database_is_not_logged(
    logged: list[dict[str, Any]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        app = Penstock(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/x")

        @app.job(queue=app.queue("q"))
        async def mark(n: int) -> None: ...

        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(mark.submit(n=1), 0.01)
        taken, _ = await asyncio.to_thread(silent.accept)
        taken.close()
        await eventually(lambda: is_forgotten(app), "it has given up, too")
    with pytest.raises(Unavailable):
        await mark.submit(n=1)
    gc.collect()
    assert logged == []


async def is_forgotten(app: Penstock) -> bool:
    return not app._engines._by_loop
