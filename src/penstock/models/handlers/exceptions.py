"""Exceptions by which a handler decides its outcome, and the outcome of every other exception."""

from collections.abc import Sequence
from datetime import timedelta

from penstock.base.settings import duration
from penstock.engine.jobs.attempts import Cancelled, Error, Failed, Outcome, Snoozed
from penstock.engine.jobs.attempts import Retry as Retried
from penstock.errors import Invalid, PenstockError, words_of
from penstock.failures.classify import Extension, classify
from penstock.failures.outcome import charged, clean
from penstock.net.provider_errors import ProviderError

LONGEST_WAIT = timedelta(days=3650)
# Used if the app gives no message; customers read the message of the class instead.
_GAVE_UP = "the handler gave up"
_CANCELLED = "cancelled by its handler"


class Fail(Exception):
    """`raise Fail("why")`: the job fails at once, without further attempts.

    The message is for the customer: requests with an account key and browsers receive it, with
    known forms of keys removed. For every other exception they receive a sentence for its class, so
    do not quote an exception here: `raise Fail("The picture is too small") from error`. With
    `public=False` only operators see the message.
    """

    def __init__(
        self, why: object = _GAVE_UP, *, cls: str = "invalid_request", public: bool = True
    ) -> None:
        super().__init__(why)
        self.why = words_of(why)
        self.cls = cls
        self.public = public and why is not _GAVE_UP


class Retry(Exception):
    """`raise Retry(after="30s")`: the attempt fails and the job is retried.

    The next attempt comes after `after`, or after the queue's backoff. Only operators see the
    message, and customers see a sentence for the class; with `public=True` customers see the
    message, too.
    """

    def __init__(
        self,
        why: object = "the handler asked for another attempt",
        *,
        after: str | float | timedelta | None = None,
        cls: str = "provider_error",
        public: bool = False,
    ) -> None:
        super().__init__(why)
        self.why = words_of(why)
        self.after = None if after is None else _wait(after)
        self.cls = cls
        self.public = public


class Snooze(Exception):
    """`raise Snooze("5m")`: the job runs again after that time; this counts as no failure."""

    def __init__(self, after: str | float | timedelta) -> None:
        super().__init__(f"snoozed for {after}")
        self.after = _wait(after)


class Cancel(Exception):
    """`raise Cancel("why")`: the job finishes as cancelled.

    The message is for the customer, as with `Fail`.
    """

    def __init__(self, why: object = _CANCELLED, *, public: bool = True) -> None:
        super().__init__(why)
        self.why = words_of(why)
        self.public = public and why is not _CANCELLED


class LeaseLost(Exception):
    """The attempt no longer belongs to this worker: its results and reports are ignored."""


def _wait(after: str | float | timedelta) -> timedelta:
    wait = duration(after, field="after")
    if wait > LONGEST_WAIT:
        raise Invalid("after must be at most ten years", code="invalid_duration", field="after")
    return wait


def outcome_of(error: BaseException, more: Sequence[Extension] = ()) -> Outcome:
    """Return the outcome for a handler's exception; `more`: the app's own classification."""
    match error:
        case Fail():
            return Failed(Error(error.cls, clean(error.why), retryable=False, public=error.public))
        case Retry():
            return Retried(Error(error.cls, clean(error.why), public=error.public), error.after)
        case Snooze():
            return Snoozed(error.after)
        case Cancel():
            return Cancelled(
                Error("cancelled", clean(error.why), retryable=False, public=error.public)
            )
        case _:
            public = isinstance(error, ProviderError) and error.public
            return charged(classify(error, more=more), described(error), public=public)


def described(error: BaseException) -> str:
    """Describe an error by class and message, for people who view the job; never for a log."""
    words = words_of(error)
    if isinstance(error, ProviderError) and not error.public and error.provider_text:
        words = f"{words}: {error.provider_text}"
    if isinstance(error, PenstockError) and words:
        return clean(words)  # a whole sentence
    return clean(f"{type(error).__name__}: {words}" if words else type(error).__name__)
