"""Jobs: the options of a submit, and a method for each SQL function of the lifecycle."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from penstock.db.adapters.caller_connection import Fetch
from penstock.engine.encoding.encode import CREDITS_MAX, encode, encode_each, refuse_nul
from penstock.engine.jobs.attempts import (
    CLAIM,
    FINISH,
    Claimed,
    Outcome,
    OutcomeRow,
    Verdict,
    finish_arguments,
    outcome_row,
)
from penstock.engine.jobs.info import JobInfo
from penstock.engine.statements import Answer, Statements
from penstock.engine.states import STATUSES, JobStatus
from penstock.errors import Invalid, Misconfigured

_INT_MAX = 2**31 - 1
# The options of a job. submit_one and submit_many take the first ones in this order.
_FIRST = {
    "account": "text",
    "dedupe_key": "text",
    "topic": "text",
    "priority": "integer",
    "run_at": "timestamptz",
    "delay": "interval",
    "max_attempts": "integer",
    "timeout": "interval",
    "expires": "interval",
}
_TYPES = {**_FIRST, "price": "bigint", "webhook_url": "text"}
_first, _options = attrgetter(*_FIRST), attrgetter(*_TYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What a caller submits; None leaves the choice to kind, plan and queue."""

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
    """Many jobs, column by column: payloads and metadata as JSON text; None: no job has any."""

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
        """These jobs, checked as far as it is possible without the database.

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
            **{name: column(jobs, name) for name in _TYPES},
        )


def submit_arguments(
    job: NewJob,
    encode: Callable[[Any, str], str],
    idempotency_key: str | None,
    scope: str,
    wake: str | None,
) -> tuple[Any, ...]:
    """The arguments of `submit_one` and `accept_job`, checked; `encode`: how bodies become JSON."""
    refuse_nul(idempotency_key, "idempotency_key")
    refuse_odd(job)
    metadata = None if job.metadata is None else encode(job.metadata, "metadata")
    first = (job.kind, encode(job.payload, "payload"), *_first(job), metadata)
    return (*first, idempotency_key, scope, wake, job.price, job.webhook_url)


def refuse_odd(job: NewJob, index: int = 0) -> None:
    """Refuse what would fail in the driver, before the database could name the field."""
    refuse_nul(job.kind, "kind", index=index)
    for name, value in zip(_TYPES, _options(job), strict=True):
        if value is not None:
            _refuse_odd_option(name, value, index)
    if type(job.payload) is not dict and not isinstance(job.payload, Mapping):
        raise Invalid(
            "payload must be a JSON object", code="invalid_payload", field="payload", index=index
        )


def _refuse_odd_option(name: str, value: Any, index: int) -> None:
    match _TYPES[name]:
        case "text":
            refuse_nul(value, name, index=index)
        case "integer" if not _is_whole(value, -_INT_MAX, _INT_MAX):
            raise _odd(name, f"must be a whole number, not {value!r}", index)
        case "bigint" if not _is_whole(value, 0, CREDITS_MAX):
            raise _odd(name, f"must be a whole number from 0 to {CREDITS_MAX}", index)
        case "interval" if not isinstance(value, timedelta):
            raise _odd(f"{name}_seconds", "must be a timedelta", index)
        case "timestamptz":
            refuse_odd_moment(value, index)


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def refuse_odd_price(price: Any, index: int = 0) -> None:
    if price is not None:
        _refuse_odd_option("price", price, index)


def refuse_odd_moment(moment: Any, index: int = 0) -> None:
    if moment is None:
        return
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        # Without a zone it would be another time on each machine, and for each driver.
        raise _odd("run_at", "must be a datetime with a time zone", index)
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise _odd("run_at", "must be within ten years from now", index) from None


def _odd(field: str, what: str, index: int) -> Invalid:
    return Invalid(f"{field} {what}", code="invalid_job", field=field, index=index)


def column(jobs: Sequence[NewJob], name: str) -> list[Any] | None:
    """One field of all jobs, or None if no job has it: an absent array costs nothing."""
    values = [getattr(job, name) for job in jobs]
    return values if any(value is not None for value in values) else None


class Submitted(NamedTuple):
    """An accepted job: its id; if `deduplicated`, the id of its live twin."""

    id: UUID
    status: JobStatus
    deduplicated: bool
    replayed: bool = False
    position: int | None = None
    """1: next to start. None for one of many, if it does not wait, or if counting takes long."""
    eta_seconds: float | None = None
    """The expected time until it starts."""
    balance: int | None = None
    """The account's credits after the submit; None for a job without an account."""
    batch: UUID | None = None
    ids: tuple[UUID, ...] = ()
    """For a kind with `split`: all jobs that the request became, in order; `id` is the first."""


