"""The caller's own connection, of whatever driver, as something that fetches rows.

A submit belongs into the transaction of the app that makes it, and apps have their own drivers.
One statement goes through each of them here: asyncpg, psycopg (both kinds), any DB-API connection
(psycopg2, Django's), and SQLAlchemy's sessions and connections (both kinds). Drivers are known by
their shape, not imported: none but asyncpg needs to be installed.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import asyncpg

from penstock.db.adapters.caller_errors import explained, refuse_prepared
from penstock.errors import Invalid

# Each row answers row["column"] and row.values(): a dict, or asyncpg's Record.
Rows = list[Any]
Fetch = Callable[[str, Sequence[Any]], Awaitable[Rows]]

_NUMBERED = re.compile(r"\$(\d+)")


def borrow(conn: Any) -> Fetch:
    """How to run a statement with $1, $2 … on this connection, in its present transaction."""
    refuse_prepared(conn)
    if isinstance(conn, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        return _asyncpg(conn)
    if _is_sqlalchemy(conn):
        return _sqlalchemy(conn)
    if hasattr(conn, "cursor"):
        return _dbapi(conn)
    raise Invalid(
        f"conn must be a connection of asyncpg, psycopg, SQLAlchemy or a DB-API driver, "
        f"not {type(conn).__module__}.{type(conn).__qualname__}",
        code="invalid_connection",
        field="conn",
    )


def blocks(conn: Any) -> bool:
    """Whether this connection is used without an event loop."""
    if isinstance(conn, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        return False
    run = getattr(conn, "execute", None) or getattr(conn, "cursor", None)
    return not inspect.iscoroutinefunction(run)


def _is_sqlalchemy(conn: Any) -> bool:
    """Its sessions and connections, or an app's own class of one.

    Not what its pool lends (`raw_connection`), which is the driver's; nor an engine, which has no
    transaction that a job could be part of.
    """
    if not hasattr(conn, "execute"):
        return False
    modules = [base.__module__ for base in type(conn).__mro__]
    return any(name.startswith("sqlalchemy.") for name in modules) and not any(
        name.startswith("sqlalchemy.pool.") for name in modules
    )


def _asyncpg(conn: Any) -> Fetch:
    async def fetch(sql: str, args: Sequence[Any]) -> Rows:
        with explained():
            rows: Rows = await conn.fetch(sql, *args)
        return rows

    return fetch


def _dbapi(conn: Any) -> Fetch:
    async def fetch(sql: str, args: Sequence[Any]) -> Rows:
        text, named = _NUMBERED.sub(r"%(p\1)s", sql.replace("%", "%%")), _named(args)
        with explained():
            cursor = conn.cursor()
            await _settled(cursor.execute(text, named))
            # In psycopg's pipeline mode the columns are known only once the rows are here.
            rows = await _settled(cursor.fetchall())
            names = [column[0] for column in cursor.description]
            await _settled(cursor.close())
        # A connection may be set to give its rows as dicts.
        return [
            row if isinstance(row, Mapping) else dict(zip(names, row, strict=True)) for row in rows
        ]

    return fetch


def _sqlalchemy(conn: Any) -> Fetch:
    # Imported here: who holds such a connection has it installed, nobody else needs it.
    from sqlalchemy import text

    async def fetch(sql: str, args: Sequence[Any]) -> Rows:
        with explained():
            result = await _settled(conn.execute(text(_NUMBERED.sub(r":p\1", sql)), _named(args)))
        return [dict(row) for row in result.mappings()]

    return fetch


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _named(args: Sequence[Any]) -> dict[str, Any]:
    return {f"p{number}": value for number, value in enumerate(args, 1)}
