"""Errors with which Postgres undoes a transaction that nothing was wrong with."""

from penstock.errors import Conflict, RolledBack

AGAIN = "Try again."
_WHOLE = "Roll your transaction back and run it again from its beginning."


def rolled_back(state: str, *, ours: bool) -> RolledBack | Conflict | None:
    """What such an SQLSTATE is called here; None for others. `ours`: nobody else's transaction."""
    hint = AGAIN if ours else _WHOLE
    match state:
        case "40001":
            return RolledBack(
                "Another transaction has changed what this one has read, and its isolation level"
                " allows no second look: the database undid it.",
                code="serialization_failure",
                hint=hint,
            )
        case "40P01":
            return RolledBack(
                "This transaction and another one waited for each other (a deadlock): the database"
                " undid this one.",
                code="deadlock",
                hint=hint,
            )
        case "57014":
            return RolledBack(
                "The database broke the statement off: it took longer than statement_timeout"
                " allows, or somebody cancelled it. Nothing was written.",
                code="statement_cancelled",
                hint=hint,
            )
        case "55P03":
            return Conflict(
                "An open transaction holds what this change needs; try again when it has ended.",
                code="contended",
            )
    return None
