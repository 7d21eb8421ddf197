"""Find the database and connect: PENSTOCK_DSN, else the embedded Postgres under PENSTOCK_HOME.

A failure says where it tried to connect and never with which password.
"""

import asyncio
import getpass
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from penstock.base.settings import Settings
from penstock.db.connections.display_address import place
from penstock.db.connections.driver_errors import POOLED, translated
from penstock.db.connections.hosts import reason
from penstock.db.connections.pool import CONNECT_SECONDS, connect_plainly, pin, prepare
from penstock.db.connections.pooler import is_pooled
from penstock.db.embedded.database import Embedded
from penstock.db.schema import migrations, version
from penstock.errors import Misconfigured, PenstockError, Unavailable

FORM = "postgresql://user:password@host:port/database"


@asynccontextmanager
async def located(settings: Settings) -> AsyncIterator[str]:
    """Yield the address of the database; the embedded one runs as long as somebody uses it."""
    if settings.dsn is not None:
        yield settings.dsn
        return
    # In threads, since starting and stopping a server takes a second and blocks.
    embedded = await asyncio.to_thread(Embedded.use, settings.home)
    try:
        yield embedded.dsn
    finally:
        await asyncio.to_thread(embedded.leave)


@asynccontextmanager
async def connect(
    settings: Settings, *, name: str = "penstock", frugal: bool = False
) -> AsyncIterator[asyncpg.Connection]:
    """One connection, whatever state the schema is in. `frugal`: as `connect_plainly` says."""
    async with located(settings) as dsn:
        conn = await open_connection(dsn, name=name, frugal=frugal, pins=False)
        try:
            if not frugal:
                with translated():
                    await _refuse_pooler(conn, dsn)
                    await pin(conn)
            yield conn
        finally:
            await conn.close()


@asynccontextmanager
async def connect_ready(settings: Settings) -> AsyncIterator[asyncpg.Connection]:
    """One connection to a database this program can work on.

    The embedded database belongs to this program alone, so it is migrated on the way; a server's
    schema may be shared with other programs, so an old one is refused.
    """
    async with connect(settings) as conn:
        if settings.dsn is None:
            await migrations.up(conn)
        else:
            await version.admit(conn)
        yield conn


async def _refuse_pooler(conn: asyncpg.Connection, dsn: str) -> None:
    """Before a session is set: behind a transaction pooler it would be another program's later.

    Asked in full only where some pooler is there: it gives a number of its own for the process.
    """
    is_behind_pooler = await conn.fetchval("select pg_backend_pid()") != conn.get_server_pid()
    if is_behind_pooler and await is_pooled(dsn):
        raise Misconfigured(POOLED)


async def open_connection(
    dsn: str, *, name: str = "penstock", frugal: bool = False, pins: bool = True
) -> asyncpg.Connection:
    """Connect, or say in one sentence why not. `frugal`, `pins`: as `connect_plainly` says."""
    try:
        conn = await connect_plainly(dsn, name=name, frugal=frugal, pins=pins)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
        # Without the cause: where the address is malformed, the driver's words may quote the
        # password in it.
        raise _explained(dsn, error) from None
    try:
        with translated():
            await prepare(conn)
    except BaseException:
        conn.terminate()
        raise
    return conn


def _user(dsn: str) -> str:
    """Who tried to connect, for people: whom the address names, or else the driver."""
    try:
        named = urlsplit(dsn).username or parse_qs(urlsplit(dsn).query).get("user", [""])[0]
    except ValueError:
        named = ""
    if named:
        return f"user {unquote(named)}"
    return f"user {os.environ.get('PGUSER') or getpass.getuser()} (the address names none)"


def _explained(dsn: str, error: Exception) -> PenstockError:
    where = place(dsn)
    match error:
        case asyncpg.InvalidCatalogNameError():
            return Misconfigured(
                f"The server has no such database: {where}. Create it first.",
                hint="`createdb` does, or `create database` in psql.",
            )
        case asyncpg.InvalidPasswordError():
            return Misconfigured(
                f"The database at {where} refused the password of {_user(dsn)}.",
                hint="Correct user and password in the address (PENSTOCK_DSN).",
            )
        case asyncpg.InvalidAuthorizationSpecificationError():
            return Misconfigured(
                f"The database at {where} refused {_user(dsn)}: {error.message}.",
                hint="Correct the user in the address (PENSTOCK_DSN), create the role, or let it in"
                " by the server's pg_hba.conf.",
            )
        case asyncpg.InsufficientPrivilegeError():
            return Misconfigured(
                f"The user may not connect to the database at {where}.",
                hint="Let its owner say `grant connect on database ... to ...;`.",
            )
        case asyncpg.PostgresError():
            return Unavailable(
                f"The database at {where} takes no connection: {error.message}.",
                hint="Try again in a moment; if it stays so, look into the server's log.",
            )
        case TimeoutError():
            return Unavailable(
                f"The database at {where} did not answer within {CONNECT_SECONDS:g} s.",
                hint="Look whether host and port are right, and no firewall is in between.",
            )
        case OSError():
            return Unavailable(
                f"The database at {where} cannot be reached: {reason(error)}.",
                hint="Is the host in the address (PENSTOCK_DSN) spelt right?"
                if isinstance(error, socket.gaierror)
                else "Start the server, or correct PENSTOCK_DSN (it may stand in a file .env"
                " here).",
            )
        case _:
            return Misconfigured(
                f"The address of the database is not of the form {FORM}: look at PENSTOCK_DSN, or "
                "at the dsn that the app is made with."
            )
