"""What operators read: jobs, lists, the state of queues and workers, figures by the hour."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from penstock.engine.encoding.encode import refuse_nul, whole
from penstock.engine.jobs.attempts import Chunk
from penstock.engine.jobs.info import JobInfo
from penstock.engine.statements import Answer, Statements
from penstock.engine.states import JobStatus

MOST_ACCOUNTS = 1_000
MOST_HOURS = 2_160
# The highest total that is counted; a larger one is shown as "more than".
MOST_COUNTED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list; None means any. An unknown queue or kind is refused."""

    status: JobStatus | None = None
    kind: str | None = None
    queue: str | None = None
    account: str | None = None
    topic: str | None = None

    def arguments(self, code: str = "invalid_filter") -> tuple[str | None, ...]:
        """The arguments for SQL, checked; `code`: of the error."""
        texts = {name: getattr(self, name) for name in ("kind", "queue", "account", "topic")}
        for name, text in texts.items():
            refuse_nul(text, name, code=code)
        return self.status, *texts.values()


class Lists(Statements):
    """Jobs are `JobInfo`; everything else is plain dicts in the form of the contract."""

    async def jobs(
        self, wanted: JobFilter | None = None, *, limit: int = 50, before: UUID | None = None
    ) -> list[JobInfo]:
        """Live and finished jobs in a short form without payload and result, newest first.

        The next page begins `before` the last id of this one.
        """
        return await self._rows(
            JobInfo.from_json,
            "select job from penstock.list_jobs($1, $2, $3, $4, $5, $6, $7) job",
            *(*(wanted or JobFilter()).arguments("invalid_job"), limit, before),
        )

    async def accounts(
        self, prefix: str, *, limit: int = 100, after: str | None = None
    ) -> list[Answer]:
        """Accounts whose names begin so, by name; the next page begins `after` the last name."""
        refuse_nul(prefix, "prefix", code="invalid_prefix")
        refuse_nul(after, "after", code="invalid_after")
        return await self._values(
            "select account from penstock.find_accounts($1, $2, $3) account",
            *(prefix, whole(limit, "limit", 1, MOST_ACCOUNTS, "invalid_filter"), after),
        )

    async def queues(self, name: str | None = None) -> list[Answer]:
        """Every queue by name, or the named one: its limits and waiting jobs."""
        refuse_nul(name, "queue", code="invalid_queue")
        return await self._values("select queue from penstock.list_queues($1) queue", name)

    async def standings(self) -> Answer:
        """Every queue for operators, and the time of reading; large counts are estimates."""
        return await self._value(dict, "select penstock.read_queues()")

    async def queue(self, name: str) -> Answer:
        """One queue in detail: options as declared and in force, what stops it, its kinds."""
        refuse_nul(name, "queue", code="invalid_queue")
        return await self._value(dict, "select penstock.read_queue($1)", name)

    async def stuck(self, *, limit: int = 100) -> list[Answer]:
        """Attempts without a sign of life, and jobs that wait after one; the longest first."""
        return await self._values("select stuck from penstock.list_stuck($1) stuck", limit)

    async def losses(self) -> list[Answer]:
        """Workers that were lost in the last day, and what became of their jobs."""
        return await self._values("select loss from penstock.list_losses() loss")

    async def blocked_loops(self, job_id: UUID | None = None) -> list[Answer]:
        """Event loops that stood still in the last day, or those that one job blocked."""
        sql = "select blocked from penstock.list_blocked_loops(p_job => $1) blocked"
        return await self._values(sql, job_id)

    async def unhandled(self) -> list[Answer]:
        """Kinds with queued jobs that no live worker of their queue has a handler for."""
        return await self._values("select kind from penstock.list_unhandled() kind")

    async def overdue(self, older_than: timedelta) -> list[Answer]:
        """Jobs and messages that should have moved for so long: rule, subject, since, detail.

        They may be about to move; to be sure, ask twice.
        """
        rows = await self._fetch("select * from penstock.check_liveness($1)", (older_than,))
        return [dict(row) for row in rows]

    async def workers(self) -> list[Answer]:
        """Workers that are alive, silent, or were lost in the last day."""
        return await self._values("select worker from penstock.list_workers() worker")

    async def status(self) -> Answer:
        """Totals, averages of the last thousand jobs, every queue and worker."""
        return await self._value(dict, "select penstock.read_status()")

    async def partitions_ahead(self) -> timedelta:
        """How far ahead the partitions of history exist."""
        ahead: timedelta
        [ahead] = await self._values("select penstock.partitions_ahead()")
        return ahead


