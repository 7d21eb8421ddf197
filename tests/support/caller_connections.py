"""Callers' own connections, one way to open each kind of them."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker


@dataclass
class Borrower:
    """A connection inside a transaction that its owner began, and how its owner ends it."""

    conn: Any
    run: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]

    async def execute(self, sql: str) -> None:
        """The app's own write, on the same connection."""
        await _settled(self.run(sql))

    async def end(self, *, commits: bool) -> None:
        await _settled(self.commit() if commits else self.rollback())


Open = Callable[[str], AbstractAsyncContextManager[Borrower]]


class OwnSession(Session):
    """A subclass, as apps and frameworks make."""


class OwnAsyncSession(AsyncSession):
    """A subclass, as apps and frameworks make."""


class Wrapped:
    """What DB-API guarantees and no more, like Django's connection wrapper."""

    def __init__(self, conn: Any) -> None:
        self.cursor = conn.cursor
        self.commit = conn.commit
        self.rollback = conn.rollback


@asynccontextmanager
async def from_asyncpg(dsn: str) -> AsyncIterator[Borrower]:
    conn = await asyncpg.connect(dsn)
    transaction = conn.transaction()
    await transaction.start()
    yield Borrower(conn, conn.execute, transaction.commit, transaction.rollback)
    await conn.close()


@asynccontextmanager
async def from_asyncpg_pool(dsn: str) -> AsyncIterator[Borrower]:
    async with asyncpg.create_pool(dsn, min_size=1) as pool, pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        yield Borrower(conn, conn.execute, transaction.commit, transaction.rollback)


@asynccontextmanager
async def from_psycopg(dsn: str) -> AsyncIterator[Borrower]:
    with psycopg.connect(dsn) as conn:
        yield Borrower(conn, conn.execute, conn.commit, conn.rollback)


@asynccontextmanager
async def from_psycopg_dicts(dsn: str) -> AsyncIterator[Borrower]:
    with psycopg.connect(dsn, row_factory=dict_row) as conn:
        yield Borrower(conn, conn.execute, conn.commit, conn.rollback)


@asynccontextmanager
async def from_psycopg_async(dsn: str) -> AsyncIterator[Borrower]:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        yield Borrower(conn, conn.execute, conn.commit, conn.rollback)


@asynccontextmanager
async def from_dbapi(dsn: str) -> AsyncIterator[Borrower]:
    with psycopg.connect(dsn) as conn:
        yield Borrower(Wrapped(conn), conn.execute, conn.commit, conn.rollback)


def from_sqlalchemy(make: Callable[[Any], Any]) -> Open:
    """For SQLAlchemy's blocking kinds; `make` gets the engine."""

    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Borrower]:
        engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:", 1))
        conn = make(engine)
        yield Borrower(conn, lambda sql: conn.execute(text(sql)), conn.commit, conn.rollback)
        conn.close()
        engine.dispose()

    return opened


@asynccontextmanager
async def from_sqlalchemy_raw(dsn: str) -> AsyncIterator[Borrower]:
    engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:", 1))
    conn = engine.raw_connection()
    yield Borrower(conn, lambda sql: conn.cursor().execute(sql), conn.commit, conn.rollback)
    conn.close()
    engine.dispose()


def from_async_sqlalchemy(driver: str, make: Callable[[Any], Any]) -> Open:
    """For SQLAlchemy's kinds for an event loop."""

    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Borrower]:
        engine = create_async_engine(dsn.replace("postgresql:", f"postgresql+{driver}:", 1))
        async with make(engine) as conn:
            yield Borrower(conn, lambda sql: conn.execute(text(sql)), conn.commit, conn.rollback)
        await engine.dispose()

    return opened


BORROWERS: dict[str, Open] = {
    "asyncpg": from_asyncpg,
    "asyncpg pool": from_asyncpg_pool,
    "psycopg": from_psycopg,
    "psycopg with rows as dicts": from_psycopg_dicts,
    "psycopg async": from_psycopg_async,
    "DB-API": from_dbapi,
    "SQLAlchemy Session": from_sqlalchemy(Session),
    "SQLAlchemy Session of the app's": from_sqlalchemy(OwnSession),
    "SQLAlchemy scoped_session": from_sqlalchemy(lambda e: scoped_session(sessionmaker(e))),
    "SQLAlchemy Connection": from_sqlalchemy(lambda engine: engine.connect()),
    "SQLAlchemy raw connection": from_sqlalchemy_raw,
    "SQLAlchemy AsyncSession, asyncpg": from_async_sqlalchemy("asyncpg", AsyncSession),
    "SQLAlchemy AsyncSession, psycopg": from_async_sqlalchemy("psycopg_async", AsyncSession),
    "SQLAlchemy AsyncSession of the app's": from_async_sqlalchemy("asyncpg", OwnAsyncSession),
    "SQLAlchemy AsyncConnection": from_async_sqlalchemy("asyncpg", lambda e: e.connect()),
}
# The kinds that are used without an event loop.
BLOCKING = [
    name for name in BORROWERS if "async" not in name.lower() and not name.startswith("asyncpg")
]


async def _settled(value: Awaitable[Any] | Any) -> Any:
    return await value if inspect.isawaitable(value) else value
