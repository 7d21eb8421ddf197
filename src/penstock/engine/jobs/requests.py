"""What a caller asks for, one job or many, and what cannot even be asked of the database."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from penstock.engine.encoding.encode import CREDITS_MAX, encode, encode_each, refuse_nul
from penstock.engine.options.submit import JOB
from penstock.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What a caller asks for; None leaves the choice to kind, plan and queue."""

    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    account: str | None = None
    dedupe_key: str | None = None
    topic: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    max_attempts: int | None = None
    timeout: timedelta | None = None
    expires: timedelta | None = None
    metadata: Mapping[str, Any] | None = None
    price: int | None = None
    webhook_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Many jobs, column by column: payloads and metadata as JSON text; None: none has it."""

    kinds: Sequence[str]
    payloads: Sequence[str]
    account: Sequence[str | None] | None = None
    dedupe_key: Sequence[str | None] | None = None
    topic: Sequence[str | None] | None = None
    priority: Sequence[int | None] | None = None
    run_at: Sequence[datetime | None] | None = None
    delay: Sequence[timedelta | None] | None = None
    max_attempts: Sequence[int | None] | None = None
    timeout: Sequence[timedelta | None] | None = None
    expires: Sequence[timedelta | None] | None = None
    metadata: Sequence[str | None] | None = None
    price: Sequence[int | None] | None = None
    webhook_url: Sequence[str | None] | None = None

    @classmethod
    def of(cls, jobs: Sequence[NewJob], encode: Callable[..., str] = encode) -> "Batch":
        """These, checked as far as it can be without the database.

        `encode`: how payloads become JSON.
        """
        for index, job in enumerate(jobs):
            refuse_odd(job, index)
        return cls(
            kinds=[job.kind for job in jobs],
            payloads=[
                encode(job.payload, "payload", index=index) for index, job in enumerate(jobs)
            ],
            metadata=encode_each(column(jobs, "metadata"), "metadata"),
            **{name: column(jobs, name) for name in _PLAIN},
        )


def submit_arguments(
    job: NewJob,
    encode: Callable[[Any, str], str],
    idempotency_key: str | None,
    scope: str,
    wake: str | None,
) -> tuple[Any, ...]:
    """As `submit_one` and `accept_job` take them, checked; `encode`: how its bodies become JSON."""
    refuse_nul(idempotency_key, "idempotency_key")
    refuse_odd(job)
    return (
        job.kind,
        encode(job.payload, "payload"),
        job.account,
        job.dedupe_key,
        job.topic,
        job.priority,
        job.run_at,
        job.delay,
        job.max_attempts,
        job.timeout,
        job.expires,
        None if job.metadata is None else encode(job.metadata, "metadata"),
        idempotency_key,
        scope,
        wake,
        job.price,
        job.webhook_url,
    )


def refuse_odd(job: NewJob, index: int = 0) -> None:
    """What would fail in the driver, before the database could name the field."""
    refuse_nul(job.kind, "kind", index=index)
    if any(value is not None for value in _options(job)):
        _refuse_odd_options(job, index)
    if type(job.payload) is not dict and not isinstance(job.payload, Mapping):
        raise Invalid(
            "payload must be a JSON object", code="invalid_payload", field="payload", index=index
        )


def _refuse_odd_options(job: NewJob, index: int) -> None:
    for name in ("account", "dedupe_key", "topic", "webhook_url"):
        refuse_nul(getattr(job, name), name, index=index)
    for name in ("priority", "max_attempts"):
        value = getattr(job, name)
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or abs(value) > _INT_MAX
        ):
            raise _odd(name, f"must be a whole number, not {value!r}", index)
    refuse_odd_price(job.price, index)
    for name in ("delay", "timeout", "expires"):
        if not isinstance(getattr(job, name), timedelta | None):
            raise _odd(f"{name}_seconds", "must be a timedelta", index)
    refuse_odd_moment(job.run_at, index)


def refuse_odd_moment(moment: Any, index: int = 0) -> None:
    if moment is None:
        return
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        # One without would mean another moment on each machine, and to each driver.
        raise _odd("run_at", "must be a datetime with a time zone", index)
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise _odd("run_at", "must be a moment within ten years", index) from None


def refuse_odd_price(price: Any, index: int = 0) -> None:
    if price is not None and (
        not isinstance(price, int) or isinstance(price, bool) or not 0 <= price <= CREDITS_MAX
    ):
        raise _odd("price", f"must be a whole number from 0 to {CREDITS_MAX}", index)


_INT_MAX = 2**31 - 1
# What a batch takes as it is.
_PLAIN = tuple(option.name for option in JOB if option.name != "metadata")
_options = attrgetter(*_PLAIN)


def _odd(field: str, what: str, index: int) -> Invalid:
    return Invalid(f"{field} {what}", code="invalid_job", field=field, index=index)


def column(jobs: Sequence[NewJob], name: str) -> list[Any] | None:
    """One field of all, or None where none has it: an absent array costs nothing."""
    values = [getattr(job, name) for job in jobs]
    return values if any(value is not None for value in values) else None
