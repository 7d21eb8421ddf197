"""Translate the driver's errors into Penstock's, so that callers have one exception tree."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import asyncpg

from penstock.db.adapters.caller_connection import Fetch, Rows
from penstock.db.connections.pool import confirm
from penstock.db.connections.transient_errors import rolled_back
from penstock.errors import (
    DiskFull,
    Misconfigured,
    PenstockError,
    Unavailable,
    refusal,
)

# Classes of SQLSTATE that end a session: connection errors, operator intervention (shutdown,
# failover), too many connections, and a transaction that took too long.
_LOST = ("08", "57P", "53300", "25P03", "25P04")


POOLED = (
    "Between this program and the database is a transaction pooler, which gives each transaction "
    "another session, and this program needs its own session: use the address of the server "
    "itself, or of a pool with pool_mode = session."
)
READS_ONLY = (
    "If it is a standby, use the address of the primary, or of all servers with"
    " ?target_session_attrs=read-write. If it is not, check default_transaction_read_only"
    " (`show default_transaction_read_only;`) of the server, the database and the role, and read"
    " the server's log: a full disk may be the reason."
)
# A prepared statement that belongs to another client, or is missing: signs of such a pooler.
_STRANGERS = (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError)


class translated:  # noqa: N801  # used like a function
    """Translate the driver's errors in a block. An unknown error is a bug and passes unchanged."""

    # Not a generator, which takes three times as long: each call of the engine enters a block.
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ours = None if error is None else _ours(error)
        if ours is not None:
            raise ours from error


def fetching(conn: asyncpg.Connection) -> Fetch:
    """Return a function that runs a statement on a connection of Penstock's own."""

    async def fetch(sql: str, args: Sequence[Any]) -> Rows:
        with translated():
            rows = list(await conn.fetch(sql, *args))
        confirm(conn)
        return rows

    return fetch


def _ours(error: BaseException) -> PenstockError | None:
    """Return Penstock's error for an error of the driver; None if it is unknown."""
    if isinstance(error, asyncpg.PostgresError):
        return _of_the_server(error)
    if isinstance(error, OSError | asyncpg.InternalClientError):
        # The socket of a stopped server is missing, and a host may have no route. The driver
        # itself fails ("cannot switch to state") when a server dies between two messages.
        return Unavailable(
            f"The connection to the database was lost: {str(error) or type(error).__name__}."
        )
    # The driver uses one class for a closed connection and for wrong use of a connection.
    if isinstance(error, asyncpg.InterfaceError) and "closed" in str(error):
        return Unavailable("The connection to the database was lost.")
    return None


def _of_the_server(error: asyncpg.PostgresError) -> PenstockError | None:
    state = error.sqlstate or ""
    if state.startswith("PS"):
        return refusal(state, error.message, error.detail, error.hint)
    if isinstance(error, asyncpg.DiskFullError):
        return DiskFull(
            "The database's disk is full, so nothing was written.",
            hint="Free space on the database's disk; all programs then continue automatically.",
        )
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return Unavailable(f"The database is read-only: {error.message}.", hint=READS_ONLY)
    if state.startswith(_LOST):
        return Unavailable(f"The database is not available: {error.message}.")
    if isinstance(error, _STRANGERS):
        return Misconfigured(POOLED)
    if undone := rolled_back(state, ours=True):
        return undone
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return Misconfigured(f"The database role lacks a right: {error.message}.")
    return None
