"""Jobs: one method per SQL function of the lifecycle. Nothing is decided here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from penstock.db.adapters.caller_connection import Fetch, borrow
from penstock.engine.encoding.encode import encode
from penstock.engine.jobs.attempts import CLAIM, FINISH, Claimed, Told, finish_arguments, tell
from penstock.engine.jobs.info import JobInfo
from penstock.engine.jobs.outcomes import Outcome
from penstock.engine.jobs.requests import Batch, NewJob, submit_arguments
from penstock.engine.states import JobStatus
from penstock.errors import Invalid, Misconfigured


class Submitted(NamedTuple):
    """An accepted job: its id, or its live twin's when `deduplicated`."""

    id: UUID
    status: JobStatus
    deduplicated: bool
    replayed: bool = False
    position: int | None = None
    """1: next to start. None of one of many, of one that does not wait, and where to know it would
    take too long."""
    eta_seconds: float | None = None
    """The probable wait until it starts."""
    balance: int | None = None
    """The account's credits after the submit; None of a job of nobody's."""
    batch: UUID | None = None
    ids: tuple[UUID, ...] = ()
    """Of a kind with `split`: all jobs that the request became, in order; `id` is the first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a report: `done`, `stale` (no longer ours, nothing changed) or `busy`."""

    job_id: UUID
    verdict: str
    status: JobStatus | None


class Jobs:
    def __init__(self, fetch: Fetch, *, commits: bool = False) -> None:
        """`commits`: statements given to `fetch` are in no transaction, and may commit."""
        self._fetch = fetch
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

        A repetition with the same idempotency key gets the first one's job, `replayed`. `wake`: the
        queue whose resting workers are told with the commit; all such commits wait in one line.
        Where it can, it tells them before the disk has the job, and comes back when it has: after
        an error of the connection the job may be there, as it may after any.
        """
        arguments = submit_arguments(job, encode, idempotency_key, scope, wake)
        row = await self._submit(arguments, conn, early=wake is not None and conn is None)
        return Submitted(
            _uuid(row["id"]),
            JobStatus(row["status"]),
            row["deduplicated"],
            row["replayed"],
            row["place"],
            row["eta_seconds"],
            row["balance"],
            None if row["batch"] is None else _uuid(row["batch"]),
            tuple(UUID(one) for one in row["ids"] or ()),
        )

    async def _submit(self, arguments: Sequence[Any], conn: Any, *, early: bool) -> Any:
        if early and self._commits:
            try:
                [row] = await self._fetch(_SUBMIT_WAKING, arguments)
            except Misconfigured as error:
                if not isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError):
                    raise
                # Granted before there was such a procedure: nothing was accepted, and the other
                # way needs no more rights than it did.
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
        """The same for columns that are checked and ready; `own`: with a key of their account."""
        kinds = set(batch.kinds)
        # A few arrays instead of as many rows as jobs: a tenth of the time of a large batch.
        [row] = await self._on(conn)(
            "select array_agg(id order by ordinal) as ids,"
            " array_agg(cast(status as text) order by ordinal) as statuses,"
            " array_agg(deduplicated order by ordinal) as deduplicated,"
            " array_agg(balance order by ordinal) as balances,"
            " array_agg(batch order by ordinal) as batches from penstock.submit_many("
            # Most batches are of one kind: a million copies of its name need not go over the wire.
            "coalesce(cast($1 as text[]),"
            " array_fill(cast($16 as text), array[cast($17 as integer)])),"
            " cast(cast($2 as text[]) as jsonb[]), cast($3 as text[]),"
            " cast($4 as text[]), cast($5 as text[]), cast($6 as integer[]),"
            " cast($7 as timestamptz[]), cast($8 as interval[]), cast($9 as integer[]),"
            " cast($10 as interval[]), cast($11 as interval[]),"
            " cast(cast($12 as text[]) as jsonb[]), cast($13 as bigint[]), cast($14 as boolean),"
            " p_webhook_urls => cast($15 as text[]), p_own => cast($18 as boolean))",
            (
                batch.kinds if len(kinds) > 1 else None,
                batch.payloads,
                batch.account,
                batch.dedupe_key,
                batch.topic,
                batch.priority,
                batch.run_at,
                batch.delay,
                batch.max_attempts,
                batch.timeout,
                batch.expires,
                batch.metadata,
                batch.price,
                batched,
                batch.webhook_url,
                next(iter(kinds), None),
                len(batch.payloads),
                own,
            ),
        )
        found = (row[one] for one in ("statuses", "deduplicated", "balances"))
        ids, batches = _uuids(row["ids"]), _uuids(row["batches"])
        return [
            Submitted(job, _STATUSES[status], deduplicated, balance=balance, batch=batch_id)
            for job, batch_id, status, deduplicated, balance in zip(
                ids, batches, *found, strict=True
            )
        ]

    async def claim(
        self,
        worker: int,
        queue: str,
        limit: int,
        *,
        job: UUID | None = None,
    ) -> list[Claimed]:
        """Start up to `limit` due jobs for a worker that has as many free slots.

        A first try skips whatever is locked. Where that leaves it empty-handed although open
        lanes wait (many submitters on one account can do that), a second one waits for a moment.
        With `job`, that one and no other, if it may start now.
        """
        for wait in (False, True):
            rows = await self._fetch(CLAIM, (worker, queue, limit, wait, job))
            if rows:
                return [Claimed(*row.values()) for row in rows]
        return []

    async def finish(
        self, worker: int, ended: Sequence[tuple[Claimed, Outcome]], *, conn: Any = None
    ) -> list[Verdict]:
        """Report how starts ended, any number in one transaction. Safe to repeat.

        `stale` means the job was given to another attempt, or has ended: drop what it produced.
        `busy` means an app's open transaction holds the job's account: report it again.
        """
        told = [tell(job, outcome, index=index) for index, (job, outcome) in enumerate(ended)]
        return await self.finish_told(worker, told, conn=conn) if told else []

    async def finish_told(
        self,
        worker: int,
        told: Sequence[Told],
        *,
        conn: Any = None,
        all_done: bool = True,
        wait: timedelta | None = None,
    ) -> list[Verdict]:
        """The same for rows that are ready. Without `all_done`, what took effect is left out.

        `wait`: how long for each account that others hold, before the answer `busy`.
        """
        sql = FINISH if all_done else f"{FINISH} where verdict <> 'done'"
        rows = await self._on(conn)(sql, finish_arguments(worker, told, wait=wait))
        return [_verdict(row) for row in rows]

    async def cancel(self, job_id: UUID, *, conn: Any = None) -> JobInfo:
        """Cancel a job that waits, ask a running one to stop; a finished one stays as it is."""
        return await self._job(
            "select penstock.cancel_job(cast($1 as uuid)) as found", job_id, conn
        )

    async def retry(self, job_id: UUID, *, conn: Any = None) -> JobInfo:
        """Submit a finished job again as a new one, or run a scheduled one now."""
        return await self._job("select penstock.retry_job(cast($1 as uuid)) as found", job_id, conn)

    async def read(self, job_id: UUID, *, conn: Any = None) -> JobInfo:
        """The job as every reader sees it."""
        return await self._job("select penstock.read_job(cast($1 as uuid)) as found", job_id, conn)

    async def read_batch(self, batch_id: UUID, *, conn: Any = None) -> dict[str, Any]:
        """How far the jobs that were submitted together are, as one."""
        return await self._one(
            "select penstock.read_batch(cast($1 as uuid)) as found", batch_id, conn
        )

    async def cancel_batch(self, batch_id: UUID, *, conn: Any = None) -> dict[str, Any]:
        """Cancel each of them that has not ended."""
        return await self._one(
            "select penstock.cancel_batch(cast($1 as uuid)) as found", batch_id, conn
        )

    async def refuse_computed(self, batch: Batch, of: Sequence[int]) -> None:
        """Refuse those of a batch whose kind needs the app's code, of which this has none."""
        prices = batch.price
        try:
            await self._fetch(
                "select penstock.refuse_computed($1, $2)",
                (
                    [batch.kinds[index] for index in of],
                    [prices is not None and prices[index] is not None for index in of],
                ),
            )
        except Invalid as error:
            error.members["index"] = of[error.members["index"]]
            raise

    async def queues_of(self, kinds: Sequence[str]) -> list[str]:
        """Where jobs of these kinds wait."""
        rows = await self._fetch("select queue from penstock.queues_of($1) queue", (list(kinds),))
        return [row["queue"] for row in rows]

    async def wake(self, queues: Sequence[str]) -> None:
        """Tell resting workers that these queues have work. After commit; a hint only."""
        await self._fetch("select penstock.wake_workers($1)", (list(queues),))

    async def _job(self, sql: str, job_id: UUID, conn: Any) -> JobInfo:
        return JobInfo.from_json(await self._one(sql, job_id, conn))

    async def _one(self, sql: str, its_id: UUID, conn: Any) -> dict[str, Any]:
        [row] = await self._on(conn)(sql, (its_id,))
        found = row["found"]
        # Some drivers leave jsonb as text.
        answer: dict[str, Any] = json.loads(found) if isinstance(found, str) else found
        return answer

    def _on(self, conn: Any) -> Fetch:
        return self._fetch if conn is None else borrow(conn)


