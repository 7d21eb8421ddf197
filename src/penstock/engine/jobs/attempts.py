"""Starts: what a worker takes, and how it tells that one ended. As values, and as columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from penstock.engine.encoding.encode import encode
from penstock.engine.jobs.outcomes import Bearing, Outcome, bearing_columns, columns


# Not frozen: that would make each of its fields cost a call, and a claim makes hundreds of them.
@dataclass(slots=True, eq=False)
class Claimed:
    """A started job. (id, attempt) is the fence: every later write names both."""

    id: UUID
    attempt: int
    kind: str
    account: str | None
    slot_account: int | None
    topic: str | None
    batch_id: UUID | None
    payload: dict[str, Any]
    metadata: dict[str, Any] | None
    failures: int
    losses: int
    max_attempts: int
    # Numbers: as moments, the three of them took an eighth of a worker's time for a job (2026-11).
    started_epoch: float
    timeout_seconds: float
    unmoved_seconds: float
    """How long it may be without progress."""

    @property
    def timeout_at(self) -> datetime:
        return datetime.fromtimestamp(self.started_epoch + self.timeout_seconds, UTC)


CLAIM = (
    "select id, attempt, kind, account, slot_account, topic, batch_id, payload, metadata,"
    " failures, losses, max_attempts, date_part('epoch', started_at) as started_epoch,"
    " date_part('epoch', timeout_at - started_at) as timeout_seconds,"
    " date_part('epoch', deadline_at - started_at) as unmoved_seconds"
    " from penstock.claim_jobs($1, $2, $3, $4, $5)"
)


class Told(NamedTuple):
    """How one start ended, ready for the database: JSON is text already."""

    job_id: UUID
    attempt: int
    slot_account: int | None
    outcome: str
    result: str | None = None
    error: str | None = None
    delay: timedelta | None = None
    usage: str | None = None
    units: int | None = None
    bearing: Bearing | None = None


def tell(
    job: Claimed,
    outcome: Outcome,
    *,
    usage: dict[str, Any] | None = None,
    units: int | None = None,
    index: int = 0,
) -> Told:
    """The row for finish_jobs. A result that is not JSON is refused, by name."""
    name, result, error, delay, bearing = columns(outcome)
    return Told(
        job.id,
        job.attempt,
        job.slot_account,
        name,
        None if result is None else encode(result, "result", index=index),
        None if error is None else encode(error, "error", index=index),
        delay,
        None if usage is None else encode(usage, "usage", index=index),
        units,
        bearing,
    )


FINISH = (
    "select job_id, verdict, status::text from penstock.finish_jobs($1, $2, $3, $4,"
    " $5::text[]::jsonb[], $6::text[]::jsonb[], $7, $8, $9::text[]::jsonb[], $10, $11,"
    " $12, $13, $14)"
)


def finish_arguments(
    worker: int, told: Sequence[Told], *, wait: timedelta | None
) -> tuple[Any, ...]:
    """What FINISH takes. A column that nobody uses is absent, which costs nothing."""
    jobs, attempts, accounts, outcomes, results, errors, delays, usages, units, bearings = zip(
        *told, strict=True
    )
    return (
        worker,
        jobs,
        attempts,
        outcomes,
        _column(results),
        _column(errors),
        _column(delays),
        list({account for account in accounts if account is not None}),
        _column(usages),
        _column(units),
        wait,
        *bearing_columns(bearings),
    )


def _column(values: Iterable[Any]) -> list[Any] | None:
    found = list(values)
    return found if any(value is not None for value in found) else None
