"""What a failure costs its job: a verdict as the outcome that ends a start."""

from typing import assert_never

from penstock.engine.jobs.attempts import Bearing, Deferred, Error, Failed, Outcome, Retry
from penstock.failures.verdict import Charge, Circuit, Verdict
from penstock.security.redaction import redact, without_secrets

MESSAGE_MAX = 2_000


def charged(verdict: Verdict, message: str, *, public: bool = False) -> Outcome:
    """What a failure of this sort costs the job, and what it means for the circuit of its queue.

    `public`: the message was written for customers.
    """
    bearing = None
    if verdict.circuit is not Circuit.NONE or verdict.charge is Charge.FREE:
        bearing = Bearing(verdict.circuit.value, verdict.after, verdict.address)
    error = Error(verdict.cls, message, verdict.charge is not Charge.FINAL, public)
    match verdict.charge:
        case Charge.FINAL:
            return Failed(error, bearing)
        case Charge.FULL | Charge.PROVISIONAL:
            return Retry(error, verdict.after, verdict.charge is Charge.PROVISIONAL, bearing)
        case Charge.FREE:
            # When it is tried again is for SQL to say, which knows whether its queue stands still.
            return Deferred(error, bearing=bearing)
        case _:
            assert_never(verdict.charge)


def clean(message: str) -> str:
    """What Postgres can keep, at a length that people read, and without keys and passwords.

    Of addresses in it, only what is no secret: libraries quote those that they called.
    """
    text = redact(without_secrets(message.replace("\x00", "\N{REPLACEMENT CHARACTER}")))
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MESSAGE_MAX else text[: MESSAGE_MAX - 1] + "…"
