"""Reads what the landing page shows, in as few statements as possible."""

import asyncio
import json
import math
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from demo.systems import MODEL_QUEUES, QUEUES

Row = dict[str, Any]

NEWEST = 24
# The errors of an unavailable database.
DATABASE_UNAVAILABLE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
# Pages that ask within this time get the same answer.
_FRESH_SECONDS = 0.5

# For each queue: its newest jobs, counts, what stops it, and how many finished in the last day.
_NOW = """
with overview as materialized (select penstock.read_overview(24) as it)
select q ->> 'name' as queue, q -> 'jobs' as jobs, q ->> 'waiting_for' as waiting_for,
  coalesce(t.it #> array['ended', 'queues', q ->> 'id'], '{}') as ended,
  (select jsonb_agg(j) from penstock.list_jobs(p_queue => q ->> 'name', p_limit => $2) j) as newest
from overview t cross join lateral jsonb_array_elements(t.it -> 'queues') q
where q ->> 'name' = any ($1)
"""
# A job without a later attempt still has the number of the lost one. It may have finished without
# another attempt: it was lost too often, or cancelled.
_LOST_JOBS = """
select count(*) filter (where j ->> 'finished_at' is null) as waiting,
  count(*) filter (where j ->> 'finished_at' is not null) as ended
from unnest($1::uuid[], $2::integer[]) o (id, attempt)
cross join lateral penstock.read_job(o.id) j
where (j ->> 'attempt')::integer <= o.attempt
"""
_STARTED_SINCE = """
select min((j ->> 'started_at')::timestamptz)
from unnest($1::text[]) q cross join unnest(array['running', 'awaiting']) s
cross join lateral penstock.list_jobs(p_queue => q, p_status => s, p_limit => 50) j
where (j ->> 'started_at')::timestamptz >= $2
"""
_FAILED_SINCE = """
select count(*) from unnest($1::text[]) q
cross join lateral penstock.list_jobs(p_queue => q, p_status => 'failed', p_limit => 100) j
where (j ->> 'finished_at')::timestamptz >= $2
"""


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job whose worker has died, and the number of the lost attempt."""

    id: UUID
    attempt: int


class Readings:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._reading = asyncio.Lock()
        self._page_scan_limit = -math.inf
        self._seen: dict[str, Row] = {}

    async def now(self) -> dict[str, Row]:
        """The figures by queue, not older than half a second."""
        async with self._reading:
            if time.monotonic() - self._page_scan_limit > _FRESH_SECONDS:
                self._page_scan_limit = time.monotonic()
                self._seen = await self._read()
            return self._seen

    async def _read(self) -> dict[str, Row]:
        rows = await self._pool.fetch(_NOW, QUEUES, NEWEST)
        return {
            row["queue"]: {
                name: json.loads(row[name]) if row[name] else None
                for name in ("jobs", "ended", "newest")
            }
            | {"waiting_for": row["waiting_for"]}
            for row in rows
        }

    async def clock(self) -> datetime:
        found: datetime = await self._pool.fetchval("select penstock.clock()")
        return found

    async def running(self) -> list[LostJob]:
        rows = await self._pool.fetch(
            "select (j ->> 'id')::uuid as id, (j ->> 'attempt')::integer as attempt"
            " from penstock.list_jobs(p_status => 'running', p_limit => 1000) j"
        )
        return [LostJob(row["id"], row["attempt"]) for row in rows]

    async def without_attempt(self, lost_jobs: list[LostJob]) -> tuple[int, int]:
        """Count the jobs without another attempt: those that wait for it, and finished ones."""
        [row] = await self._pool.fetch(
            _LOST_JOBS, [one.id for one in lost_jobs], [one.attempt for one in lost_jobs]
        )
        return row["waiting"], row["ended"]

    async def has_worker(self, pid: int) -> bool:
        """Whether the worker of this process is alive."""
        found: bool = await self._pool.fetchval(
            "select exists (select from penstock.worker_health"
            " where alive and worker_id like '%-' || $1::text)",
            str(pid),
        )
        return found

    async def waiting(self, *queues: str) -> int:
        """Count waiting jobs in these queues; without any, in all that need the model."""
        found: int = await self._pool.fetchval(
            "select coalesce(sum(queued + scheduled), 0)::integer from penstock.queue_stats"
            " where queue = any ($1)",
            list(queues) or MODEL_QUEUES,
        )
        return found

    async def started_since(self, moment: datetime) -> datetime | None:
        """Return when the first job that needs the model started after this moment."""
        found: datetime | None = await self._pool.fetchval(_STARTED_SINCE, MODEL_QUEUES, moment)
        return found

    async def failed_since(self, moment: datetime) -> int:
        found: int = await self._pool.fetchval(_FAILED_SINCE, MODEL_QUEUES, moment)
        return found
