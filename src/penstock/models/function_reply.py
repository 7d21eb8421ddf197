"""A function's report about a job: the reply to a waiting call, or an item of a callback."""

from dataclasses import replace
from typing import Any, NamedTuple

from penstock.engine.encoding.encode import CREDITS_MAX
from penstock.failures.verdict import CLASSES, Charge, Verdict

STATUSES = ("succeeded", "failed", "progress")
MESSAGE_MAX = 1_000
# Classes that only Penstock can know.
_OURS = ("cancelled", "expired", "worker_lost", "no_callback")
REPORTABLE_CLASSES = tuple(name for name in CLASSES if name not in _OURS)
"""The classes of error that a function may name."""


class Odd(Exception):  # noqa: N818
    """The report is invalid. The message says why; it completes a sentence about the function."""


def read_units(value: Any) -> int | None:
    """Return how many units were delivered. A null member counts as missing."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is not None and (type(value) is not int or not 0 <= value <= CREDITS_MAX):
        raise Odd(f"units that are not 0 to {CREDITS_MAX}, and whole")
    return value


class Failure(NamedTuple):
    """A failure that a function reports: the verdict, and the function's message if it sent one."""

    verdict: Verdict
    message: str | None
    public: bool
    """Whether customers may see the message."""


def read_failure(error: Any, *, lenient: bool = False) -> Failure:
    """Read the failure in a reply.

    `lenient`: an unknown class counts as provider_error instead of being refused.
    """
    fields = error if isinstance(error, dict) else {}
    cls = fields.get("class")
    if cls is None or (lenient and cls not in REPORTABLE_CLASSES):
        cls = "provider_error"
    if cls not in REPORTABLE_CLASSES:
        raise Odd(f"an error.class that is none of {', '.join(REPORTABLE_CLASSES)}")
    verdict = CLASSES[cls]
    match fields.get("retryable"):
        case False:
            verdict = replace(verdict, charge=Charge.FINAL)
        case True if verdict.charge is Charge.FINAL:
            verdict = replace(verdict, charge=Charge.FULL)
        case _:
            pass
    message = fields.get("message")
    if not isinstance(message, str) or not message.strip():
        return Failure(verdict, None, public=False)
    return Failure(verdict, message[:MESSAGE_MAX], public=fields.get("public") is True)