class Hourly(Statements):
    """The state of queues and workers, figures by the hour, metrics to be scraped."""

    async def status(self) -> Answer:
        """Totals, averages, every queue and worker, and what is stuck."""
        return await self._value(dict, "select penstock.read_admin_status()")

    async def metrics(self, hours: int = 24, *, queue: str | None = None) -> Answer:
        """Failures by class and outcomes by queue, kind and outcome, each by the hour."""
        return await self._value(dict, "select penstock.read_metrics($1, $2)", _hours(hours), queue)

    async def overview(self, hours: int = 24) -> Answer:
        """Live and finished jobs, for a page that is refreshed every second.

        If counting would take long, a count is an estimate, and its status is named in `about`.
        """
        return await self._value(dict, "select penstock.read_overview($1)", _hours(hours))

    async def gauges(self) -> Answer:
        """Queues, workers, and all counters since the beginning."""
        return await self._value(dict, "select penstock.read_gauges()")


def _hours(hours: int) -> int:
    return whole(hours, "hours", 1, MOST_HOURS, "invalid_filter")


class RowPage(NamedTuple):
    """Jobs in the short form (reads.sql): without payload and result."""

    items: Sequence[JobInfo]
    after: UUID | None
    """Where the next page begins; None: this is the last page."""
    seen: bool
    """The page is short because enough rows were scanned; older ones were not."""


class Total(NamedTuple):
    jobs: int
    exact: bool
    """False: there are more, or some rows were not scanned."""


class Body(NamedTuple):
    """A payload or result as text; None: there is none."""

    text: str | None
    characters: int | None
    """Its full length."""
    uploads: Sequence[UUID]


class JobRows(Statements):
    """Jobs as rows of a table for operators, and details of one job."""

    async def page(
        self,
        wanted: JobFilter,
        *,
        batch: UUID | None = None,
        limit: int = 50,
        before: UUID | None = None,
    ) -> RowPage:
        """Jobs that match, newest first. A page may be short without being the last."""
        sql = "select job, after, seen from penstock.page_rows($1, $2, $3, $4, $5, $6, $7, $8)"
        return await self._page(sql, *wanted.arguments(), batch, limit, before)

    async def read(self, ids: Sequence[UUID]) -> list[JobInfo]:
        """These jobs, if they exist."""
        sql = "select job from penstock.read_rows($1) job"
        return await self._rows(JobInfo.from_json, sql, list(ids))

    async def by_end(self, end: str) -> list[JobInfo]:
        """The short form of at most ten jobs whose ids end so, among the newest 200,000."""
        return await self._rows(
            JobInfo.from_json, "select job from penstock.find_by_id_end($1) job", end
        )

    async def of_batch(self, batch: UUID, *, limit: int = 50, after: UUID | None = None) -> RowPage:
        """The jobs of a batch, in the order of their submit."""
        sql = "select job, after, seen from penstock.page_batch_rows($1, $2, $3)"
        return await self._page(sql, batch, limit, after)

    async def _page(self, sql: str, *args: Any) -> RowPage:
        *rows, end = await self._fetch(sql, args)
        return RowPage([JobInfo.from_json(row["job"]) for row in rows], end["after"], end["seen"])

    async def count(
        self, wanted: JobFilter, *, batch: UUID | None = None, most: int = MOST_COUNTED
    ) -> Total:
        """How many jobs match, counted up to `most`."""
        [total] = await self._rows(
            Total,
            "select total, exact from penstock.count_jobs($1, $2, $3, $4, $5, $6, $7)",
            *(*wanted.arguments(), batch, most),
        )
        return total

    async def estimate(self) -> int:
        """An estimate of the number of all jobs."""
        return await self._value(int, "select penstock.estimate_jobs()")

    async def kinds(self) -> list[str]:
        """Every kind by name."""
        return await self._values("select kind from penstock.list_kinds()")

    async def queues(self) -> list[str]:
        """Every queue by name; `Lists.queues` counts the waiting jobs, too, which takes longer."""
        return await self._values("select name from penstock.list_queue_names() name")

    async def inspect(self, job_id: UUID) -> JobInfo:
        """The job as every surface shows it, without its result, with details for operators."""
        return await self._value(JobInfo.from_json, "select penstock.inspect_job($1)", job_id)

    async def last_chunks(self, job_id: UUID, *, most: int) -> list[Chunk]:
        """The last chunks that its last attempt emitted."""
        sql = "select attempt, seq, data from penstock.read_last_chunks($1, $2)"
        return await self._rows(Chunk, sql, job_id, most)

    async def body(self, job_id: UUID, part: str, *, most: int | None = None) -> Body:
        """Its `payload` or `result`: the first `most` characters for people, or all of it."""
        [row] = await self._fetch(
            "select body, characters, uploads from penstock.read_body($1, $2, $3)",
            (job_id, part, most),
        )
        return Body(row["body"], row["characters"], row["uploads"] or ())
