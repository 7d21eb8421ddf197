"""What a failure means for the job, its queue and its operators: one verdict per error class."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType


class Fault(StrEnum):
    """Who or what caused the failure."""

    JOB = "job"
    PROVIDER = "provider"
    CREDENTIAL = "credential"
    CONFIG = "config"
    WORKER = "worker"
    UNKNOWN = "unknown"


class Charge(StrEnum):
    """What the failure costs the job."""

    FINAL = "final"  # the job fails at once, without more attempts
    FULL = "full"  # counts against max_attempts
    PROVISIONAL = "provisional"  # counts, unless the circuit opens within a minute
    FREE = "free"  # a deferral: does not count, and never fails a job


class Circuit(StrEnum):
    """What the failure does to the queue."""

    NONE = "none"
    COUNTS = "counts"  # three in a row from two accounts or jobs open the circuit
    OPENS = "opens"  # at the second in a row; later if the provider refused calls before
    PAUSES = "pauses"  # the queue waits as long as the provider requested
    STOPS = "stops"  # paused, and the operator is notified; config after two different jobs


@dataclass(frozen=True, slots=True)
class Verdict:
    cls: str
    charge: Charge
    circuit: Circuit
    fault: Fault
    after: timedelta | None = None  # requested by the provider, or the class's own; None: backoff
    address: str | None = None  # the called "host:port"; never userinfo or path
    status: int | None = None  # the HTTP status
    code: str | None = None  # the provider's error code


def _wait(seconds: int) -> timedelta:
    return timedelta(seconds=seconds)


# Free deferrals have their own wait: the queue's backoff is meant for failures. If the queue is
# stopped during the wait (circuit, pause), the wait is short, so that jobs start soon afterwards.
_VERDICTS = (
    Verdict("timeout", Charge.FULL, Circuit.NONE, Fault.UNKNOWN),
    Verdict("stalled", Charge.PROVISIONAL, Circuit.COUNTS, Fault.PROVIDER),
    Verdict("rate_limited", Charge.FREE, Circuit.PAUSES, Fault.PROVIDER, after=_wait(10)),
    Verdict("overloaded", Charge.FREE, Circuit.OPENS, Fault.PROVIDER, after=_wait(1)),
    Verdict("unavailable", Charge.FREE, Circuit.OPENS, Fault.PROVIDER, after=_wait(1)),
    Verdict("quota", Charge.FREE, Circuit.STOPS, Fault.CREDENTIAL, after=_wait(30)),
    Verdict("auth", Charge.FREE, Circuit.STOPS, Fault.CREDENTIAL, after=_wait(30)),
    Verdict("config", Charge.FREE, Circuit.STOPS, Fault.CONFIG, after=_wait(60)),
    Verdict("input_too_long", Charge.FINAL, Circuit.NONE, Fault.JOB),
    # The same text is cut to the same window again: another attempt would not help.
    Verdict("input_truncated", Charge.FINAL, Circuit.NONE, Fault.JOB),
    Verdict("refused", Charge.FINAL, Circuit.NONE, Fault.JOB),
    Verdict("invalid_request", Charge.FINAL, Circuit.NONE, Fault.JOB),
    Verdict("bad_output", Charge.FULL, Circuit.NONE, Fault.UNKNOWN),
    Verdict("interrupted", Charge.PROVISIONAL, Circuit.COUNTS, Fault.PROVIDER),
    Verdict("provider_error", Charge.PROVISIONAL, Circuit.COUNTS, Fault.PROVIDER),
    Verdict("no_callback", Charge.FULL, Circuit.COUNTS, Fault.PROVIDER),
    # The database handles lost workers (recovery). This is a handler's own process that died. If it
    # did not count, a job that always runs out of memory would be retried for ever.
    Verdict("worker_lost", Charge.FULL, Circuit.NONE, Fault.WORKER),
    Verdict("bug", Charge.FULL, Circuit.NONE, Fault.UNKNOWN),
    Verdict("cancelled", Charge.FINAL, Circuit.NONE, Fault.JOB),
    Verdict("expired", Charge.FINAL, Circuit.NONE, Fault.JOB),
)

CLASSES: Mapping[str, Verdict] = MappingProxyType({verdict.cls: verdict for verdict in _VERDICTS})