class Jobs(Statements):
    def __init__(self, fetch: Fetch, *, commits: bool = False) -> None:
        """`commits`: statements run by `fetch` are in no transaction, and may commit."""
        super().__init__(fetch)
        self._commits = commits

    async def submit(
        self,
        job: NewJob,
        *,
        idempotency_key: str | None = None,
        scope: str = "",
        wake: str | None = None,
        conn: Any = None,
    ) -> Submitted:
        """Accept one job, in the caller's transaction when `conn` is given.

        A repeated idempotency key returns the first submit's job, `replayed`. `wake`: the queue
        whose idle workers the commit wakes; all such commits wait for one lock. If possible,
        workers are woken before the job is on disk, and the call returns when it is. After an error
        of the connection the job may exist, as it may with any commit.
        """
        arguments = submit_arguments(job, encode, idempotency_key, scope, wake)
        row = await self._submit(arguments, conn, early=wake is not None and conn is None)
        return Submitted(
            *(_uuid(row["id"]), STATUSES[row["status"]], row["deduplicated"], row["replayed"]),
            *(row["queue_position"], row["eta_seconds"], row["balance"], _uuid(row["batch"])),
            tuple(UUID(job_id) for job_id in row["ids"] or ()),
        )

    async def _submit(self, arguments: Sequence[Any], conn: Any, *, early: bool) -> Any:
        if early and self._commits:
            try:
                [row] = await self._fetch(_SUBMIT_WAKING, arguments)
            except Misconfigured as error:
                if not isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError):
                    raise
                # The rights were granted before this procedure existed. Nothing was accepted, and
                # the other way needs no more rights than those.
                self._commits = False
            else:
                return row
        [row] = await self._on(conn)(_SUBMIT, arguments)
        return row

    async def submit_many(
        self, jobs: Sequence[NewJob], *, batched: bool = False, conn: Any = None
    ) -> list[Submitted]:
        """Accept any number of jobs, all or none, in order; `batched`: as one batch."""
        return await self.submit_batch(Batch.of(jobs), batched=batched, conn=conn)

    async def submit_batch(
        self, batch: Batch, *, batched: bool = False, own: bool = False, conn: Any = None
    ) -> list[Submitted]:
        """The same for checked columns; `own`: submitted with a key of the jobs' account."""
        kinds = set(batch.kinds)
        # A few arrays instead of a row for each job: a tenth of the time for a large batch.
        [row] = await self._on(conn)(
            _SUBMIT_MANY,
            (
                # Most batches have one kind: a million copies of its name need not be sent.
                batch.kinds if len(kinds) > 1 else None,
                batch.payloads,
                *_first(batch),
                *(batch.metadata, batch.price, batched, batch.webhook_url),
                *(next(iter(kinds), None), len(batch.payloads), own),
            ),
        )
        return [
            Submitted(job_id, STATUSES[status], twin, balance=balance, batch=batch_id)
            for job_id, batch_id, status, twin, balance in zip(
                map(_uuid, row["ids"]),
                map(_uuid, row["batches"]),
                *(row[name] for name in ("statuses", "deduplicated", "balances")),
                strict=True,
            )
        ]

    async def claim(
        self, worker: int, queue: str, limit: int, *, job: UUID | None = None
    ) -> list[Claimed]:
        """Start up to `limit` due jobs for a worker that has as many free slots.

        A first try skips locked rows. If it finds no job although open lanes have waiting jobs
        (many submitters on one account can cause that), a second try waits for a moment. With
        `job`, start only that job, if it may start now.
        """
        for wait in (False, True):
            rows = await self._fetch(CLAIM, (worker, queue, limit, wait, job))
            if rows:
                return [Claimed(*row.values()) for row in rows]
        return []

    async def finish(
        self, worker: int, outcomes: Sequence[tuple[Claimed, Outcome]], *, conn: Any = None
    ) -> list[Verdict]:
        """Write the outcomes of attempts, any number in one transaction. Safe to repeat.

        `stale` means that the job belongs to another attempt, or has finished: discard the outcome.
        `locked` means that an app's open transaction has locked the job's account: report it again.
        """
        rows = [
            outcome_row(job, outcome, index=index) for index, (job, outcome) in enumerate(outcomes)
        ]
        return await self.finish_rows(worker, rows, conn=conn) if rows else []

    async def finish_rows(
        self,
        worker: int,
        rows: Sequence[OutcomeRow],
        *,
        conn: Any = None,
        all_done: bool = True,
        wait: timedelta | None = None,
    ) -> list[Verdict]:
        """The same for prepared rows. Without `all_done`, outcomes that took effect are left out.

        `wait`: how long to wait for each locked account before the answer is `locked`.
        """
        sql = FINISH if all_done else f"{FINISH} where verdict <> 'done'"
        verdicts = await self._on(conn)(sql, finish_arguments(worker, rows, wait=wait))
        return [
            Verdict(row["job_id"], row["verdict"], STATUSES.get(row["status"])) for row in verdicts
        ]

    async def cancel(self, job_id: UUID, *, conn: Any = None) -> JobInfo:
        """Cancel a waiting job, ask a running one to stop; a finished one stays as it is."""
        sql = "select penstock.cancel_job(cast($1 as uuid)) as answer"
        return JobInfo.from_json(await self._json(sql, (job_id,), conn))

    async def retry(self, job_id: UUID, *, conn: Any = None) -> JobInfo:
        """Submit a finished job again as a new one, or run a scheduled one now."""
        sql = "select penstock.retry_job(cast($1 as uuid)) as answer"
        return JobInfo.from_json(await self._json(sql, (job_id,), conn))

    async def read(self, job_id: UUID, *, conn: Any = None) -> JobInfo:
        """The job as every reader sees it."""
        sql = "select penstock.read_job(cast($1 as uuid)) as answer"
        return JobInfo.from_json(await self._json(sql, (job_id,), conn))

    async def read_batch(self, batch_id: UUID, *, conn: Any = None) -> Answer:
        """Progress and counts of the jobs that were submitted together."""
        sql = "select penstock.read_batch(cast($1 as uuid)) as answer"
        return await self._json(sql, (batch_id,), conn)

    async def cancel_batch(self, batch_id: UUID, *, conn: Any = None) -> Answer:
        """Cancel each job of a batch that has not finished."""
        sql = "select penstock.cancel_batch(cast($1 as uuid)) as answer"
        return await self._json(sql, (batch_id,), conn)

    async def refuse_computed(self, batch: Batch, of: Sequence[int]) -> None:
        """Refuse jobs of a batch whose kind needs the app's code, if this process has none."""
        prices = batch.price or [None] * len(batch.kinds)
        try:
            await self._fetch(
                "select penstock.refuse_computed($1, $2)",
                (
                    [batch.kinds[index] for index in of],
                    [prices[index] is not None for index in of],
                ),
            )
        except Invalid as error:
            error.members["index"] = of[error.members["index"]]
            raise

    async def queues_of(self, kinds: Sequence[str]) -> list[str]:
        """The queues of these kinds."""
        return await self._values("select queue from penstock.queues_of($1) queue", list(kinds))

    async def wake(self, queues: Sequence[str]) -> None:
        """Wake idle workers: these queues have jobs. After commit; the wake-up may be lost."""
        await self._fetch("select penstock.wake_workers($1)", (list(queues),))


