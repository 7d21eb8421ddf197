"""A permanent session that listens, holds session-level locks, and reconnects after an outage."""

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import asyncpg

from penstock.db.connections.connect import open_connection
from penstock.db.connections.driver_errors import fetching, translated
from penstock.errors import Misconfigured, PenstockError, Unavailable

# Workers must reconnect within a second after the server is back.
_RECONNECT_SECONDS = (0.05, 0.5)
_ALIVE_SECONDS = 5.0
_ANSWER_SECONDS = 3.0

# A host that disappeared is noticed in seconds, not in the system's default of two hours: 2 s after
# its last packet, or 1.5 s after data was sent that it does not confirm.
_KEEPALIVE = """
set tcp_keepalives_idle = 1; set tcp_keepalives_interval = 1; set tcp_keepalives_count = 2;
set tcp_user_timeout = 1500
"""
# A backend also checks its client while it runs a statement. Otherwise the lock of a killed worker
# would be held until the statement ends.
_CHECK_CLIENT = "set client_connection_check_interval = 500"

_log = logging.getLogger("penstock.db")

# Errors that mean that the database cannot be reached. A missing socket of a stopped server and a
# host without a route are errors of the system, not of the driver. The driver itself fails
# ("cannot switch to state") when a server dies between two messages.
DATABASE_UNAVAILABLE = (Unavailable, OSError, asyncpg.InternalClientError)

OnNotify = Callable[[str, str], None]
OnConnect = Callable[[asyncpg.Connection], Awaitable[bool]]


async def open_session(dsn: str, *, name: str, local: bool = False) -> asyncpg.Connection:
    """Open a connection whose loss the server notices soon if this machine disappears.

    `local`: commits wait for no standby; for data that no standby needs, like heartbeats.
    """
    conn = await open_connection(dsn, name=name)
    try:
        with translated():
            await conn.execute(_KEEPALIVE)
            with suppress(asyncpg.InvalidParameterValueError):  # a system that cannot check
                await conn.execute(_CHECK_CLIENT)
            if local:
                await conn.execute("set synchronous_commit = local")
    except BaseException:
        conn.terminate()
        raise
    return conn


async def wait_before_reconnect(tries: int) -> None:
    """Wait a short random time before the next try, so that clients do not reconnect at once."""
    low, high = _RECONNECT_SECONDS
    await asyncio.sleep(random.uniform(low, min(high, low * 2**tries)))  # noqa: S311  # no secret


async def listen(  # noqa: PLR0913  # callers pass them by name
    dsn: str,
    channels: Sequence[str],
    on_notify: OnNotify,
    on_connect: OnConnect,
    *,
    name: str,
    renew_seconds: float,
) -> None:
    """Listen for ever, also across outages. `on_connect` is called with each new session.

    If it returns False, the session is closed and opened again later. Any role that may connect can
    notify: a notification that `on_notify` cannot read is ignored, and logged once per channel.
    """
    tries = 0
    complained: set[str] = set()

    def on_message(_: object, __: int, channel: str, payload: object) -> None:
        try:
            on_notify(channel, str(payload))
        except Exception as error:  # noqa: BLE001  # any role may send anything
            level = logging.DEBUG if channel in complained else logging.WARNING
            complained.add(channel)
            _log.log(
                level,
                "an unreadable notification was ignored (%s): another program sends to %s",
                type(error).__name__,
                # The part after the last _ in the name of a worker's channel is a secret.
                re.sub("^(penstock_start.*)_.*", r"\1_…", channel),
            )

    while True:
        conn: asyncpg.Connection | None = None
        try:
            conn = await open_session(dsn, name=name)
            closed = asyncio.Event()
            conn.add_termination_listener(lambda _, closed=closed: closed.set())
            for channel in channels:
                await conn.add_listener(channel, on_message)
            if await on_connect(conn):
                tries = 0
                await _stay(conn, closed, renew_seconds)
        except (Unavailable, Misconfigured, TimeoutError, OSError, asyncpg.PostgresError) as error:
            # Misconfigured, too: a server that starts or fails over may refuse for a moment.
            reason = str(error) if isinstance(error, PenstockError) else type(error).__name__
            _log.info("the session %s was lost: %s", name, reason)
        except asyncpg.InterfaceError:
            _log.info("the session %s was lost", name)
        finally:
            if conn is not None:
                conn.terminate()
        tries += 1
        await wait_before_reconnect(tries)


async def _stay(conn: asyncpg.Connection, closed: asyncio.Event, renew_seconds: float) -> None:
    """Return when the session ends, stops answering, or is old enough to be renewed."""
    deadline = time.monotonic() + renew_seconds * random.uniform(0.9, 1.1)  # noqa: S311  # no secret
    while time.monotonic() < deadline and not closed.is_set():
        try:
            await asyncio.wait_for(closed.wait(), _ALIVE_SECONDS)
        except TimeoutError:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await fetching(conn)("select 1", ())
