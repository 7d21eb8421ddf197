"""How a start ended, as a value. One match turns it into the columns that finish_jobs takes."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_never


@dataclass(frozen=True, slots=True)
class Bearing:
    """How an end bears on the circuit of its queue; circuit.sql says what each effect does."""

    effect: str
    """none, counts, opens, pauses or stops"""
    after: timedelta | None = None
    """How long the provider asked to wait."""
    address: str | None = None
    """host:port that was called."""

    def as_json(self) -> dict[str, Any]:
        seconds = None if self.after is None else self.after.total_seconds()
        return {"effect": self.effect, "after": seconds, "address": self.address}


@dataclass(frozen=True, slots=True)
class Error:
    """What went wrong: a class of contract.md, and a sentence for people."""

    cls: str
    message: str
    retryable: bool = True
    circuit: Bearing | None = None
    """Told to the database, and not kept with the job."""
    public: bool = False
    """The message was written for the customer: keys of accounts see it."""
    frames: tuple[str, ...] = ()
    """Where it was raised, `file:line in function`: kept with the attempt, for operators."""

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "class": self.cls,
            "message": self.message,
            "retryable": self.retryable,
        }
        if self.circuit is not None:
            told["circuit"] = self.circuit.as_json()
        if self.public:
            told["public"] = True
        if self.frames:
            told["frames"] = list(self.frames)
        return told


@dataclass(frozen=True, slots=True)
class Succeeded:
    result: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """For good: no attempts are left to it, whatever the count says."""

    error: Error


@dataclass(frozen=True, slots=True)
class Retry:
    """A failure that may be tried again, after the queue's backoff or `after`."""

    error: Error
    after: timedelta | None = None
    provisional: bool = False
    """It may have been the provider's: given back when the circuit opens for that."""


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

# outcome, result, error, delay
Columns = tuple[str, Any, dict[str, Any] | None, timedelta | None]


def columns(outcome: Outcome) -> Columns:
    """The row that finish_jobs takes for it."""
    match outcome:
        case Succeeded(result):
            return "succeeded", result, None, None
        case Failed(error):
            return "failed", None, error.as_json(), None
        case Retry(error, after, provisional):
            return "provisional" if provisional else "retry", None, error.as_json(), after
        case TimedOut(error):
            return "timed_out", None, error.as_json(), None
        case Stuck(error):
            return "stuck", None, error.as_json(), None
        case Deferred(error, after):
            return "deferred", None, error.as_json(), after
        case Snoozed(after):
            return "snoozed", None, None, after
        case Released():
            return "released", None, None, None
        case Cancelled(error):
            return "cancelled", None, error.as_json() if error else None, None
        case _:
            assert_never(outcome)