_STATUSES = {status.value: status for status in JobStatus}

_ASKED = (
    "cast($1 as text), cast(cast($2 as text) as jsonb), cast($3 as text), cast($4 as text),"
    " cast($5 as text), cast($6 as integer), cast($7 as timestamptz), cast($8 as interval),"
    " cast($9 as integer), cast($10 as interval), cast($11 as interval),"
    " cast(cast($12 as text) as jsonb), cast($13 as text), cast($14 as text), cast($15 as text),"
    " cast($16 as bigint), cast($17 as text)"
)
_SUBMIT = (
    "select id, status::text, deduplicated, replayed, place, eta_seconds, balance, batch,"  # noqa: S608
    f" cast(ids as text[]) as ids from penstock.submit_one({_ASKED})"
)
# With a place for each of its answers.
_SUBMIT_WAKING = f"call penstock.submit_waking({_ASKED}{', null' * 9})"


def _verdict(row: Mapping[str, Any]) -> Verdict:
    status = row["status"]
    return Verdict(row["job_id"], row["verdict"], JobStatus(status) if status else None)


def _uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


def _uuids(values: list[Any]) -> list[Any]:
    """A column of them, as one driver or another gives it; None stays None."""
    kinds = set(map(type, values)) - {type(None)}
    if all(issubclass(kind, UUID) for kind in kinds):
        return values
    return [None if value is None else _uuid(value) for value in values]
