"""Errors with which Postgres rolls back a correct transaction."""

from penstock.errors import Conflict, RolledBack

AGAIN = "Try again."
_WHOLE = "Roll your transaction back and run all of it again."


def rolled_back(state: str, *, ours: bool) -> RolledBack | Conflict | None:
    """Return the error for such an SQLSTATE, else None.

    `ours`: the transaction is Penstock's own and not the caller's.
    """
    hint = AGAIN if ours else _WHOLE
    match state:
        case "40001":
            return RolledBack(
                "Another transaction has changed rows that this one had read, and this one's"
                " isolation level forbids that: the database rolled it back.",
                code="serialization_failure",
                hint=hint,
            )
        case "40P01":
            return RolledBack(
                "This transaction and another one waited for each other (a deadlock): the database"
                " rolled this one back.",
                code="deadlock",
                hint=hint,
            )
        case "57014":
            return RolledBack(
                "The database cancelled the statement: it took longer than statement_timeout"
                " allows, or somebody cancelled it. Nothing was written.",
                code="statement_cancelled",
                hint=hint,
            )
        case "55P03":
            return Conflict(
                "An open transaction holds a lock that this change needs; try again after that"
                " transaction.",
                code="contended",
            )
    return None
