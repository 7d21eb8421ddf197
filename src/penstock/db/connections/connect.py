"""Find the database and connect: PENSTOCK_DSN, else the embedded Postgres under PENSTOCK_HOME.

Errors name the address of the server and never a password.
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
from penstock.db.connections.display_address import display_address
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
    """Yield the address of the database. The embedded one runs while a program uses it."""
    if settings.dsn is not None:
        yield settings.dsn
        return
    # In threads: starting and stopping a server takes a second and blocks.
    embedded = await asyncio.to_thread(Embedded.use, settings.home)
    try:
        yield embedded.dsn
    finally:
        await asyncio.to_thread(embedded.leave)


@asynccontextmanager
async def connect(
    settings: Settings, *, name: str = "penstock", frugal: bool = False
) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection without a check of the schema. `frugal`: see `connect_plainly`."""
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
    """Yield a connection to a database with a schema that fits this program.

    The embedded database belongs to this program alone, so it is migrated. The schema on a server
    may be shared with other programs, so an old one is refused.
    """
    async with connect(settings) as conn:
        if settings.dsn is None:
            await migrations.up(conn)
        else:
            await version.admit(conn)
        yield conn


async def _refuse_pooler(conn: asyncpg.Connection, dsn: str) -> None:
    """Refuse a transaction pooler, before settings change a session that it shares with others.

    The full check runs only if there is a pooler: poolers report their own number as process id.
    """
    is_behind_pooler = await conn.fetchval("select pg_backend_pid()") != conn.get_server_pid()
    if is_behind_pooler and await is_pooled(dsn):
        raise Misconfigured(POOLED)


async def open_connection(
    dsn: str, *, name: str = "penstock", frugal: bool = False, pins: bool = True
) -> asyncpg.Connection:
    """Connect, or raise an error that explains why not. `frugal`, `pins`: see `connect_plainly`."""
    try:
        conn = await connect_plainly(dsn, name=name, frugal=frugal, pins=pins)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
        # Without the cause: for a malformed address the driver's message may quote the password.
        raise _explained(dsn, error) from None
    try:
        with translated():
            await prepare(conn)
    except BaseException:
        conn.terminate()
        raise
    return conn


def _user(dsn: str) -> str:
    """Describe the user who tried to connect: from the address, else the driver's default."""
    try:
        named = urlsplit(dsn).username or parse_qs(urlsplit(dsn).query).get("user", [""])[0]
    except ValueError:
        named = ""
    if named:
        return f"user {unquote(named)}"
    return f"user {os.environ.get('PGUSER') or getpass.getuser()} (the address names none)"


def _explained(dsn: str, error: Exception) -> PenstockError:
    where = display_address(dsn)
    match error:
        case asyncpg.InvalidCatalogNameError():
            return Misconfigured(
                f"The server has no such database: {where}. Create it first.",
                hint="Run `createdb`, or `create database` in psql.",
            )
        case asyncpg.InvalidPasswordError():
            return Misconfigured(
                f"The database at {where} refused the password of {_user(dsn)}.",
                hint="Correct user and password in the address (PENSTOCK_DSN).",
            )
        case asyncpg.InvalidAuthorizationSpecificationError():
            return Misconfigured(
                f"The database at {where} refused {_user(dsn)}: {error.message}.",
                hint="Correct the user in the address (PENSTOCK_DSN), create the role, or allow it"
                " in the server's pg_hba.conf.",
            )
        case asyncpg.InsufficientPrivilegeError():
            return Misconfigured(
                f"The user may not connect to the database at {where}.",
                hint="Let its owner run `grant connect on database ... to ...;`.",
            )
        case asyncpg.PostgresError():
            return Unavailable(
                f"The database at {where} accepts no connections: {error.message}.",
                hint="Try again in a moment; if the error stays, read the server's log.",
            )
        case TimeoutError():
            return Unavailable(
                f"The database at {where} did not answer within {CONNECT_SECONDS:g} s.",
                hint="Check host and port, and whether a firewall blocks the connection.",
            )
        case OSError():
            return Unavailable(
                f"The database at {where} cannot be reached: {reason(error)}.",
                hint="Correct the host in the address (PENSTOCK_DSN)."
                if isinstance(error, socket.gaierror)
                else "Start the server, or correct PENSTOCK_DSN (a file .env in this folder may set"
                " it).",
            )
        case _:
            return Misconfigured(
                f"The address of the database is not of the form {FORM}: correct PENSTOCK_DSN, or "
                "the app's dsn."
            )
