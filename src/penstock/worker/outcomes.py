"""What a handler raises to say how its start ends, and what becomes of anything else it raises."""

import traceback
from collections.abc import Sequence
from datetime import timedelta
from typing import assert_never

from penstock.engine.outcomes import (
    Bearing,
    Cancelled,
    Deferred,
    Error,
    Failed,
    Outcome,
    Snoozed,
)
from penstock.engine.outcomes import Retry as Retried
from penstock.errors import Invalid, PenstockError
from penstock.providers.addresses import without_secrets
from penstock.providers.classify import Extension, classify
from penstock.providers.verdict import Charge, Circuit, Verdict
from penstock.settings import duration

MESSAGE_MAX = 2_000
LONGEST_WAIT = timedelta(days=3650)


class Fail(Exception):
    """`raise Fail("why")`: it will never work; no more attempts."""

    def __init__(
        self, why: object = "the handler gave up", *, cls: str = "invalid_request"
    ) -> None:
        super().__init__(why)
        self.why = words_of(why)
        self.cls = cls


class Retry(Exception):
    """`raise Retry(after="30s")`: a failure; again after that, or after the queue's backoff."""

    def __init__(
        self,
        why: object = "the handler asked for another attempt",
        *,
        after: str | float | timedelta | None = None,
        cls: str = "provider_error",
    ) -> None:
        super().__init__(why)
        self.why = words_of(why)
        self.after = None if after is None else _wait(after)
        self.cls = cls


class Snooze(Exception):
    """`raise Snooze("5m")`: later; costs no attempt."""

    def __init__(self, after: str | float | timedelta) -> None:
        super().__init__(f"snoozed for {after}")
        self.after = _wait(after)


class Cancel(Exception):
    """`raise Cancel("why")`: the job ends as cancelled."""

    def __init__(self, why: object = "cancelled by its handler") -> None:
        super().__init__(why)
        self.why = words_of(why)


class LeaseLost(Exception):
    """The start is no longer the worker's: whatever it does now does not count."""


def _wait(after: str | float | timedelta) -> timedelta:
    wait = duration(after, field="after")
    if wait > LONGEST_WAIT:
        raise Invalid("after must be at most ten years", code="invalid_duration", field="after")
    return wait


def outcome_of(error: BaseException, more: Sequence[Extension] = ()) -> Outcome:
    """How a start ends whose handler raised this; `more`: what the app knows of its errors."""
    match error:
        case Fail():
            return Failed(Error(error.cls, clean(error.why), retryable=False))
        case Retry():
            return Retried(Error(error.cls, clean(error.why)), error.after)
        case Snooze():
            return Snoozed(error.after)
        case Cancel():
            return Cancelled(Error("cancelled", clean(error.why), retryable=False))
        case _:
            return charged(classify(error, more=more), described(error))


def charged(verdict: Verdict, message: str) -> Outcome:
    """What a failure of this sort costs the job, and tells its queue."""
    bearing = Bearing(verdict.circuit.value, verdict.after, verdict.address)
    free = verdict.charge is Charge.FREE
    told = None if verdict.circuit is Circuit.NONE and not free else bearing
    error = Error(verdict.cls, message, verdict.charge is not Charge.FINAL, told)
    match verdict.charge:
        case Charge.FINAL:
            return Failed(error)
        case Charge.FULL:
            return Retried(error, verdict.after)
        case Charge.PROVISIONAL:
            return Retried(error, verdict.after, provisional=True)
        case Charge.FREE:
            # When it is tried again is for SQL to say, which knows whether its queue stands still.
            return Deferred(error, verdict.after if verdict.cls == "overloaded" else None)
        case _:
            assert_never(verdict.charge)


def described(error: BaseException) -> str:
    """Class and words, for people who look at the job; never for a log."""
    words = words_of(error)
    if isinstance(error, PenstockError) and words:
        return clean(words)  # a whole sentence
    return clean(f"{type(error).__name__}: {words}" if words else type(error).__name__)


def words_of(value: object) -> str:
    """What it says of itself; an exception's own words may fail, and must not take ours along."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # whatever it is
        return type(value).__name__


def clean(message: str) -> str:
    """What Postgres can keep, at a length that people read.

    Of addresses in it, only what is no secret: libraries quote those that they called.
    """
    text = without_secrets(message.replace("\x00", "\N{REPLACEMENT CHARACTER}"))
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MESSAGE_MAX else text[: MESSAGE_MAX - 1] + "…"


def whereabouts(error: BaseException) -> str:
    """Class and place of an exception, for logs: its words may quote a payload."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
    # One that was raised in a process of its own brings both along.
    name = getattr(error, "class_name", type(error).__name__)
    place = getattr(error, "where", place)
    return f"{name} at {place}" if place else name
