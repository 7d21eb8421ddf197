"""Run statements on a caller's own connection, of any driver.

A submit belongs to the transaction of the app that makes it, and apps have their own drivers.
Supported are asyncpg, psycopg (both kinds), any DB-API connection (psycopg2, Django's), and
SQLAlchemy's sessions and connections (both kinds). Drivers are recognised by their attributes, not
imported: only asyncpg must be installed.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import asyncpg

from penstock.db.adapters.caller_errors import explained, refuse_prepared
from penstock.errors import Invalid

# Each row supports row["column"] and row.values(): a dict, or asyncpg's Record.
Rows = list[Any]
Fetch = Callable[[str, Sequence[Any]], Awaitable[Rows]]

_NUMBERED = re.compile(r"\$(\d+)")


def borrow(conn: Any) -> Fetch:
    """Return a function that runs a statement with $1, $2 … in this connection's transaction."""
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
    """Return whether this connection is used without an event loop."""
    if isinstance(conn, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        return False
    run = getattr(conn, "execute", None) or getattr(conn, "cursor", None)
    return not inspect.iscoroutinefunction(run)


def _is_sqlalchemy(conn: Any) -> bool:
    """Return whether it is an SQLAlchemy session or connection, or an app's subclass of one.

    A connection from its pool (`raw_connection`) is the driver's and does not count; nor does an
    engine, which has no transaction.
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
            # In psycopg's pipeline mode the columns are known only after the rows were fetched.
            rows = await _settled(cursor.fetchall())
            names = [column[0] for column in cursor.description]
            await _settled(cursor.close())
        # A connection may be configured to return rows as dicts.
        return [
            row if isinstance(row, Mapping) else dict(zip(names, row, strict=True)) for row in rows
        ]

    return fetch


def _sqlalchemy(conn: Any) -> Fetch:
    # Imported here: it is installed if the caller has such a connection.
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
