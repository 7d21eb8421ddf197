"""Connections with Penstock's settings, a name in pg_stat_activity and JSON codecs; their pool."""

import asyncio
import functools
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
from asyncpg.connect_utils import SessionAttribute
from pydantic_core import from_json

from penstock.db.connections import session_settings
from penstock.db.connections.display_address import display_address
from penstock.db.connections.hosts import Host, Opened, admit, first_of, hosts, role_of
from penstock.db.connections.quiet_driver import quiet_handshakes
from penstock.errors import Unavailable

# How long to wait for a server that neither answers nor refuses.
CONNECT_SECONDS = 10.0
# How long a cancelled statement may take to end, and its connection to close.
LEAVE_SECONDS = 2.0

# Three probes without an answer, and 15 s (in ms) for data without a confirmation.
_SILENCE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}
# The same on the server's side, to free what a lost host holds: the locks of an open transaction,
# and a connection.
_SERVER_SILENCE = """
set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 3; set tcp_keepalives_count = 3;
set tcp_user_timeout = 15000
"""
# With several hosts, a silent one is given up sooner.
_SHORT_SILENCE = {
    "TCP_KEEPIDLE": 1,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": 2,
    "TCP_USER_TIMEOUT": 2_000,
}

# Classes of SQLSTATE with which a server ends a session, or after which the session is unusable: a
# server that has become read-only is a standby now.
_LEAVES = ("08", "57P", "25006", "25P03", "25P04")

# Addresses of several hosts whose timelines were compared.
_compared: set[str] = set()
_leaving: set["asyncio.Task[None]"] = set()

quiet_handshakes()

