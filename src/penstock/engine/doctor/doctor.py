"""The doctor: one finding per check, from the way to the server up to the data in it.

A check never changes anything, and none keeps the others from being made. It works behind any
pooler: each question is a transaction of its own.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import asyncpg

from penstock.base.settings import Settings
from penstock.db.adapters.caller_connection import Fetch, Rows
from penstock.db.connections.connect import located, open_connection
from penstock.db.connections.driver_errors import translated
from penstock.db.connections.pool import prepare
from penstock.db.connections.pooler import open_frugal
from penstock.engine.doctor import data, server, sessions
from penstock.engine.doctor.finding import Finding, Level, of_error
from penstock.engine.doctor.liveness import standstills
from penstock.engine.doctor.replication import replication
from penstock.errors import PenstockError

__all__ = ["Finding", "Level", "examine", "of_error"]

NAME = "penstock doctor"
_TRY_AGAIN = "Try again; if it stays so, look into the server's log."


async def examine(settings: Settings) -> AsyncIterator[Finding]:
    """Look at everything, and say each thing as soon as it is known."""
    try:
        async with located(settings) as dsn:
            if refused := await _unreachable(dsn):
                yield refused
                return
            async with open_frugal(dsn, name=NAME) as conn:
                async with conn.transaction():
                    await prepare(conn)
                async for finding in _examine(settings, dsn, conn):
                    yield finding
    except PenstockError as error:
        yield of_error("connection", error, _TRY_AGAIN)


async def _examine(
    settings: Settings, dsn: str, conn: asyncpg.Connection
) -> AsyncIterator[Finding]:
    fetch = _fetching(conn)
    home = settings.home if settings.dsn is None else None
    yield await _made("connection", lambda: server.connection(fetch, dsn))
    yield await _made("version", lambda: server.version(fetch))
    schema = await _made("schema", lambda: data.schema(conn, embedded=home is not None))
    yield schema
    yield await _made("pooler", lambda: server.pooler(dsn))
    yield await _made("clock", lambda: server.clocks(fetch))
    yield await _made("durability", lambda: server.durability(fetch))
    yield await _made("replication", lambda: replication(fetch))
    yield await _made("connections", lambda: server.connections(fetch))
    yield server.disk(home)
    yield await _made("transactions", lambda: server.transactions(fetch))
    yield await _made("settings", lambda: sessions.settings(fetch))
    yield await _made("locks", lambda: sessions.locks(fetch))
    if schema.level != "ok":
        return  # the rest asks functions that may not be there
    yield await _made("rights", lambda: data.rights(fetch))
    yield await _made("tenants", lambda: data.tenants(fetch))
    yield await _made("partitions", lambda: data.partitions(fetch))
    yield await _made("workers", lambda: data.workers(fetch))
    yield await _made("loops", lambda: data.loops(fetch))
    yield await _made("queues", lambda: data.queues(fetch))
    async for finding in _each("liveness", lambda: standstills(conn)):
        yield finding
    yield await _made("check", lambda: data.invariants(conn))


async def _made(name: str, check: Callable[[], Awaitable[Finding]]) -> Finding:
    """What the check found; what kept it from being made is a finding too."""
    try:
        with translated():
            return await check()
    except (PenstockError, asyncpg.PostgresError) as error:
        return _not_made(name, error)


async def _each(name: str, check: Callable[[], AsyncIterator[Finding]]) -> AsyncIterator[Finding]:
    """The same for a check that finds several things."""
    try:
        with translated():
            async for finding in check():
                yield finding
    except (PenstockError, asyncpg.PostgresError) as error:
        yield _not_made(name, error)


def _not_made(name: str, error: PenstockError | asyncpg.PostgresError) -> Finding:
    if isinstance(error, PenstockError):
        lacks = isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError)
        return of_error(name, error, f"Grant it: {data.GRANT}" if lacks else _TRY_AGAIN)
    return Finding(name, "bad", f"could not be looked at: {error.message}", _TRY_AGAIN)


async def _unreachable(dsn: str) -> Finding | None:
    """Why the first connection is refused, in the words that every command uses."""
    try:
        async with open_frugal(dsn, name=NAME):
            return None
    except (PenstockError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError):
        try:
            await (await open_connection(dsn, name=NAME)).close()
        except PenstockError as error:
            return of_error("connection", error, _TRY_AGAIN)
        return None  # it was a moment's trouble


def _fetching(conn: asyncpg.Connection) -> Fetch:
    async def fetch(sql: str, args: Sequence[Any]) -> Rows:
        with translated():
            async with conn.transaction(readonly=True):
                return list(await conn.fetch(sql, *args))

    return fetch
