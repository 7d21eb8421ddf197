"""Jobs and batches as JSON text, as Postgres wrote it: a server sends it on without reading it."""

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

# How many submits share a commit, and how large each may be: none waits for another's megabyte.
MOST_SUBMITS = 32
LARGEST = 50_000
# A read in a deep queue takes milliseconds: few share one statement, and several run side by side.
MOST_READS = 8
READS_AT_ONCE = 4
# How long a submit or a read may take, the wait for its batch included.
WAIT_SECONDS = 10.0
MOST_NAMED = 20


class Scope(NamedTuple):
    """What a caller is limited to; None: not by this. The rest is unknown to the caller.

    A caller that is limited to anything is a customer, and sees jobs as public.sql says.
    """

    account: str | None = None
    topic: str | None = None
    job: UUID | None = None


class Text(NamedTuple):
    """A job, and what a server says beside it."""

    text: str
    id: UUID
    queue: str | None
    status: JobStatus
    eta_seconds: float | None
    deduplicated: bool
    """Of a submit or retry: this job was there before."""
    replayed: bool
    """Of a submit: it is the answer to an earlier one with the same idempotency key."""


class Bodies(NamedTuple):
    """What a job holds, as JSON text."""

    payload: str
    metadata: str | None


class Page(NamedTuple):
    items: Sequence[str]
    after: UUID | None
    """Where the next page begins; None: this is the last."""


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
        """Accept one job, as `Jobs.submit` does; in one way to the server and back.

        `computed`: what the app's code computes for this kind is in it. `own`: with a key of its
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
        """What a job that is in order holds, as `submit_together` takes it."""
        refuse_odd(job)
        return Bodies(
            encode_checked(job.payload, "payload"),
            None if job.metadata is None else encode_checked(job.metadata, "metadata"),
        )

    async def submit_together(
        self, queue: str, jobs: Sequence[NewJob], bodies: Sequence[Bodies], *, wake: bool
    ) -> list[Text | None]:
        """Accept plain jobs of one queue, each by itself; None: `submit` has to take it, or say no.

        Plain: of nobody's, without key, price or webhook; computed. `wake`: with the commit.
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
        """Cancel a job that waits, ask a running one to stop; a finished one stays as it is."""
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
        """Jobs, newest first, without their attempts. A page may be short and not the last.

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
        """How far the jobs that were submitted together are, with some of them, in order.

        Also where the next of them begin.
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

    One that is refused, or not plain, is repeated by itself: it fails no other.
    """

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._submits: dict[str, Batcher[_Submit, Text | None]] = {}
        self._reads = Batcher(self._read, MOST_READS, READS_AT_ONCE)

    async def submit(self, job: NewJob, *, queue: str, wake: bool) -> Text | None:
        """Accept it with others; None: it has to be submitted by itself.

        `queue`: of its kind, as this app declares it; what holds up one queue holds up no other.
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
        # With the wait for the batch before: that may be at a commit that does not end.
        with translated():
            async with asyncio.timeout(WAIT_SECONDS):
                return await batcher.ask(_Submit(job, bodies, wake))

    async def read(self, job: UUID, scope: Scope = EVERYTHING) -> Text:
        """Read a job, as far as this caller may see it."""
        with translated():
            async with asyncio.timeout(WAIT_SECONDS):
                text = await self._reads.ask((job, scope))
                # Read by itself, it is refused with the message of the database.
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
        # The server refused, so nothing was written. Without its answer every caller gets the
        # failure, and nothing is tried again.
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
    """For callers who may know all names: a customer's key is none of them."""
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
    """`known are mail, studio`, of many the first."""
    if not known:
        return "none is declared yet"
    more = f" and {len(known) - MOST_NAMED:,} more" if len(known) > MOST_NAMED else ""
    return f"known are {', '.join(known[:MOST_NAMED])}{more}"
