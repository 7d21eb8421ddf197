"""The doctor: one finding per check, from the connection to the server up to the data in it.

No check changes anything, and a failed check does not prevent the others. The doctor works behind
any pooler: each query is its own transaction.
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
from penstock.errors import PenstockError

__all__ = ["Finding", "Level", "examine", "of_error"]

NAME = "penstock doctor"
_Check = Callable[[], Awaitable[Finding | list[Finding]]]
_TRY_AGAIN = "Try again; if it fails again, read the server's log."


async def examine(settings: Settings) -> AsyncIterator[Finding]:
    """Run every check, and yield each finding as soon as it is known."""
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
    first: list[tuple[str, _Check]] = [
        ("connection", lambda: server.connection(fetch, dsn)),
        ("version", lambda: server.version(fetch)),
        ("schema", lambda: data.schema(conn, embedded=home is not None)),
        ("pooler", lambda: server.pooler(dsn)),
        ("clock", lambda: server.clocks(fetch)),
        ("durability", lambda: server.durability(fetch)),
        ("replication", lambda: server.replication(fetch)),
        ("connections", lambda: server.connections(fetch)),
        ("disk", lambda: server.disk(home)),
        ("transactions", lambda: server.transactions(fetch)),
        ("settings", lambda: sessions.settings(fetch)),
        ("locks", lambda: sessions.locks(fetch)),
    ]
    # These checks call functions that may not exist.
    then: list[tuple[str, _Check]] = [
        ("rights", lambda: data.rights(fetch)),
        ("tenants", lambda: data.tenants(fetch)),
        ("partitions", lambda: data.partitions(fetch)),
        ("workers", lambda: data.workers(fetch)),
        ("loops", lambda: data.loops(fetch)),
        ("queues", lambda: data.queues(fetch)),
        ("liveness", lambda: standstills(conn)),
        ("check", lambda: data.invariants(conn)),
    ]
    served = True
    for name, check in first:
        findings = await _made(name, check)
        served = served and (name != "schema" or findings[0].level == "ok")
        for finding in findings:
            yield finding
    for name, check in then if served else ():
        for finding in await _made(name, check):
            yield finding


async def _made(name: str, check: _Check) -> list[Finding]:
    """The findings of a check; if the check fails, its error is the finding."""
    try:
        with translated():
            findings = await check()
    except (PenstockError, asyncpg.PostgresError) as error:
        return [_not_made(name, error)]
    return findings if isinstance(findings, list) else [findings]


def _not_made(name: str, error: PenstockError | asyncpg.PostgresError) -> Finding:
    if isinstance(error, PenstockError):
        lacks = isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError)
        return of_error(name, error, f"Grant it: {data.GRANT}" if lacks else _TRY_AGAIN)
    return Finding(name, "bad", f"could not be checked: {error.message}", _TRY_AGAIN)


async def _unreachable(dsn: str) -> Finding | None:
    """Why the first connection is refused, in the message that every command uses."""
    try:
        async with open_frugal(dsn, name=NAME):
            return None
    except (PenstockError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError):
        try:
            await (await open_connection(dsn, name=NAME)).close()
        except PenstockError as error:
            return of_error("connection", error, _TRY_AGAIN)
        return None  # it was a temporary error


def _fetching(conn: asyncpg.Connection) -> Fetch:
    async def fetch(sql: str, args: Sequence[Any]) -> Rows:
        with translated():
            async with conn.transaction(readonly=True):
                return list(await conn.fetch(sql, *args))

    return fetch
