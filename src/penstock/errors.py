"""Everything Penstock raises.

    PenstockError
    ├── Refused                    the database (or a check before it) refused; nothing changed
    │   ├── Unauthorized           PS401   no key or token, or one that is unknown or expired
    │   ├── InsufficientCredits    PS402   `balance`, `required`
    │   ├── NotAllowed             PS403
    │   ├── NotFound               PS404   no such job, kind, queue, account
    │   ├── Conflict               PS409   not in the present state, or the first request still runs
    │   ├── TooLarge               PS413
    │   ├── Invalid                PS422   a field is wrong: `field` says which
    │   └── RateLimited            PS429   `retry_after` seconds, `next_at`
    │                              PS503   a stranger holds the lock of a queue: a plain Refused
    ├── Misconfigured              found at startup, before any work
    │   ├── EmbeddedFailed         the embedded Postgres cannot be made or started
    │   ├── MigrationFailed        a step of a migration failed and was rolled back
    │   ├── SchemaMismatch         the database's schema is older or newer than this program
    │   └── WrongApp               the given name is no app, or its penstock.toml is wrong
    ├── Unavailable                the database cannot be reached; the outcome may be unknown
    │   ├── DiskFull               its disk is full: nothing was written
    │   └── RolledBack             it rolled the transaction back, see `code`; run it again
    ├── JobFailed                  there is no result: the job failed
    └── JobCancelled               there is no result: the job was cancelled

The digits of a Refused code are the HTTP status of the API's answer. `code` is a stable word for
programs, the message is a sentence for people, and `members` has further facts. A hint says what to
do; `str()` of a Refused has message and hint.
"""

import json
from datetime import datetime
from typing import Any
from uuid import UUID


def words_of(value: object) -> str:
    """Return the value's text. An exception's `__str__` may fail, or even end the program."""
    try:
        return str.__str__(str(value))  # a plain str: a subclass of str may do anything
    except BaseException:  # noqa: BLE001  # the value's own code raised it
        return type(value).__name__


class PenstockError(Exception):
    """Root of every error Penstock raises."""

    hint: str | None = None
    """What to do about it, if the message does not say so."""

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
        """The HTTP status of the API's answer."""
        return int(self.sqlstate[2:])


class Unauthorized(Refused):
    sqlstate = "PS401"


class InsufficientCredits(Refused):
    sqlstate = "PS402"

    @property
    def balance(self) -> int:
        """The balance of the account."""
        return int(self.members["balance"])

    @property
    def required(self) -> int:
        """How many credits were needed."""
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
        """After how many seconds to try again; None if the request is too large for the limit."""
        seconds = self.members.get("retry_after")
        return None if seconds is None else float(seconds)

    @property
    def next_at(self) -> datetime | None:
        """The moment at which to try again."""
        moment = self.members.get("next_at")
        return None if moment is None else datetime.fromisoformat(moment)


class Misconfigured(PenstockError):
    """Something is configured wrongly, found at startup: the message says what, and what to do."""


class EmbeddedFailed(Misconfigured):
    """The embedded Postgres cannot be made, started or reached."""


class MigrationFailed(Misconfigured):
    """A statement of a migration failed: the message names file and line."""


class SchemaMismatch(Misconfigured):
    """The database's schema is older or newer than this program."""


class WrongApp(Misconfigured):
    """The given name is no app, or its `penstock.toml` is wrong."""


class Unavailable(PenstockError):
    """The database cannot be reached; it may be unknown whether the last call took effect."""


class DiskFull(Unavailable):
    """The database's disk is full: nothing was written."""


class RolledBack(Unavailable):
    """The database rolled the transaction back because of others: nothing was written.

    `code` says why. The transaction may be run again, a transaction of the caller's own as a whole.
    """

    def __init__(self, message: str, *, code: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class JobFailed(PenstockError):
    """The job failed: the message is that of its last failure, and never quotes the payload."""

    def __init__(
        self, message: str, *, job_id: UUID, error_class: str | None, reason: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.job_id = job_id
        self.error_class = error_class
        self.reason = reason


class JobCancelled(PenstockError):
    """The job was cancelled, by somebody or by its handler: there is no result."""

    def __init__(self, message: str, *, job_id: UUID) -> None:
        super().__init__(message)
        self.message = message
        self.job_id = job_id


_BY_SQLSTATE: dict[str, type[Refused]] = {kind.sqlstate: kind for kind in Refused.__subclasses__()}


def refusal(sqlstate: str, message: str, detail: str | None, hint: str | None = None) -> Refused:
    """Return the exception for an SQL error: SQLSTATE gives its class, `detail` the rest."""
    members: dict[str, Any] = json.loads(detail) if detail else {}
    kind = _BY_SQLSTATE.get(sqlstate, Refused)
    error = kind(message, hint=hint, **{"code": "refused", **members})
    error.sqlstate = sqlstate
    return error
