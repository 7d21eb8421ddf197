"""Jobs as rows of a table that operators look through, and what else they ask about one."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from penstock.db.adapters.caller_connection import Fetch
from penstock.engine.encoding.encode import refuse_nul
from penstock.engine.jobs.info import JobInfo
from penstock.engine.jobs.progress import Chunk
from penstock.engine.queries.lists import JobFilter

# A total is counted that far; beyond, "more than" has to do.
MOST_COUNTED = 10_000


class RowPage(NamedTuple):
    """Jobs in the short form (reads.sql): without payload and result."""

    items: Sequence[JobInfo]
    after: UUID | None
    """Where the next page begins; None: this is the last."""
    seen: bool
    """It ended because it has looked at enough: what is further back nobody has looked at."""


class Total(NamedTuple):
    jobs: int
    exact: bool
    """Else there are more, or some that were not looked at."""


class Body(NamedTuple):
    """A payload or result as text; None: there is none."""

    text: str | None
    characters: int | None
    """How long it is when it is not cut."""
    uploads: Sequence[UUID]


class JobRows:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def page(
        self,
        wanted: JobFilter,
        *,
        batch: UUID | None = None,
        limit: int = 50,
        before: UUID | None = None,
    ) -> RowPage:
        """Jobs that fit, newest first. A page may be short and not the last."""
        rows = await self._fetch(
            "select job, after, seen from penstock.page_rows($1, $2, $3, $4, $5, $6, $7, $8)",
            (*_named(wanted), batch, limit, before),
        )
        return _page(rows)

    async def read(self, ids: Sequence[UUID]) -> list[JobInfo]:
        """These jobs, as far as they are there."""
        rows = await self._fetch("select job from penstock.read_rows($1) job", (list(ids),))
        return [JobInfo.from_json(row["job"]) for row in rows]

    async def by_end(self, end: str) -> list[JobInfo]:
        """Jobs whose ids end so, in short, ten at most; of the newest 200,000."""
        rows = await self._fetch("select job from penstock.find_by_end($1) job", (end,))
        return [JobInfo.from_json(row["job"]) for row in rows]

    async def of_batch(self, batch: UUID, *, limit: int = 50, after: UUID | None = None) -> RowPage:
        """The jobs of a batch, in the order of their submit."""
        rows = await self._fetch(
            "select job, after, seen from penstock.page_batch_rows($1, $2, $3)",
            (batch, limit, after),
        )
        return _page(rows)

    async def count(
        self, wanted: JobFilter, *, batch: UUID | None = None, most: int = MOST_COUNTED
    ) -> Total:
        """How many fit, counted up to `most`."""
        [row] = await self._fetch(
            "select total, exact from penstock.count_jobs($1, $2, $3, $4, $5, $6, $7)",
            (*_named(wanted), batch, most),
        )
        return Total(row["total"], row["exact"])

    async def estimate(self) -> int:
        """All jobs there are, about."""
        [row] = await self._fetch("select penstock.estimate_jobs() as jobs", ())
        jobs: int = row["jobs"]
        return jobs

    async def kinds(self) -> list[str]:
        """Every kind by name."""
        rows = await self._fetch("select kind from penstock.list_kinds()", ())
        return [row["kind"] for row in rows]

    async def queues(self) -> list[str]:
        """Every queue by name; `Lists.queues` counts what waits in each, which takes longer."""
        rows = await self._fetch("select name from penstock.list_queue_names() name", ())
        return [row["name"] for row in rows]

    async def inspect(self, job_id: UUID) -> JobInfo:
        """The job as every surface shows it, without its result, and what an operator adds."""
        [row] = await self._fetch("select penstock.inspect_job($1) as job", (job_id,))
        return JobInfo.from_json(row["job"])

    async def last_chunks(self, job_id: UUID, *, most: int) -> list[Chunk]:
        """What its last start emitted: the end of it."""
        rows = await self._fetch(
            "select attempt, seq, data from penstock.read_last_chunks($1, $2)", (job_id, most)
        )
        return [Chunk(*row.values()) for row in rows]

    async def body(self, job_id: UUID, part: str, *, most: int | None = None) -> Body:
        """Its `payload` or `result`: the first `most` characters for people, or all as it is."""
        [row] = await self._fetch(
            "select body, characters, uploads from penstock.read_body($1, $2, $3)",
            (job_id, part, most),
        )
        return Body(row["body"], row["characters"], row["uploads"] or ())


def _named(wanted: JobFilter) -> tuple[str | None, ...]:
    for name in ("kind", "queue", "account", "topic"):
        refuse_nul(getattr(wanted, name), name, code="invalid_filter")
    return wanted.status, wanted.kind, wanted.queue, wanted.account, wanted.topic


def _page(rows: Sequence[Any]) -> RowPage:
    jobs = [JobInfo.from_json(row["job"]) for row in rows[:-1]]
    return RowPage(jobs, rows[-1]["after"], rows[-1]["seen"])
