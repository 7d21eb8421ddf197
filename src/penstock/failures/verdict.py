"""What a failure means for the job, its queue and its people: one verdict per class of error."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType


class Fault(StrEnum):
    """Whose it is."""

    JOB = "job"
    PROVIDER = "provider"
    CREDENTIAL = "credential"
    CONFIG = "config"
    WORKER = "worker"
    UNKNOWN = "unknown"


class Charge(StrEnum):
    """What it costs the job."""

    FINAL = "final"  # fails at once, no more attempts
    FULL = "full"  # an attempt
    PROVISIONAL = "provisional"  # an attempt, given back when the circuit opens within a minute
    FREE = "free"  # a deferral: costs nothing, never ends a job


class Circuit(StrEnum):
    """What it does to the queue."""

    NONE = "none"
    COUNTS = "counts"  # three in a row from two accounts or jobs open the circuit
    OPENS = "opens"  # at the second in a row; later where the provider refused calls before
    PAUSES = "pauses"  # the queue waits as long as the provider asked for
    STOPS = "stops"  # paused, and the operator is told; config after two different jobs


@dataclass(frozen=True, slots=True)
class Verdict:
    cls: str
    charge: Charge
    circuit: Circuit
    fault: Fault
    after: timedelta | None = None  # asked for by the provider, or the class's own; None: backoff
    address: str | None = None  # "host:port" that was called; never userinfo or path
    status: int | None = None  # of HTTP
    code: str | None = None  # the provider's own word


def _wait(seconds: int) -> timedelta:
    return timedelta(seconds=seconds)


# What is free has a wait of its own: the queue's backoff is meant for failures. Where the queue
# stands still meanwhile (circuit, pause), the wait is short, so that work goes on once it moves.
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
    # The same text into the same window is cut again: another attempt would not help.
    Verdict("input_truncated", Charge.FINAL, Circuit.NONE, Fault.JOB),
    Verdict("refused", Charge.FINAL, Circuit.NONE, Fault.JOB),
    Verdict("invalid_request", Charge.FINAL, Circuit.NONE, Fault.JOB),
    Verdict("bad_output", Charge.FULL, Circuit.NONE, Fault.UNKNOWN),
    Verdict("interrupted", Charge.PROVISIONAL, Circuit.COUNTS, Fault.PROVIDER),
    Verdict("provider_error", Charge.PROVISIONAL, Circuit.COUNTS, Fault.PROVIDER),
    Verdict("no_callback", Charge.FULL, Circuit.COUNTS, Fault.PROVIDER),
    # Lost workers are the database's affair (recovery). What gets here is a handler's own process
    # that died: free of charge, one that always runs out of memory would never end.
    Verdict("worker_lost", Charge.FULL, Circuit.NONE, Fault.WORKER),
    Verdict("bug", Charge.FULL, Circuit.NONE, Fault.UNKNOWN),
    Verdict("cancelled", Charge.FINAL, Circuit.NONE, Fault.JOB),
    Verdict("expired", Charge.FINAL, Circuit.NONE, Fault.JOB),
)

CLASSES: Mapping[str, Verdict] = MappingProxyType({verdict.cls: verdict for verdict in _VERDICTS})
