"""All data about a finished run: the logs of its witnesses, and the content of the database."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import asyncpg

from fire.logs import OUTPUTS, Ack, Act, Call, Exit, Fault, Message, Sample, Sight

Start = tuple[str, int]  # a job's id, and its attempt


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    tag: str | None
    kind: str
    queue: str
    status: str
    live: bool
    attempt: int
    finished_by_attempt: bool
    retry_of: str | None
    created_at: float
    finished_at: float
    recovery: int  # how many crashes its queue allows
    fails: bool  # deliberately
    has_on_finish: bool  # its kind has a webhook
    images: int | None  # ordered, of a job that is paid by the image
    reserved: int
    charged: int | None  # None: it was not resolved
    error: Mapping[str, Any]
    result: Any

    def __str__(self) -> str:
        return f"job {self.id} ({self.kind} {self.tag}, {self.status} at attempt {self.attempt})"


@dataclass(frozen=True, slots=True)
class Attempt:
    job: str
    attempt: int
    worker: str | None
    outcome: str
    error_class: str | None
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Delivery:
    id: str
    job: str
    event: str
    status: str
    tries: int


@dataclass(frozen=True, slots=True)
class Grant:
    account: str
    ref: str
    amount: int


@dataclass(frozen=True, slots=True)
class Storm:
    """A fault from its begin to its end; one without an end lasted until the last line."""

    fault: str
    begin: float
    end: float
    what: Mapping[str, Any]

    @property
    def workers(self) -> set[str]:
        """Names of the workers that were hit."""
        hit = [self.what, *self.what.get("workers", ())]
        return {one["worker"] for one in hit if "worker" in one}


@dataclass(frozen=True)
class Record:
    folder: Path
    acks: list[Ack]
    acts: list[Act]
    calls: list[Call]
    messages: list[Message]
    faults: list[Fault]
    sights: list[Sight]
    samples: list[Sample]
    exits: list[Exit]
    rows: list[Job]
    attempts: list[Attempt]
    deliveries: list[Delivery]
    grants: list[Grant]
    done: list[Start]  # rows that `on_finish` of paint has written
    pending_on_finish: int  # on_finish callbacks that have not run
    late_results: int  # results that came too late
    plain_calls: int  # calls for a model that belongs to no attempt

    @cached_property
    def jobs(self) -> dict[str, Job]:
        return {job.id: job for job in self.rows}

    @cached_property
    def by_tag(self) -> Mapping[str, list[Job]]:
        found: dict[str, list[Job]] = defaultdict(list)
        for job in self.rows:
            if job.tag is not None:
                found[job.tag].append(job)
        return found

    @cached_property
    def settled(self) -> dict[Start, Attempt]:
        return {(row.job, row.attempt): row for row in self.attempts}

    @cached_property
    def attempts_of(self) -> Mapping[str, list[Attempt]]:
        found: dict[str, list[Attempt]] = defaultdict(list)
        for row in sorted(self.attempts, key=lambda one: one.attempt):
            found[row.job].append(row)
        return found

    @cached_property
    def starts(self) -> dict[Start, Act]:
        """The first beginning of each attempt in the handlers' log."""
        return self._first("start")

    @cached_property
    def ends(self) -> dict[Start, Act]:
        return self._first("end", "cancelled")

    @cached_property
    def storms(self) -> list[Storm]:
        last = max((fault.at for fault in self.faults), default=0.0)
        ends = {fault.id: fault for fault in self.faults if fault.word == "end"}
        return [
            Storm(
                fault.fault,
                fault.at,
                ends[fault.id].at if fault.id in ends else last,
                (ends[fault.id].what if fault.id in ends else {}) | fault.what,
            )
            for fault in self.faults
            if fault.word == "begin"
        ]

    @cached_property
    def noted_kinds(self) -> set[str]:
        """Kinds whose handlers log their beginnings."""
        return {self.jobs[job].kind for job, _ in self.starts if job in self.jobs}

    @cached_property
    def outputs(self) -> list[Path]:
        return sorted((self.folder / OUTPUTS).glob("*.log"))

    def _first(self, *words: str) -> dict[Start, Act]:
        found: dict[Start, Act] = {}
        for act in self.acts:
            if act.word in words:
                found.setdefault((act.job, act.attempt), act)
        return found


