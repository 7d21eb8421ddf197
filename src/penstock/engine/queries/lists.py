"""What people look at: jobs newest first, queues, workers, and how things stand."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from penstock.db.adapters.caller_connection import Fetch
from penstock.engine.encoding.encode import refuse_nul, whole
from penstock.engine.jobs.info import JobInfo
from penstock.engine.states import JobStatus

MOST_ACCOUNTS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list; None is any. A queue or kind that does not exist is refused."""

    status: JobStatus | None = None
    kind: str | None = None
    queue: str | None = None
    account: str | None = None
    topic: str | None = None


class Lists:
    """Jobs are `JobInfo`; all else are plain dicts in the form of the contract."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def jobs(
        self, wanted: JobFilter | None = None, *, limit: int = 50, before: UUID | None = None
    ) -> list[JobInfo]:
        """Live and finished jobs in a short form without payload and result, newest first.

        The next page begins `before` the last id of this one.
        """
        wanted = wanted or JobFilter()
        for name in ("kind", "queue", "account", "topic"):
            refuse_nul(getattr(wanted, name), name)
        rows = await self._fetch(
            "select job from penstock.list_jobs($1, $2, $3, $4, $5, $6, $7) job",
            (
                wanted.status,
                wanted.kind,
                wanted.queue,
                wanted.account,
                wanted.topic,
                limit,
                before,
            ),
        )
        return [JobInfo.from_json(row["job"]) for row in rows]

    async def accounts(
        self, prefix: str, *, limit: int = 100, after: str | None = None
    ) -> list[dict[str, Any]]:
        """Those whose names begin so, by name; the next page begins `after` the last name."""
        refuse_nul(prefix, "prefix", code="invalid_prefix")
        refuse_nul(after, "after", code="invalid_after")
        rows = await self._fetch(
            "select account from penstock.find_accounts($1, $2, $3) account",
            (prefix, whole(limit, "limit", 1, MOST_ACCOUNTS, "invalid_filter"), after),
        )
        return [row["account"] for row in rows]

    async def queues(self, name: str | None = None) -> list[dict[str, Any]]:
        """Every queue by name, or the one that is named: its limits and what waits in it."""
        refuse_nul(name, "queue", code="invalid_queue")
        rows = await self._fetch("select queue from penstock.list_queues($1) queue", (name,))
        return [row["queue"] for row in rows]

    async def standings(self) -> dict[str, Any]:
        """Every queue as operators look at it, and when that was; large counts are estimates."""
        [row] = await self._fetch("select penstock.read_queues() as answer", ())
        answer: dict[str, Any] = row["answer"]
        return answer

    async def queue(self, name: str) -> dict[str, Any]:
        """One queue closely: every option as declared and as in force, what stops it, its kinds."""
        refuse_nul(name, "queue", code="invalid_queue")
        [row] = await self._fetch("select penstock.read_queue($1) as queue", (name,))
        answer: dict[str, Any] = row["queue"]
        return answer

    async def stuck(self, *, limit: int = 100) -> list[dict[str, Any]]:
        """Starts without a sign of life, and jobs that wait after one; the longest first."""
        rows = await self._fetch("select stuck from penstock.list_stuck($1) stuck", (limit,))
        return [row["stuck"] for row in rows]

    async def losses(self) -> list[dict[str, Any]]:
        """Workers that were lost in the last day, and what became of their jobs."""
        rows = await self._fetch("select loss from penstock.list_losses() loss", ())
        return [row["loss"] for row in rows]

    async def blocked_loops(self, job_id: UUID | None = None) -> list[dict[str, Any]]:
        """Event loops that stood still in the last day, or those that one job blocked."""
        rows = await self._fetch(
            "select blocked from penstock.list_blocked_loops(p_job => $1) blocked", (job_id,)
        )
        return [row["blocked"] for row in rows]

    async def unhandled(self) -> list[dict[str, Any]]:
        """Kinds with queued jobs that no live worker of their queue has a handler for."""
        rows = await self._fetch("select kind from penstock.list_unhandled() kind", ())
        return [row["kind"] for row in rows]

    async def overdue(self, older_than: timedelta) -> list[dict[str, Any]]:
        """What should have moved for so long and has not: rule, subject, since, detail.

        What is found may be about to move; whoever wants to be sure asks twice.
        """
        rows = await self._fetch("select * from penstock.check_liveness($1)", (older_than,))
        return [dict(row) for row in rows]

    async def workers(self) -> list[dict[str, Any]]:
        """Workers that are alive, silent, or were lost in the last day."""
        rows = await self._fetch("select worker from penstock.list_workers() worker", ())
        return [row["worker"] for row in rows]

    async def status(self) -> dict[str, Any]:
        """Totals, averages of the last thousand jobs, every queue and worker."""
        [row] = await self._fetch("select penstock.read_status() as status", ())
        answer: dict[str, Any] = row["status"]
        return answer

    async def partitions_ahead(self) -> timedelta:
        """For how long the partitions of history are made."""
        [row] = await self._fetch("select penstock.partitions_ahead() as ahead", ())
        ahead: timedelta = row["ahead"]
        return ahead