def _casts(types: Iterable[str], first: int = 1, array: str = "") -> str:
    """Numbered arguments with their types, which some drivers cannot infer."""
    through = {"jsonb": f"cast(cast(${{}} as text{array}) as jsonb{array})"}
    return ", ".join(
        through.get(name, f"cast(${{}} as {name}{array})").format(n)
        for n, name in enumerate(types, first)
    )


_ONE = _casts(
    ("text", "jsonb", *_FIRST.values(), "jsonb", "text", "text", "text", "bigint", "text")
)
_MANY = _casts(("jsonb", *_FIRST.values(), "jsonb", "bigint"), 2, "[]")
_SUBMIT = (
    "select id, status::text, deduplicated, replayed, queue_position, eta_seconds, balance,"  # noqa: S608
    f" batch, cast(ids as text[]) as ids from penstock.submit_one({_ONE})"
)
# With a null for each of its output arguments.
_SUBMIT_WAKING = f"call penstock.submit_waking({_ONE}{', null' * 9})"
_SUBMIT_MANY = (
    "select array_agg(id order by ordinal) as ids,"  # noqa: S608
    " array_agg(cast(status as text) order by ordinal) as statuses,"
    " array_agg(deduplicated order by ordinal) as deduplicated,"
    " array_agg(balance order by ordinal) as balances,"
    " array_agg(batch order by ordinal) as batches from penstock.submit_many("
    "coalesce(cast($1 as text[]), array_fill(cast($16 as text), array[cast($17 as integer)])), "
    f"{_MANY}, cast($14 as boolean),"
    " p_webhook_urls => cast($15 as text[]), p_own => cast($18 as boolean))"
)


def _uuid(value: Any) -> Any:
    """A UUID as any driver returns it; None stays None."""
    return value if value is None or isinstance(value, UUID) else UUID(str(value))
