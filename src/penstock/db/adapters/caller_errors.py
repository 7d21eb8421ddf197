"""Translate errors on a caller's own connection into Penstock's errors.

A refusal by Penstock's SQL functions becomes its own exception. A fault that the caller must fix
(the connection is closed; its transaction is aborted, read-only or prepared) becomes an error that
says what to do. Every other error stays the driver's, because the app may handle it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.db.connections.transient_errors import rolled_back
from penstock.errors import Invalid, PenstockError, Unavailable, refusal

_NOTHING = "nothing was written"
_CLOSED = "conn is closed or was returned to its pool: use it inside the block that acquires it"
_ABORTED = (
    "conn is in a transaction that a failed statement has aborted: roll it back, or roll back to a "
    "savepoint before that statement, and try again"
)
_READ_ONLY = (
    "conn is read-only, and this call writes: begin the transaction with READ WRITE, check whether "
    "default_transaction_read_only is set, and connect to the primary if this server is a standby"
)
_PREPARED = (
    "conn has a prepared two-phase transaction, which can only be committed or rolled back: use "
    "conn before tpc_prepare()"
)
_IN_USE = (
    "conn is running another statement, and a connection runs one at a time: await that one "
    "first, or pass another connection"
)
_BY_STATE = {"25P02": _ABORTED, "25006": _READ_ONLY}
# SQLSTATE classes of a lost connection, and of a server that shuts down or crashed.
_LOST = ("08", "57P")
# Drivers have no code for these errors: the class, and a part of its message.
_BY_WORDS = (
    ("ResourceClosedError", "", _CLOSED),
    ("PendingRollbackError", "", _ABORTED),
    ("PipelineAborted", "", _ABORTED),
    ("InvalidRequestError", "'prepared' state", _PREPARED),
    ("InterfaceError", "another operation is in progress", _IN_USE),
    ("InterfaceError", "closed", _CLOSED),
    ("InterfaceError", "released back to the pool", _CLOSED),
    ("OperationalError", "connection is closed", _CLOSED),
    ("OperationalError", "connection already closed", _CLOSED),
)


def is_two_phase(conn: Any) -> bool:
    """Return whether the transaction was begun for a two-phase commit.

    It was begun by `tpc_begin` of psycopg, or by SQLAlchemy's two-phase sessions and connections.
    Postgres cannot prepare a transaction with a NOTIFY, so workers find such a job with their next
    poll.
    """
    return any(
        layer is not None and (getattr(layer, "twophase", False) is True or _two_phases(layer))
        for layer in _layers(conn)
    )


def refuse_prepared(conn: Any) -> None:
    """Refuse a prepared transaction.

    Psycopg would begin another transaction, which the app does not know of and cannot finish.
    """
    for layer in _layers(conn):
        match _two_phases(layer):
            case (_, True):
                raise _odd(_PREPARED)
            case begun if getattr(begun, "_is_prepared", False) is True:
                raise _odd(_PREPARED)


def _layers(conn: Any) -> Iterator[Any]:
    """Yield the connection, and the objects that SQLAlchemy's asyncio classes wrap."""
    yield conn
    yield getattr(conn, "sync_session", None)
    yield getattr(conn, "sync_connection", None)


def _two_phases(conn: Any) -> Any:
    """Return psycopg's pair of id and "is prepared", SQLAlchemy's transaction, or None."""
    begun = getattr(conn, "_tpc", None)
    if isinstance(begun, tuple):
        return begun
    current = getattr(conn, "get_transaction", None)
    transaction = current() if callable(current) else None
    return transaction if type(transaction).__name__ == "TwoPhaseTransaction" else None


@contextmanager
def explained() -> Iterator[None]:
    """Translate errors of a statement on the caller's connection."""
    try:
        yield
    except Exception as error:
        ours = _ours(error)
        if ours is None:
            raise
        raise ours from error


def _ours(error: BaseException) -> PenstockError | None:
    """Translate the innermost error that is known: wrappers of it may lack the detail."""
    explained_error: PenstockError | None = None
    seen: BaseException | None = error
    while seen is not None:
        explained_error = _explained(seen) or explained_error
        seen = getattr(seen, "orig", None) or seen.__cause__
    return explained_error


def _explained(error: BaseException) -> PenstockError | None:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(state, str):
        if state.startswith("PS"):
            return _refusal(error, state)
        if state in _BY_STATE:
            return _odd(_BY_STATE[state])
        if (undone := rolled_back(state, ours=False)) is not None:
            return undone
        if state.startswith(_LOST):
            return _lost()
    names = {base.__name__ for base in type(error).__mro__}
    words = str(error)
    for name, piece, message in _BY_WORDS:
        if name in names and piece in words:
            return _odd(message)
    # asyncpg raises InternalClientError if the connection breaks while it prepares a statement.
    is_lost = "InternalClientError" in names or (
        "OperationalError" in names and "connection is lost" in words
    )
    return _lost() if is_lost else None


def _odd(message: str) -> Invalid:
    return Invalid(f"{message}; {_NOTHING}", code="invalid_connection", field="conn")


def _lost() -> Unavailable:
    return Unavailable(
        "The connection conn was lost: everything that was not committed on it is undone.",
        hint="Open another connection and repeat the whole transaction.",
    )


def _refusal(error: BaseException, state: str) -> PenstockError:
    diagnostics = getattr(error, "diag", None)  # psycopg has the server's message here
    if diagnostics is not None:
        return refusal(
            state, diagnostics.message_primary, diagnostics.message_detail, diagnostics.message_hint
        )
    words = str(getattr(error, "message", None) or error)
    return refusal(state, words, getattr(error, "detail", None), getattr(error, "hint", None))
