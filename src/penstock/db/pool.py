"""Connections as Penstock wants them: named for people who look at the server, and JSON decoded."""

import asyncio
import functools
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from pydantic_core import from_json

# How long to wait for a server that neither answers nor refuses.
CONNECT_SECONDS = 10.0

# Three probes without an answer, and 15 s for what was sent (in ms).
_SILENCE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}

# Classes of SQLSTATE with which a server ends a session.
_LEAVES = ("08", "57P")

# Not NaN and Infinity, which Postgres would refuse later and less clearly.
_encode = functools.partial(json.dumps, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


class Unreadable(str):
    """In place of JSON that no parser here takes: nested thousands deep, or of endless numbers.

    Submits refuse such, but who writes into tables can store it. A value that is no object fails
    its own job; an error would take all rows of the answer along, each time they are fetched.
    """

    __slots__ = ()


def _decode(text: str) -> Any:
    # pydantic's parser takes a quarter of the time of the standard one, and gives up where a value
    # is nested more than 200 deep.
    try:
        return from_json(text)
    except ValueError:
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return Unreadable()


async def connect_plainly(dsn: str, *, name: str, frugal: bool = False) -> asyncpg.Connection:
    """Connect. `frugal`: for a pooler that gives each transaction another session.

    It keeps no statement, and each query has to be in a transaction. No other session setting than
    the name in any case: poolers refuse a connection that begins with settings they do not know.
    """
    conn = await asyncpg.connect(
        dsn,
        timeout=CONNECT_SECONDS,
        statement_cache_size=0 if frugal else 100,
        server_settings={"application_name": name},
    )
    _notice_silence(conn)
    return conn


def _notice_silence(conn: asyncpg.Connection) -> None:
    """A network that swallows everything ends the connection in seconds, not in a quarter hour."""
    transport: asyncio.BaseTransport | None = getattr(conn, "_transport", None)
    stand_in = transport.get_extra_info("socket") if transport is not None else None
    if stand_in is None or stand_in.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # What the loop gives takes no options; a second handle on the same socket does.
    with socket.socket(fileno=os.dup(stand_in.fileno())) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _SILENCE.items():
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def prepare(conn: asyncpg.Connection) -> None:
    """Read and write `json` and `jsonb` as Python values."""
    async with conn.transaction():
        for name in ("json", "jsonb"):
            await conn.set_type_codec(name, schema="pg_catalog", encoder=_encode, decoder=_decode)


class Pool:
    """Connections of one event loop, lent for one call each.

    The driver's own pool took 40 us of processor time a call (2026-11), more than the call itself:
    it guards against state that a borrower leaves behind. Our calls are single statements, or
    transactions that end here, and leave none.
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
        self._frugal = frugal
        self._answer_seconds = answer_seconds
        self._name = name
        self._turn = asyncio.Semaphore(max_size)
        self._max_size = max_size
        # The one used last first: it is warm, and the others may rest.
        self._idle: list[asyncpg.Connection] = []
        self._lent: set[asyncpg.Connection] = set()
        self._old: set[asyncpg.Connection] = set()
        self._closed = False

    async def fetch(self, sql: str, *args: Any) -> list[asyncpg.Record]:
        # Not by `acquire`, a generator: a loop that ends breaks those off, and with it a last word.
        async with self._turn:
            conn = await self._take()
            try:
                if self._frugal:
                    async with conn.transaction():
                        rows = await conn.fetch(sql, *args)
                else:
                    rows = await conn.fetch(sql, *args, timeout=self._answer_seconds)
            except BaseException as error:
                self._settle(conn, error)
                raise
            self._give(conn)
            return rows

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection for the length of the block; waits while all are lent."""
        async with self._turn:
            conn = await self._take()
            try:
                yield conn
            except BaseException as error:
                self._settle(conn, error)
                raise
            self._give(conn)

    def expire(self) -> None:
        """Close each connection when it is next free; others take their place."""
        self._old |= self._lent
        idle, self._idle = self._idle, []
        for conn in idle:
            conn.terminate()

    async def close(self) -> None:
        """Wait for what is lent, and close all."""
        self._closed = True
        for _ in range(self._max_size):
            await self._turn.acquire()
        idle, self._idle = self._idle, []
        for conn in idle:
            await conn.close()
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
        conn = await connect_plainly(self._dsn, name=self._name, frugal=self._frugal)
        self._lent.add(conn)
        try:
            await prepare(conn)
        except BaseException:
            self._lent.discard(conn)
            conn.terminate()
            raise
        return conn

    def _settle(self, conn: asyncpg.Connection, error: BaseException) -> None:
        """After an error: where the server said no, in good order, the connection is as it was.

        Where the server takes leave, or something of ours broke off, it is not used again.
        """
        state = getattr(error, "sqlstate", None) or ""
        if isinstance(error, asyncpg.PostgresError) and not state.startswith(_LEAVES):
            self._give(conn)
        else:
            self._lent.discard(conn)
            self._old.discard(conn)
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
    """Open a pool whose connections show as `name` in pg_stat_activity; the first one now.

    `answer_seconds`: how long a statement may take before its connection counts as gone; None for
    callers that submit a million jobs at once.
    """
    pool = Pool(dsn, name=name, max_size=max_size, frugal=frugal, answer_seconds=answer_seconds)
    async with pool.acquire():
        return pool
