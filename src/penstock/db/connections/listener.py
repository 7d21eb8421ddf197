"""A session of its own that stays: it listens, holds what belongs to a session, and comes back."""

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

# Workers have to be back within a second of the server.
_RECONNECT_SECONDS = (0.05, 0.5)
_ALIVE_SECONDS = 5.0
_ANSWER_SECONDS = 3.0

# A host that is gone is noticed in seconds, not in the two hours of the system's default: 2 s after
# it was heard last, and 1.5 s after something was sent that it does not confirm.
_KEEPALIVE = """
set tcp_keepalives_idle = 1; set tcp_keepalives_interval = 1; set tcp_keepalives_count = 2;
set tcp_user_timeout = 1500
"""
# A backend that runs a statement checks its client, too: else the key of a worker that was killed
# would be held until the statement ends.
_CHECK_CLIENT = "set client_connection_check_interval = 500"

_log = logging.getLogger("penstock.db")

# What says that the database cannot be reached. A stopped server's socket is no longer there, and a
# host without a route is no refused connection: both are errors of the system, not of the driver.
# The driver itself stumbles ("cannot switch to state") when a server dies between two messages.
DATABASE_UNAVAILABLE = (Unavailable, OSError, asyncpg.InternalClientError)

OnNotify = Callable[[str, str], None]
OnConnect = Callable[[asyncpg.Connection], Awaitable[bool]]


async def open_session(dsn: str, *, name: str, local: bool = False) -> asyncpg.Connection:
    """A connection whose end the server notices soon when this side dies without a word.

    `local`: for what no standby need have, like signs of life; its commits wait for none.
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
    """Wait before trying to connect again: soon, and not all at the same moment."""
    low, high = _RECONNECT_SECONDS
    await asyncio.sleep(random.uniform(low, min(high, low * 2**tries)))  # noqa: S311  # no secret


async def listen(  # noqa: PLR0913  # all named where it is called
    dsn: str,
    channels: Sequence[str],
    on_notify: OnNotify,
    on_connect: OnConnect,
    *,
    name: str,
    renew_seconds: float,
) -> None:
    """Listen for ever, over outages. `on_connect` is called with each new session.

    Where that says False, the session is closed and opened again later: it is not wanted now. Any
    role that may connect can notify: what `on_notify` cannot read is ignored, and logged once.
    """
    tries = 0
    complained: set[str] = set()

    def on_message(_: object, __: int, channel: str, payload: object) -> None:
        try:
            on_notify(channel, str(payload))
        except Exception as error:  # noqa: BLE001  # whatever somebody has sent
            level = logging.DEBUG if channel in complained else logging.WARNING
            complained.add(channel)
            _log.log(
                level,
                "a notification is ignored that cannot be read (%s): another program sends to %s",
                type(error).__name__,
                # What follows the last _ of a worker's own channel is a secret.
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
            # Misconfigured too: a server that starts, or fails over, may refuse us for a moment.
            reason = str(error) if isinstance(error, PenstockError) else type(error).__name__
            _log.info("the session %s is gone: %s", name, reason)
        except asyncpg.InterfaceError:
            _log.info("the session %s is gone", name)
        finally:
            if conn is not None:
                conn.terminate()
        tries += 1
        await wait_before_reconnect(tries)


async def _stay(conn: asyncpg.Connection, closed: asyncio.Event, renew_seconds: float) -> None:
    """Until the session ends, does not answer any more, or is old enough to be renewed."""
    deadline = time.monotonic() + renew_seconds * random.uniform(0.9, 1.1)  # noqa: S311  # no secret
    while time.monotonic() < deadline and not closed.is_set():
        try:
            await asyncio.wait_for(closed.wait(), _ALIVE_SECONDS)
        except TimeoutError:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await fetching(conn)("select 1", ())
