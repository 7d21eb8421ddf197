"""How a start ended, as a value. One match turns it into the columns that finish_jobs takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, assert_never


class Bearing(NamedTuple):
    """What an outcome means for its queue's circuit; circuit.sql says what each effect does."""

    effect: str
    """none, counts, opens, pauses or stops"""
    retry_after: timedelta | None = None
    """How long the provider asked to wait."""
    address: str | None = None
    """host:port that was called."""


NO_BEARING = (None, None, None)


@dataclass(frozen=True, slots=True)
class Error:
    """What went wrong: a class of contract.md, and a sentence for people."""

    cls: str
    message: str
    retryable: bool = True
    public: bool = False
    """The message was written for the customer: keys of accounts see it."""
    frames: tuple[str, ...] = ()
    """Where it was raised, `file:line in function`: kept with the attempt, for operators."""

    def as_json(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "class": self.cls,
            "message": self.message,
            "retryable": self.retryable,
        }
        if self.public:
            error["public"] = True
        if self.frames:
            error["frames"] = list(self.frames)
        return error


@dataclass(frozen=True, slots=True)
class Succeeded:
    result: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """For good: no attempts are left to it, whatever the count says."""

    error: Error
    bearing: Bearing | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """A failure that may be tried again, after the queue's backoff or `after`."""

    error: Error
    after: timedelta | None = None
    provisional: bool = False
    """It may have been the provider's: given back when the circuit opens for that."""
    bearing: Bearing | None = None


@dataclass(frozen=True, slots=True)
class TimedOut:
    """Over its time: a failure as Retry is, and shown as what it was."""

    error: Error


@dataclass(frozen=True, slots=True)
class Stuck:
    """No progress for too long: charged to the budget of recoveries, not to the attempts."""

    error: Error


@dataclass(frozen=True, slots=True)
class Deferred:
    """The provider's fault: tried again, and no attempt is charged. None: when SQL thinks best."""

    error: Error
    after: timedelta | None = None
    bearing: Bearing | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked for later; costs nothing."""

    after: timedelta


@dataclass(frozen=True, slots=True)
class Released:
    """Given back as it was: the worker is leaving."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    error: Error | None = None


Outcome = Succeeded | Failed | Retry | TimedOut | Stuck | Deferred | Snoozed | Released | Cancelled


class Columns(NamedTuple):
    """The row that finish_jobs takes for an outcome."""

    outcome: str
    result: Any = None
    error: dict[str, Any] | None = None
    delay: timedelta | None = None
    bearing: Bearing | None = None


def columns(outcome: Outcome) -> Columns:
    """The row that finish_jobs takes for it."""
    match outcome:
        case Succeeded(result):
            return Columns("succeeded", result)
        case Failed(error, bearing):
            return Columns("failed", None, error.as_json(), None, bearing)
        case Retry(error, after, provisional, bearing):
            name = "provisional" if provisional else "retry"
            return Columns(name, None, error.as_json(), after, bearing)
        case TimedOut(error):
            return Columns("timed_out", None, error.as_json())
        case Stuck(error):
            return Columns("stuck", None, error.as_json())
        case Deferred(error, after, bearing):
            return Columns("deferred", None, error.as_json(), after, bearing)
        case Snoozed(after):
            return Columns("snoozed", delay=after)
        case Released():
            return Columns("released")
        case Cancelled(error):
            return Columns("cancelled", None, error.as_json() if error else None)
        case _:
            assert_never(outcome)


def bearing_columns(
    bearings: Sequence[Bearing | None],
) -> Sequence[list[Any] | None]:
    """Effects, waits and addresses, an element for each job; None where no job has a bearing."""
    if not any(bearings):
        return NO_BEARING
    return [list(column) for column in zip(*(one or NO_BEARING for one in bearings), strict=True)]