# NaN and Infinity are refused here: Postgres would refuse them later and less clearly.
_encode = functools.partial(json.dumps, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


class Unreadable(str):
    """The stand-in for JSON that cannot be parsed: nested thousands deep, or with endless numbers.

    Submits refuse such values, but a program that writes into the tables can store them. A value
    that is not an object fails only its own job; an error would fail all rows of each fetch.
    """

    __slots__ = ()


def _decode(text: str) -> Any:
    # pydantic's parser takes a quarter of the time of the standard one, but refuses values that
    # are nested more than 200 deep.
    try:
        return from_json(text)
    except ValueError:
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return Unreadable()


class Session(asyncpg.Connection):
    """A connection that notices when the server gives up waiting for its standbys.

    If a commit that waits for a synchronous standby is cancelled, it is still committed on the
    primary: the server reports success, after a warning that the commit may be on no standby.

    Its transactions are read committed. `pins`: statements that are sent with each `begin`, for a
    pooler that gives each transaction another session.
    """

    __slots__ = ("is_unconfirmed", "pins")

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.is_unconfirmed = False
        self.pins = ""
        self.add_log_listener(_notice_unconfirmed)

    def transaction(
        self, *, isolation: Any = None, readonly: bool = False, deferrable: bool = False
    ) -> Any:
        return super().transaction(
            isolation=isolation or "read_committed", readonly=readonly, deferrable=deferrable
        )

    async def execute(self, query: str, *args: Any, **named: Any) -> str:
        if self.pins and query.startswith("BEGIN "):
            query += self.pins
        return await super().execute(query, *args, **named)


def _notice_unconfirmed(conn: Any, message: Any) -> None:
    # Recognised by the name of the server's function, because the message may be translated. The
    # driver calls this before it returns the statement's result.
    if message.server_source_function == "SyncRepWaitForLSN":
        conn.is_unconfirmed = True


def confirm(conn: asyncpg.Connection) -> None:
    """After a call that may have committed, raise an error if the commit may be lost."""
    # Not isinstance: in the driver every connection is an instance of every connection class.
    if type(conn) is Session and conn.is_unconfirmed:
        conn.is_unconfirmed = False
        raise Unavailable(
            "The database gave up waiting for its standby: it is not known whether this call took"
            " effect."
        )


async def connect_plainly(
    dsn: str, *, name: str, frugal: bool = False, pins: bool = True
) -> asyncpg.Connection:
    """Connect to a server that accepts writes, the one among several hosts.

    `frugal`: for a pooler that gives each transaction another session. The connection keeps no
    prepared statements, and each query must be in a transaction. Every connection starts with no
    setting but its name, because poolers refuse settings that they do not know. `pins`: apply the
    settings that the code relies on, in a session that belongs to this program.
    """
    several = hosts(dsn)
    compares = bool(several) and dsn not in _compared

    async def connect(host: Host | None = None) -> Opened:
        conn = await asyncpg.connect(
            dsn,
            host=host.name if host else None,
            port=host.port if host else None,
            timeout=CONNECT_SECONDS,
            statement_cache_size=0 if frugal else 100,
            server_settings={"application_name": name},
            target_session_attrs=SessionAttribute.any,  # checked below, with a better message
            connection_class=Session,
        )
        try:
            _notice_silence(conn, _SHORT_SILENCE if host else _SILENCE)
            async with asyncio.timeout(CONNECT_SECONDS):
                if frugal:
                    conn.pins = session_settings.for_transaction(conn.get_server_version().major)
                    async with conn.transaction():
                        role = await role_of(conn)
                else:
                    if pins:
                        await pin(conn)
                    role = await role_of(conn)
            admit(role, str(host) if host else display_address(dsn), compares=compares)
        except BaseException:
            conn.terminate()
            raise
        return conn, role.timeline

    if several:
        conn = await first_of(several, connect, ask_all=compares)
        _compared.add(dsn)
        return conn
    return (await connect())[0]


def close_in_background(conn: asyncpg.Connection) -> None:
    """Close a connection without waiting, and cancel its statement on the server.

    A closed socket is not enough: a backend that waits for a standby does not check it, and each
    call that gives up would leave such a backend.
    """
    task = asyncio.get_running_loop().create_task(_close(conn))
    _leaving.add(task)
    task.add_done_callback(_leaving.discard)


async def _all_closed() -> None:
    """Wait for this loop's connections that are being closed, because the loop may end next."""
    loop = asyncio.get_running_loop()
    leaving = {task for task in _leaving if task.get_loop() is loop}
    if leaving:
        await asyncio.wait(leaving)


async def _close(conn: asyncpg.Connection) -> None:
    with suppress(Exception):
        await conn.close(timeout=LEAVE_SECONDS)


def _notice_silence(conn: asyncpg.Connection, silence: Mapping[str, int]) -> None:
    """Let a connection fail within seconds, not a quarter hour, if the network drops everything."""
    transport: asyncio.BaseTransport | None = getattr(conn, "_transport", None)
    stand_in = transport.get_extra_info("socket") if transport is not None else None
    if stand_in is None or stand_in.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # The loop's socket object accepts no options; a second handle on the same socket does.
    with socket.socket(fileno=os.dup(stand_in.fileno())) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in silence.items():
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def pin(conn: asyncpg.Connection) -> None:
    """Apply the settings that the code relies on (session_settings.py) to a session of our own."""
    await conn.execute(session_settings.for_session(conn.get_server_version().major))


async def prepare(conn: asyncpg.Connection) -> None:
    """Read and write `json` and `jsonb` as Python values."""
    async with conn.transaction():
        for name in ("json", "jsonb"):
            await conn.set_type_codec(name, schema="pg_catalog", encoder=_encode, decoder=_decode)


class Pool:
    """Connections of one event loop, acquired for one call each.

    The driver's own pool took 40 us of processor time a call (2026-11), more than the call itself:
    it resets state that a caller leaves in the session. Penstock's calls are single statements or
    complete transactions, and leave none.
    """

    def __init__(
        self,
        dsn: str,
        *,
        name: str,
        max_size: int,
        frugal: bool = False,
        answer_seconds: float | None = None,
    ) -> None:
        self._dsn = dsn
        self.frugal = frugal
        self._answer_seconds = answer_seconds
        self._name = name
        self._turn = asyncio.Semaphore(max_size)
        self._max_size = max_size
        # The most recently used one is taken first: its caches are warm, and the others stay idle.
        self._idle: list[asyncpg.Connection] = []
        self._lent: set[asyncpg.Connection] = set()
        self._old: set[asyncpg.Connection] = set()
        self._closed = False

    async def fetch(
        self, sql: str, *args: Any, within_seconds: float | None = None
    ) -> list[asyncpg.Record]:
        """Run one statement. `within_seconds`: the limit, including the wait for a connection."""
        if within_seconds is None:
            return await self._fetch(sql, args)
        async with asyncio.timeout(within_seconds) as limit:
            return await self._fetch(sql, args, limit)

    async def _fetch(
        self, sql: str, args: Sequence[Any], limit: asyncio.Timeout | None = None
    ) -> list[asyncpg.Record]:
        # Not `acquire`, a generator: when the loop ends, it closes open generators and would break
        # off a final statement.
        await self._turn.acquire()
        try:
            conn = await self._take()
            try:
                if self.frugal:
                    async with conn.transaction():
                        rows = await conn.fetch(sql, *args)
                else:
                    rows = await conn.fetch(sql, *args, timeout=self._answer_seconds)
                confirm(conn)
            except BaseException as error:
                self._settle(conn, error, late=limit is not None and limit.expired())
                raise
            self._give(conn)
            return rows
        finally:
            self._turn.release()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[asyncpg.Connection]:
        """Yield a connection for the block; wait while all connections are in use."""
        async with self._turn:
            conn = await self._take()
            try:
                yield conn
                confirm(conn)
            except BaseException as error:
                self._settle(conn, error)
                raise
            self._give(conn)

    def expire(self) -> None:
        """Replace all connections: close each one as soon as it is not in use."""
        self._old |= self._lent
        idle, self._idle = self._idle, []
        for conn in idle:
            conn.terminate()

    async def close(self) -> None:
        """Wait for connections in use, and close all."""
        self._closed = True
        for _ in range(self._max_size):
            await self._turn.acquire()
        idle, self._idle = self._idle, []
        for conn in idle:
            await conn.close()
        await _all_closed()
        for _ in range(self._max_size):
            self._turn.release()

    async def _take(self) -> asyncpg.Connection:
        if self._closed:
            raise asyncpg.InterfaceError("the pool is closed")
        while self._idle:
            conn = self._idle.pop()
            if not conn.is_closed():
                self._lent.add(conn)
                return conn
        conn = await connect_plainly(self._dsn, name=self._name, frugal=self.frugal)
        self._lent.add(conn)
        try:
            await prepare(conn)
            if not self.frugal:  # the sessions of a pooler are shared with other programs
                await conn.execute(_SERVER_SILENCE)
        except BaseException:
            self._lent.discard(conn)
            conn.terminate()
            raise
        return conn

    def _settle(
        self, conn: asyncpg.Connection, error: BaseException, *, late: bool = False
    ) -> None:
        """Decide after an error whether the connection can be used again.

        After an ordinary error of a statement it can. If the server ended the session or our side
        broke off, it cannot. If the server did not answer in time, all connections are replaced,
        because the others would not get an answer either.
        """
        state = getattr(error, "sqlstate", None) or ""
        if isinstance(error, asyncpg.PostgresError) and not state.startswith(_LEAVES):
            self._give(conn)
            return
        self._lent.discard(conn)
        self._old.discard(conn)
        if late or isinstance(error, TimeoutError):
            close_in_background(conn)
            self.expire()
        elif isinstance(error, asyncio.CancelledError):
            # Closing it at once would break off the driver's request to cancel the statement.
            close_in_background(conn)
        else:
            conn.terminate()

    def _give(self, conn: asyncpg.Connection) -> None:
        self._lent.discard(conn)
        if conn in self._old:
            self._old.discard(conn)
            conn.terminate()
        elif not conn.is_closed():
            self._idle.append(conn)


async def open_pool(
    dsn: str,
    *,
    name: str = "penstock",
    max_size: int = 10,
    frugal: bool = False,
    answer_seconds: float | None = None,
) -> Pool:
    """Open a pool, and its first connection; `name` is shown in pg_stat_activity.

    `answer_seconds`: how long a statement may take before its connection counts as lost; None for
    callers that submit a million jobs at once.
    """
    pool = Pool(dsn, name=name, max_size=max_size, frugal=frugal, answer_seconds=answer_seconds)
    async with pool.acquire():
        return pool
