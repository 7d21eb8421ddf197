"""What a failure costs its job: the verdict as the outcome that settles the attempt."""

from typing import assert_never

from penstock.engine.jobs.attempts import Bearing, Deferred, Error, Failed, Outcome, Retry
from penstock.failures.verdict import Charge, Circuit, Verdict
from penstock.security.redaction import redact, without_secrets

MESSAGE_MAX = 2_000


def charged(verdict: Verdict, message: str, *, public: bool = False) -> Outcome:
    """Return the outcome of a failure, with its bearing on the circuit of the queue.

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
            # SQL decides when to try again: it knows whether the queue is stopped.
            return Deferred(error, bearing=bearing)
        case _:
            assert_never(verdict.charge)


def clean(message: str) -> str:
    """Make a message storable in Postgres and short enough, without keys and passwords.

    Secret parts of addresses are removed, too: libraries quote the addresses that they called.
    """
    text = redact(without_secrets(message.replace("\x00", "\N{REPLACEMENT CHARACTER}")))
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MESSAGE_MAX else text[: MESSAGE_MAX - 1] + "…"
