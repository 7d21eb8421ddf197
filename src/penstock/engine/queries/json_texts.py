"""Jobs and batches as the JSON text that Postgres wrote: a server sends it on without parsing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from penstock.base.suggestions import did_you_mean
from penstock.db.adapters.caller_connection import Rows
from penstock.db.connections.driver_errors import translated
from penstock.engine.encoding.encode import encode_checked, refuse_nul
from penstock.engine.jobs.jobs import NewJob, column, refuse_odd, submit_arguments
from penstock.engine.queries.events import Batcher
from penstock.engine.queries.lists import JobFilter, JobRows
from penstock.engine.statements import Statements
from penstock.engine.states import STATUSES, JobStatus
from penstock.errors import NotFound, Refused, RolledBack

# How many submits share a commit, and how large each may be, so that none waits for large ones.
MOST_SUBMITS = 32
LARGEST = 50_000
# In a deep queue a read takes milliseconds: few share a statement, and several run in parallel.
MOST_READS = 8
READS_AT_ONCE = 4
# How long a submit or a read may take, including the wait for its batch.
WAIT_SECONDS = 10.0
MOST_NAMED = 20


class Scope(NamedTuple):
    """What a caller is limited to; None: no limit of this sort. Other jobs are unknown to it.

    A caller with any limit is a customer, and sees jobs as in public.sql.
    """

    account: str | None = None
    topic: str | None = None
    job: UUID | None = None


class Text(NamedTuple):
    """A job, and what the server adds to it."""

    text: str
    id: UUID
    queue: str | None
    status: JobStatus
    eta_seconds: float | None
    deduplicated: bool
    """After a submit or retry: the job existed before."""
    replayed: bool
    """After a submit: this answers an earlier one with the same idempotency key."""


class Bodies(NamedTuple):
    """Payload and metadata of a job, as JSON text."""

    payload: str
    metadata: str | None


class Page(NamedTuple):
    items: Sequence[str]
    after: UUID | None
    """Where the next page begins; None: this is the last page."""


EVERYTHING = Scope()


class Texts(Statements):
    async def submit(  # noqa: PLR0913  # as accept_job takes them
        self,
        job: NewJob,
        *,
        computed: bool,
        idempotency_key: str | None = None,
        scope: str = "",
        wake: str | None = None,
        own: bool = False,
    ) -> Text:
        """Accept one job, as `Jobs.submit` does, in one round trip.

        `computed`: it has what the app's code computes for its kind. `own`: with a key of its
        account.
        """
        return await self._one(
            "penstock.accept_job($1, cast(cast($2 as text) as jsonb), $3, $4, $5, $6, $7, $8, $9,"
            " $10, $11, cast(cast($12 as text) as jsonb), $13, $14, $15, $16, $17, $18, $19)",
            *submit_arguments(job, encode_checked, idempotency_key, scope, wake),
            computed,
            own,
        )

    def encode(self, job: NewJob) -> Bodies:
        """The bodies of a checked job, as `submit_together` takes them."""
        refuse_odd(job)
        return Bodies(
            encode_checked(job.payload, "payload"),
            None if job.metadata is None else encode_checked(job.metadata, "metadata"),
        )

    async def submit_together(
        self, queue: str, jobs: Sequence[NewJob], bodies: Sequence[Bodies], *, wake: bool
    ) -> list[Text | None]:
        """Accept plain jobs of one queue, independently; None: `submit` has to accept or refuse it.

        Plain: without account, key, price and webhook, and computed. `wake`: with the commit.
        """
        rows = await self._fetch(
            f"select ordinal, {_JOB_COLUMNS} from penstock.accept_jobs($1, $2,"  # noqa: S608  # names of ours
            " cast(cast($3 as text[]) as jsonb[]), $4, $5, $6, $7, $8, $9, $10,"
            " cast(cast($11 as text[]) as jsonb[]), $12)",
            (
                queue,
                [job.kind for job in jobs],
                [body.payload for body in bodies],
                *(column(jobs, name) for name in _TOGETHER),
                [body.metadata for body in bodies],
                wake,
            ),
        )
        return _in_order(rows, len(jobs))

    async def job(self, job_id: UUID, scope: Scope = EVERYTHING) -> Text:
        """The job as every surface shows it."""
        return await self._one("penstock.read_job_of($1, $2, $3, $4)", job_id, *_bound(scope))

    async def jobs_together(self, requests: Sequence[tuple[UUID, Scope]]) -> list[Text | None]:
        """Jobs of several requests, each within its own scope; None: unknown there."""
        scopes = [_bound(scope) for _, scope in requests]
        rows = await self._fetch(
            f"select ordinal, {_JOB_COLUMNS} from penstock.read_jobs_of($1, $2, $3, $4)",  # noqa: S608
            (
                [job for job, _ in requests],
                [scope.account for scope in scopes],
                [scope.topic for scope in scopes],
                [scope.job for scope in scopes],
            ),
        )
        return _in_order(rows, len(requests))

    async def cancel(self, job_id: UUID, scope: Scope = EVERYTHING) -> Text:
        """Cancel a waiting job, ask a running one to stop; a finished one stays as it is."""
        return await self._one("penstock.cancel_job_of($1, $2, $3, $4)", job_id, *_bound(scope))

    async def retry(self, job_id: UUID, account: str | None = None) -> Text:
        """Submit a finished job again as a new one, or run a scheduled one now."""
        return await self._one("penstock.retry_job_of($1, $2)", job_id, account)

    async def jobs(
        self,
        wanted: JobFilter,
        *,
        batch: UUID | None = None,
        limit: int = 50,
        before: UUID | None = None,
        public: bool = False,
    ) -> Page:
        """Jobs, newest first, without their attempts. A page may be short without being the last.

        `public`: as customers see them.
        """
        rows = await self._fetch(
            "select job, after from penstock.page_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            (*wanted.arguments(), batch, limit, before, public),
        )
        return Page([row["job"] for row in rows[:-1]], rows[-1]["after"])

    async def batch(
        self,
        batch_id: UUID,
        *,
        account: str | None = None,
        limit: int = 100,
        after: UUID | None = None,
    ) -> tuple[str, UUID | None]:
        """Progress and counts of the jobs that were submitted together, with some of the jobs.

        Also the job at which the next page begins.
        """
        return await self._batch("penstock.read_batch_of", (batch_id, account, limit, after))

    async def cancel_batch(
        self, batch_id: UUID, *, account: str | None = None, limit: int = 100
    ) -> tuple[str, UUID | None]:
        """Cancel each of its jobs that has not finished."""
        return await self._batch("penstock.cancel_batch_of", (batch_id, account, limit, None))

    async def _one(self, call: str, *args: Any) -> Text:
        sql = f"select {_JOB_COLUMNS} from {call} job"  # noqa: S608  # a name of ours
        [row] = await self._fetch(sql, args)
        return _text(row.values())

    async def _batch(self, call: str, args: tuple[Any, ...]) -> tuple[str, UUID | None]:
        columns = "cast(batch - 'next' as text) as batch, cast(batch ->> 'next' as uuid) as next"
        sql = f"select {columns} from {call}($1, $2, $3, $4) batch"  # noqa: S608  # a name of ours
        [row] = await self._fetch(sql, args)
        return row["batch"], row["next"]


class _Submit(NamedTuple):
    job: NewJob
    bodies: Bodies
    wake: bool


class BatchedJobs:
    """Submits of plain jobs, and reads of jobs, that share a statement with others.

    A job that is refused, or not plain, is repeated alone: it does not make others fail.
    """

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._submits: dict[str, Batcher[_Submit, Text | None]] = {}
        self._reads = Batcher(self._read, MOST_READS, READS_AT_ONCE)

    async def submit(self, job: NewJob, *, queue: str, wake: bool) -> Text | None:
        """Accept it with others; None: it has to be submitted alone.

        `queue`: the queue of its kind, as this app declares it; a slow queue delays no other.
        `wake`: the commit wakes the idle workers of the queue.
        """
        if not _is_plain(job):
            return None
        bodies = self._texts.encode(job)
        if len(bodies.payload) + len(bodies.metadata or "") > LARGEST:
            return None
        batcher = self._submits.get(queue)
        if batcher is None:
            batcher = self._submits[queue] = Batcher(
                lambda submits: self._accept(queue, submits), MOST_SUBMITS
            )
        # Also while it waits for the batch before, whose commit may not return.
        with translated():
            async with asyncio.timeout(WAIT_SECONDS):
                return await batcher.ask(_Submit(job, bodies, wake))

    async def read(self, job: UUID, scope: Scope = EVERYTHING) -> Text:
        """Read a job, as far as this caller may see it."""
        with translated():
            async with asyncio.timeout(WAIT_SECONDS):
                text = await self._reads.ask((job, scope))
                # When it is read alone, the database's error says why.
                return text or await self._texts.job(job, scope)

    async def _accept(self, queue: str, submits: Sequence[_Submit]) -> Sequence[Text | None]:
        jobs, bodies, wakes = zip(*submits, strict=True)
        accepted = self._texts.submit_together(queue, jobs, bodies, wake=any(wakes))
        return await _or_none(len(submits), accepted)

    async def _read(self, asked: Sequence[tuple[UUID, Scope]]) -> Sequence[Text | None]:
        return await _or_none(len(asked), self._texts.jobs_together(asked))


async def _or_none(count: int, answers: Awaitable[Sequence[Text | None]]) -> Sequence[Text | None]:
    try:
        return await answers
    except (Refused, RolledBack, asyncpg.PostgresError):
        # The server refused, so nothing was written. If its answer was lost, every caller gets an
        # error, and no submit is repeated.
        return [None] * count


def _is_plain(job: NewJob) -> bool:
    return (
        job.account is None
        and job.dedupe_key is None
        and job.price is None
        and job.webhook_url is None
    )


_JOB_COLUMNS = (
    "cast(job as text), cast(job ->> 'id' as uuid), job ->> 'queue', job ->> 'status',"
    " cast(job ->> 'eta_seconds' as double precision), cast(job ->> 'deduplicated' as boolean),"
    " cast(job ->> 'replayed' as boolean)"
)
_TOGETHER = ("topic", "priority", "run_at", "delay", "max_attempts", "timeout", "expires")


def _text(values: Iterable[Any]) -> Text:
    text, job_id, queue, status, eta, deduplicated, replayed = values
    return Text(text, job_id, queue, STATUSES[status], eta, bool(deduplicated), bool(replayed))


def _in_order(rows: Rows, count: int) -> list[Text | None]:
    texts: list[Text | None] = [None] * count
    for ordinal, *values in (row.values() for row in rows):
        texts[ordinal - 1] = _text(values)
    return texts


def _bound(scope: Scope) -> Scope:
    refuse_nul(scope.account, "account")
    refuse_nul(scope.topic, "topic")
    return scope


@asynccontextmanager
async def naming_known(rows: JobRows) -> AsyncIterator[None]:
    """For callers who may see all names: not for customers' keys."""
    try:
        yield
    except NotFound as error:
        known: list[str]
        match error.code:
            case "unknown_kind":
                known = await rows.kinds()
            case "unknown_queue":
                known = await rows.queues()
            case _:
                raise
        name = error.members.get(error.code.removeprefix("unknown_"))
        error.message = f"{error.message}; {listed(known)}.{did_you_mean(name, known)}"
        error.args = (error.message,)
        raise


def listed(known: list[str]) -> str:
    """`known are mail, studio`; if there are many, the first ones."""
    if not known:
        return "none is declared yet"
    more = f" and {len(known) - MOST_NAMED:,} more" if len(known) > MOST_NAMED else ""
    return f"known are {', '.join(known[:MOST_NAMED])}{more}"
