"""Attempts: what a worker claimed, what it reports while it runs, and how each came out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from penstock.engine.encoding.encode import encode
from penstock.engine.statements import Statements, as_row
from penstock.engine.states import JobStatus


# Not frozen: then setting each field costs a call, and a claim makes hundreds of these.
@dataclass(slots=True, eq=False)
class Claimed:
    """A claimed job. (id, attempt) is the fence: every later write names both."""

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
    # Numbers: as datetimes, the three took an eighth of a worker's time for a job (2026-11).
    started_epoch: float
    timeout_seconds: float
    unmoved_seconds: float
    """How long the attempt may be without progress."""

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


class Bearing(NamedTuple):
    """What an outcome means for its queue's circuit; circuit.sql describes each effect."""

    effect: str
    """none, counts, opens, pauses or stops"""
    retry_after: timedelta | None = None
    """How long the provider asked callers to wait."""
    address: str | None = None
    """host:port of the call."""


NO_BEARING = (None, None, None)


@dataclass(frozen=True, slots=True)
class Error:
    """What went wrong: a class of errors (contract.md), and a sentence for people."""

    cls: str
    message: str
    retryable: bool = True
    public: bool = False
    """The message was written for the customer: keys of accounts see it."""
    frames: tuple[str, ...] = ()
    """Where the error was raised, `file:line in function`: kept with the attempt, for operators."""

    def as_json(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "class": self.cls,
            "message": self.message,
            "retryable": self.retryable,
        }
        if self.public:
            error["public"] = True
        if self.frames:
            error["frames"] = list(self.frames)
        return error


@dataclass(frozen=True, slots=True)
class Succeeded:
    result: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Failed for good: no attempts are left to the job, whatever its count."""

    error: Error
    bearing: Bearing | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """A failure after which the job may be tried again, after the queue's backoff or `after`."""

    error: Error
    after: timedelta | None = None
    provisional: bool = False
    """The provider may have caused it: it no longer counts if the circuit opens for that."""
    bearing: Bearing | None = None


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt took too long: a failure as Retry is, and shown as a time-out."""

    error: Error


@dataclass(frozen=True, slots=True)
class Stuck:
    """No progress for too long: counts against the limit of recoveries, not as a failure."""

    error: Error


@dataclass(frozen=True, slots=True)
class Deferred:
    """The provider failed: the job is tried again, uncounted. None: SQL chooses when."""

    error: Error
    after: timedelta | None = None
    bearing: Bearing | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked for a later attempt; nothing is counted."""

    after: timedelta


@dataclass(frozen=True, slots=True)
class Released:
    """Returned to the queue as it was: the worker is leaving."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    error: Error | None = None


Outcome = Succeeded | Failed | Retry | TimedOut | Stuck | Deferred | Snoozed | Released | Cancelled


class Columns(NamedTuple):
    """The row that finish_jobs takes for an outcome."""

    outcome: str
    result: Any = None
    error: dict[str, Any] | None = None
    delay: timedelta | None = None
    bearing: Bearing | None = None


_NAMES = {
    Succeeded: "succeeded",
    Failed: "failed",
    Retry: "retry",
    TimedOut: "timed_out",
    Stuck: "stuck",
    Deferred: "deferred",
    Snoozed: "snoozed",
    Released: "released",
    Cancelled: "cancelled",
}


def columns(outcome: Outcome) -> Columns:
    """The columns that finish_jobs takes for this outcome."""
    name = _NAMES[type(outcome)]
    if isinstance(outcome, Succeeded):
        return Columns(name, outcome.result)
    if getattr(outcome, "provisional", False):
        name = "provisional"
    error: Error | None = getattr(outcome, "error", None)
    return Columns(
        name,
        None,
        None if error is None else error.as_json(),
        getattr(outcome, "after", None),
        getattr(outcome, "bearing", None),
    )


class OutcomeRow(NamedTuple):
    """How one attempt came out, ready for the database: its JSON is text."""

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


def outcome_row(
    job: Claimed,
    outcome: Outcome,
    *,
    usage: dict[str, Any] | None = None,
    units: int | None = None,
    index: int = 0,
) -> OutcomeRow:
    """The row for finish_jobs. A result that is not JSON is refused, with the part's name."""
    name, result, error, delay, bearing = columns(outcome)
    return OutcomeRow(
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
    worker: int, rows: Sequence[OutcomeRow], *, wait: timedelta | None
) -> tuple[Any, ...]:
    """The arguments of finish_jobs. A column that no row uses is None, which costs nothing."""
    jobs, attempts, accounts, outcomes, results, errors, delays, usages, units, bearings = zip(
        *rows, strict=True
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
    column = list(values)
    return column if any(value is not None for value in column) else None


def bearing_columns(
    bearings: Sequence[Bearing | None],
) -> Sequence[list[Any] | None]:
    """Effects, waits and addresses, an element for each job; None if no job has a bearing."""
    if not any(bearings):
        return NO_BEARING
    return [
        list(column)
        for column in zip(*(bearing or NO_BEARING for bearing in bearings), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a report: `done`, `stale` (no longer ours), or `locked` (its account is)."""

    job_id: UUID
    verdict: str
    status: JobStatus | None


Report = tuple[UUID, int, str | None, str | None, str | None, int | None]
"""The latest report of an attempt: job, attempt, stage, label, progress (JSON text), units.

None: unchanged. A stage of "" means that there is none now.
"""


@dataclass(frozen=True, slots=True)
class Chunk:
    attempt: int
    seq: int
    data: Any


class Progress(Statements):
    async def report(self, worker: int, reports: Sequence[Report]) -> list[tuple[UUID, str, bool]]:
        """Write the latest reports of any number of attempts, in one transaction.

        Returns, for each: job, verdict, and whether the job is asked to stop.
        """
        jobs, attempts, stages, labels, progress, units = zip(*reports, strict=True)
        return await self._rows(
            as_row,
            "select job_id, verdict, cancel from penstock.report_progress($1, $2, $3, $4, $5,"
            " $6::text[]::jsonb[], $7)",
            *(worker, jobs, attempts, stages, labels, progress, _column(units)),
        )

    async def keep_step(
        self, worker: int, job_id: UUID, attempt: int, name: str, result: str
    ) -> str:
        """Keep a step's result (JSON text) for later attempts; return the verdict."""
        return await self._value(
            str,
            "select penstock.keep_step($1, $2, $3, $4, $5::text::jsonb)",
            *(worker, job_id, attempt, name, result),
        )

    async def read_steps(self, job_id: UUID) -> dict[str, Any]:
        """The steps that earlier attempts of the job kept, by name."""
        sql = "select name, result from penstock.read_steps($1)"
        return await self._pairs(sql, job_id)

    async def append_chunks(self, worker: int, chunks: Sequence[tuple[UUID, int, int, str]]) -> int:
        """Append (job, attempt, number, JSON text); return how many were added. Safe to repeat."""
        return await self._value(
            int,
            "select penstock.append_chunks($1, $2, $3, $4, $5::text[]::jsonb[])",
            *(worker, *zip(*chunks, strict=True)),
        )