async def read(folder: Path, conn: asyncpg.Connection) -> Record:
    calls = Call.read(folder)
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        return Record(
            folder=folder,
            acks=Ack.read(folder),
            acts=Act.read(folder),
            calls=[call for call in calls if call.start is not None],
            messages=Message.read(folder),
            faults=Fault.read(folder),
            sights=Sight.read(folder),
            samples=Sample.read(folder),
            exits=Exit.read(folder),
            rows=[_job(row) for row in await conn.fetch(_JOBS)],
            attempts=[Attempt(**dict(row)) for row in await conn.fetch(_ATTEMPTS)],
            deliveries=[Delivery(**dict(row)) for row in await conn.fetch(_DELIVERIES)],
            grants=[Grant(**dict(row)) for row in await conn.fetch(_GRANTS)],
            done=await _done(conn),
            pending_on_finish=await conn.fetchval(
                "select count(*) from penstock.pending_on_finish"
            ),
            late_results=await conn.fetchval("select count(*) from penstock.late_result"),
            plain_calls=sum(call.start is None for call in calls),
        )


def _job(row: asyncpg.Record) -> Job:
    fields: dict[str, Any] = dict(row) | {"error": row["error"] or {}}
    return Job(**fields)


async def _done(conn: asyncpg.Connection) -> list[Start]:
    if await conn.fetchval("select to_regclass('public.fire_done') is null"):
        return []
    rows: Iterable[asyncpg.Record] = await conn.fetch(
        "select job_id::text, attempt from public.fire_done"
    )
    return [(row["job_id"], row["attempt"]) for row in rows]


_JOBS = """
select j.id::text, j.payload ->> 'tag' as tag, k.name as kind, q.name as queue,
  j.status::text, j.live, j.attempt, j.finished_by_attempt, j.retry_of::text,
  extract(epoch from j.created_at)::float8 as created_at,
  coalesce(extract(epoch from j.finished_at)::float8, 0) as finished_at, q.recovery,
  coalesce((j.payload ->> 'fails')::boolean, false) as fails,
  k.webhook is not null as has_on_finish,
  (j.payload ->> 'images')::integer as images, j.reserved, r.charged, j.error, j.result
from (
  select id, payload, kind_id, queue_id, status, attempt, retry_of, error, created_at, reserved,
    true as live, false as finished_by_attempt, null::timestamptz as finished_at,
    null::jsonb as result
  from penstock.job
  union all
  select id, payload, kind_id, queue_id, status, attempt, retry_of, error, created_at, reserved,
    false, finished_by_attempt, finished_at, result
  from penstock.finished
) j
join penstock.queue q on q.id = j.queue_id
join penstock.kind k on k.id = j.kind_id
left join penstock.resolution r on r.job_id = j.id
"""
_ATTEMPTS = """
select t.job_id::text as job, t.attempt, w.name as worker, t.outcome,
  t.error ->> 'class' as error_class,
  extract(epoch from t.started_at)::float8 as started_at,
  extract(epoch from t.ended_at)::float8 as ended_at
from penstock.attempts t left join penstock.worker w on w.id = t.worker_id
"""
_DELIVERIES = """
select d.id::text, d.job_id::text as job, d.event, penstock._delivery_status(d) as status, d.tries
from penstock.delivery d
"""
_GRANTS = """
select a.name as account, l.ref, l.amount
from penstock.ledger l join penstock.account a on a.id = l.account_id
where l.kind = 'grant' and l.ref is not null
"""
