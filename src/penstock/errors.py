"""Everything Penstock raises.

    PenstockError
    ├── Refused                    the database (or the check before it) said no; nothing changed
    │   ├── Unauthorized           PS401   no key or token, or one that opens nothing (any more)
    │   ├── InsufficientCredits    PS402   `balance`, `required`
    │   ├── NotAllowed             PS403
    │   ├── NotFound               PS404   no such job, kind, queue, account
    │   ├── Conflict               PS409   not in the present state; a twin is still at work
    │   ├── TooLarge               PS413
    │   ├── Invalid                PS422   a field is wrong: `field` says which
    │   └── RateLimited            PS429   `retry_after` seconds, `next_at`
    │                              PS503   a stranger keeps a lock of a queue: a plain Refused
    ├── Misconfigured              found at start-up, before any work
    │   ├── EmbeddedFailed         the embedded Postgres cannot be made or started
    │   ├── MigrationFailed        a step of a migration was refused; nothing of it was kept
    │   ├── SchemaMismatch         the database's schema is older or newer than this program
    │   └── WrongApp               what names the app names none, or its penstock.toml is wrong
    ├── Unavailable                the database cannot be reached; the outcome may be unknown
    │   ├── DiskFull               its disk is full: nothing was written
    │   └── RolledBack             it undid the transaction: `code`; run that again
    ├── JobFailed                  a result was asked for, and there is none: the job failed
    └── JobCancelled               likewise: it was cancelled

The digits of a Refused code are the HTTP status the API answers with. `code` is a stable
word for programs, the message a sentence for people, `members` what else is worth knowing. A hint
says what to do; `str()` of a Refused is both.
"""

import json
from datetime import datetime
from typing import Any
from uuid import UUID


def words_of(value: object) -> str:
    """Its text. An exception may fail to give one, or even end the program when it is asked."""
    try:
        return str.__str__(str(value))  # of str itself: a class of its own may do anything
    except BaseException:  # noqa: BLE001  # whatever it is, it is the value's and not ours
        return type(value).__name__


class PenstockError(Exception):
    """Root of every error Penstock raises."""

    hint: str | None = None
    """What to do about it, where the message does not say so."""

    def __init__(self, *args: object, hint: str | None = None) -> None:
        super().__init__(*args)
        self.hint = hint


class Refused(PenstockError):
    """The request was understood and refused; nothing was written."""

    sqlstate = "PS400"

    def __init__(
        self,
        message: str,
        *,
        code: str,
        field: str | None = None,
        hint: str | None = None,
        **members: Any,
    ) -> None:
        super().__init__(message, hint=hint)
        self.message = message
        self.code = code
        self.field = field
        self.members = members

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        return f"{self.message.removesuffix('.')}. {self.hint}"

    @property
    def status(self) -> int:
        """The HTTP status that says the same."""
        return int(self.sqlstate[2:])


class Unauthorized(Refused):
    sqlstate = "PS401"


class InsufficientCredits(Refused):
    sqlstate = "PS402"

    @property
    def balance(self) -> int:
        """What the account has."""
        return int(self.members["balance"])

    @property
    def required(self) -> int:
        """What it would have needed."""
        return int(self.members["required"])


class NotAllowed(Refused):
    sqlstate = "PS403"


class NotFound(Refused):
    sqlstate = "PS404"


class Conflict(Refused):
    sqlstate = "PS409"


class TooLarge(Refused):
    sqlstate = "PS413"


class Invalid(Refused):
    sqlstate = "PS422"


class RateLimited(Refused):
    sqlstate = "PS429"

    @property
    def retry_after(self) -> float | None:
        """After how many seconds it may be tried again; None: it asks for too much at once."""
        seconds = self.members.get("retry_after")
        return None if seconds is None else float(seconds)

    @property
    def next_at(self) -> datetime | None:
        """The moment of that."""
        moment = self.members.get("next_at")
        return None if moment is None else datetime.fromisoformat(moment)


class Misconfigured(PenstockError):
    """Found at start-up, before any work: what is wrong and what to do."""


class EmbeddedFailed(Misconfigured):
    """The embedded Postgres cannot be made, started or reached."""


class MigrationFailed(Misconfigured):
    """A statement of a migration was refused: the message names file and line."""


class SchemaMismatch(Misconfigured):
    """The database's schema is older or newer than this program."""


class WrongApp(Misconfigured):
    """What was given as the app names none, or a `penstock.toml` that is wrong."""


class Unavailable(PenstockError):
    """The database cannot be reached; whether the last call took effect may be unknown."""


class DiskFull(Unavailable):
    """The database has no room left for what was to be written: nothing was."""


class RolledBack(Unavailable):
    """The database undid the transaction, since others were in its way: nothing was written.

    `code` says why. The same may be run again: a transaction of the caller's own as a whole.
    """

    def __init__(self, message: str, *, code: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class JobFailed(PenstockError):
    """Why a job has no result, in the words of its last failure; never what it was given."""

    def __init__(
        self, message: str, *, job_id: UUID, error_class: str | None, reason: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.job_id = job_id
        self.error_class = error_class
        self.reason = reason


class JobCancelled(PenstockError):
    """Somebody cancelled the job, or its handler did: there is no result."""

    def __init__(self, message: str, *, job_id: UUID) -> None:
        super().__init__(message)
        self.message = message
        self.job_id = job_id


_BY_SQLSTATE: dict[str, type[Refused]] = {kind.sqlstate: kind for kind in Refused.__subclasses__()}


def refusal(sqlstate: str, message: str, detail: str | None, hint: str | None = None) -> Refused:
    """The exception for what SQL raised: status from the SQLSTATE, the rest from `detail`."""
    members: dict[str, Any] = json.loads(detail) if detail else {}
    kind = _BY_SQLSTATE.get(sqlstate, Refused)
    error = kind(message, hint=hint, **{"code": "refused", **members})
    error.sqlstate = sqlstate
    return error
