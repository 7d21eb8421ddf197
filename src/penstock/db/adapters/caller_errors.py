"""What goes wrong on a connection that a caller lent us, in our words.

A refusal of ours comes back as itself. What its owner has to put right (it is closed, its
transaction is aborted, read-only or prepared) says so and what to do. Everything else stays the
driver's: the app's own code may wait for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.db.connections.transient_errors import rolled_back
from penstock.errors import Invalid, PenstockError, Unavailable, refusal

_NOTHING = "nothing was written"
_CLOSED = (
    "conn is closed, or has gone back to its pool: use it before that, inside the block that lends "
    "it"
)
_ABORTED = (
    "conn is in a transaction that an earlier statement, which failed, has aborted: roll it back, "
    "or to a savepoint before that statement, and try again then"
)
_READ_ONLY = (
    "conn is read-only, and this writes: begin the transaction with READ WRITE, look whether "
    "default_transaction_read_only is set, and connect to the primary if this server is a standby"
)
_PREPARED = (
    "conn holds a two-phase transaction that is prepared, which can only be committed or rolled "
    "back: use it before tpc_prepare()"
)
_IN_USE = (
    "conn is at work on another statement, and a connection runs one at a time: await that one "
    "first, or lend another connection"
)
_BY_STATE = {"25P02": _ABORTED, "25006": _READ_ONLY}
# The server, or the way to it, is gone or going.
_LOST = ("08", "57P")
# Drivers have no code for these: the class, and a piece of its message.
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
    """Whether its transaction was begun for a two-phase commit: Postgres prepares no NOTIFY.

    By `tpc_begin` of psycopg, or by SQLAlchemy's two-phase sessions and connections. Workers find
    such a job with their next poll.
    """
    return any(
        layer is not None and (getattr(layer, "twophase", False) is True or _two_phases(layer))
        for layer in _layers(conn)
    )


def refuse_prepared(conn: Any) -> None:
    """Psycopg would begin another transaction, which the app knows nothing of and cannot end."""
    for layer in _layers(conn):
        match _two_phases(layer):
            case (_, True):
                raise _odd(_PREPARED)
            case begun if getattr(begun, "_is_prepared", False) is True:
                raise _odd(_PREPARED)


def _layers(conn: Any) -> Iterator[Any]:
    """The connection, and what SQLAlchemy's kinds for an event loop wrap."""
    yield conn
    yield getattr(conn, "sync_session", None)
    yield getattr(conn, "sync_connection", None)


def _two_phases(conn: Any) -> Any:
    """Psycopg's pair of id and "is prepared", or SQLAlchemy's transaction; None for any other."""
    begun = getattr(conn, "_tpc", None)
    if isinstance(begun, tuple):
        return begun
    current = getattr(conn, "get_transaction", None)
    transaction = current() if callable(current) else None
    return transaction if type(transaction).__name__ == "TwoPhaseTransaction" else None


@contextmanager
def explained() -> Iterator[None]:
    """Around a statement on the caller's connection: raise what can be said better than by it."""
    try:
        yield
    except Exception as error:
        ours = _ours(error)
        if ours is None:
            raise
        raise ours from error


def _ours(error: BaseException) -> PenstockError | None:
    """From as deep as it goes: wrappers of a driver's error may lack the detail."""
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
    return _lost() if "OperationalError" in names and "connection is lost" in words else None


def _odd(message: str) -> Invalid:
    return Invalid(f"{message}; {_NOTHING}", code="invalid_connection", field="conn")


def _lost() -> Unavailable:
    return Unavailable(
        "The connection given as conn was lost: what was not committed on it is undone.",
        hint="Open another connection, and do the whole transaction again.",
    )


def _refusal(error: BaseException, state: str) -> PenstockError:
    diagnostics = getattr(error, "diag", None)  # psycopg keeps the server's words here
    if diagnostics is not None:
        return refusal(
            state, diagnostics.message_primary, diagnostics.message_detail, diagnostics.message_hint
        )
    words = str(getattr(error, "message", None) or error)
    return refusal(state, words, getattr(error, "detail", None), getattr(error, "hint", None))
