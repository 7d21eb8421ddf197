"""The database under the machine: one for all examples, emptied between them."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from properties.settings import ACCOUNTS, CREDITS, KIND_OPTIONS, KINDS, LEASE, PLANS, QUEUES

# Everything that a stale write must leave as it is.
_DIGEST = """
select md5(string_agg(row, '|' order by row)) from (
  select 'job' || j::text from penstock.job j
  union all select 'finished' || f::text from penstock.finished f
  union all select 'attempt' || t::text from penstock.attempt t
  union all select 'lane' || l::text from penstock.lane l
  union all select 'account' || a::text from penstock.account a
  union all select 'gate' || g::text from penstock.gate g
  union all select 'ledger' || l::text from penstock.ledger l
  union all select 'resolution' || r::text from penstock.resolution r
  union all select 'circuit' || c::text from penstock.circuit c
  union all select 'alert' || r::text from penstock.alert r
  union all select 'worker' || w::text from penstock.worker w
) everything (row)
"""

_LIVE = """
select j.id, k.name as kind, q.name as queue, a.name as account, j.lane, j.slots_held, j.rank,
  j.status::text, j.attempt, j.failures, j.deferrals, j.crashes, j.max_attempts, j.priority,
  j.worker_id as worker, j.dedupe_key as key, j.run_at, j.expires_at, j.timeout_at, j.deadline_at,
  j.cancel_requested_at as cancel_at, j.retry_of, j.version, j.reserved
from penstock.job j join penstock.kind k on k.id = j.kind_id
join penstock.queue q on q.id = j.queue_id join penstock.account a on a.id = j.account_id
"""

_FINISHED = """
select f.id, k.name as kind, a.name as account, f.status::text, f.attempt, f.failures, f.deferrals,
  f.crashes, f.max_attempts, f.priority, f.dedupe_key as key, f.retry_of, f.retried_by,
  f.reserved,
  coalesce(f.error ->> 'reason', f.error ->> 'class') as reason,
  (to_jsonb(f) - 'retried_by')::text as whole
from penstock.finished f join penstock.kind k on k.id = f.kind_id
join penstock.account a on a.id = f.account_id
"""

_LANES = """
select q.name as queue, a.name as account, l.head, l.open and l.waiting > 0 as open,
  penstock._fair_step(a.weight) as step, k.name as kind, l.waiting
from penstock.lane l join penstock.queue q on q.id = l.queue_id
join penstock.kind k on k.id = l.kind_id
join penstock.account a on a.id = l.account_id
"""

_SETTLED = "select job_id, attempt, outcome from penstock.attempts"
_LATE_RESULTS = "select job_id, attempt from penstock.late_result"
_BALANCES = "select name, balance from penstock.account where id <> 0"
_CHARGED = "select job_id, charged from penstock.resolution"

_EMPTY = """
delete from penstock.job;
delete from penstock.finished;
delete from penstock.attempt;
delete from penstock.late_result;
delete from penstock.idempotency;
delete from penstock.lane;
delete from penstock.worker;
alter table penstock.ledger disable trigger user;
alter table penstock.resolution disable trigger user;
delete from penstock.ledger;
delete from penstock.resolution;
alter table penstock.ledger enable trigger user;
alter table penstock.resolution enable trigger user;
delete from penstock.account where id <> 0;
update penstock.account set running = 0 where id = 0;
update penstock.gate set running = 0, rate_next_at = '-infinity';
delete from penstock.alert;
delete from penstock.circuit;
insert into penstock.circuit (queue_id) select id from penstock.queue;
select penstock.reset_queue(name) from penstock.queue where overrides <> '{}';
select penstock.resume_queue(name) from penstock.queue where paused_at is not null;
update penstock.plan set overrides = '{}' where overrides <> '{}';
select penstock._enforce_plan(name) from penstock.plan
"""


class Seen(NamedTuple):
    """The tables at one moment."""

    live: dict[UUID, Any]
    finished: dict[UUID, Any]
    lanes: list[Any]
    settled: dict[tuple[UUID, int], str]
    late_results: list[tuple[UUID, int]]
    balances: dict[str, int]
    charged: dict[UUID, int]


class World:
    def __init__(self, dsn: str) -> None:
        self._conn: psycopg.Connection[Any] = psycopg.connect(
            dsn, autocommit=True, row_factory=namedtuple_row
        )
        self._app = psycopg.connect(dsn)
        # One class of retention: partitions of a second one would only be read for nothing.
        self._conn.execute("drop table penstock.finished_2")
        self._conn.execute("delete from penstock.retention_class where id = 2")
        for name, options in QUEUES.items():
            kept = {"retention_seconds": 7 * 86400, "retention_failed_seconds": 7 * 86400}
            self.run("select penstock.declare_queue(%s, %s)", name, Jsonb(options | kept))
        for kind, queue in KINDS.items():
            self.run(
                "select penstock.declare_kind(%s, %s, %s)",
                kind,
                queue,
                Jsonb(KIND_OPTIONS.get(kind, {})),
            )
        for plan, options in PLANS.items():
            self.run("select penstock.declare_plan(%s, %s)", plan, Jsonb(options))

    def close(self) -> None:
        self._conn.close()
        self._app.close()

    def run(self, query: str, *values: Any) -> list[Any]:
        return self._conn.execute(query.encode(), values).fetchall()

    def one(self, query: str, *values: Any) -> Any:
        [row] = self.run(query, *values)
        return row[0]

    def empty(self, now: datetime) -> None:
        self.set_clock(now)
        self._conn.execute(_EMPTY.encode())
        for account, plan in ACCOUNTS.items():
            self.run("select penstock.create_account(%s, %s)", account, plan)
            self.run("select penstock.grant_credits(%s, %s)", account, CREDITS)

    def set_clock(self, now: datetime) -> None:
        self._conn.execute("update penstock.test_clock set frozen_at = %s, moved = '0'", [now])

    def read(self) -> Seen:
        with self._conn.pipeline():  # one way there and back
            live, finished, lanes, settled, late_results, balances, charged = (
                self._conn.execute(query)
                for query in (
                    _LIVE,
                    _FINISHED,
                    _LANES,
                    _SETTLED,
                    _LATE_RESULTS,
                    _BALANCES,
                    _CHARGED,
                )
            )
        return Seen(
            {row.id: row for row in live},
            {row.id: row for row in finished},
            lanes.fetchall(),
            {(row.job_id, row.attempt): row.outcome for row in settled},
            [(row.job_id, row.attempt) for row in late_results],
            {row.name: row.balance for row in balances},
            {row.job_id: row.charged for row in charged},
        )

    def digest(self) -> str:
        digest: str = self.one(_DIGEST)
        return digest

    def faults(self) -> list[Any]:
        """Breaches of invariants, and whatever the reconciler had to repair."""
        with self._conn.pipeline():
            broken = self._conn.execute("select * from penstock.check()")
            repaired = self._conn.execute("select * from penstock.reconcile()")
        return broken.fetchall() + repaired.fetchall()

    @contextmanager
    def held(self, accounts: Sequence[str | None]) -> Iterator[None]:
        """An app's open transaction has submitted for these accounts, and goes on."""
        if not accounts:
            yield
            return
        names = [name for name in accounts if name is not None]
        self._app.execute(
            "select from penstock.account where name = any (%s) or (id = 0 and %s)"
            " for no key update",
            [names, None in accounts],
        )
        try:
            yield
        finally:
            self._app.rollback()

    def register(self, kinds: Collection[str] = KINDS) -> int:
        worker: int = self.one(
            "select penstock.register_worker('w', %s, null, %s)", LEASE, sorted(kinds)
        )
        return worker

    def claim(self, worker: int, queue: str, limit: int, *, wait: bool) -> list[Any]:
        return self.run(
            "select * from penstock.claim_jobs(%s, %s, %s, %s)", worker, queue, limit, wait
        )

    def finish(
        self,
        worker: int,
        reported: Sequence[tuple[UUID, int]],
        outcomes: Sequence[str],
        delays: Sequence[Any] | None = None,
        accounts: Sequence[int] | None = None,
    ) -> list[tuple[UUID, str, str | None]]:
        rows = self.run(
            "select job_id, verdict, status::text from penstock.finish_jobs(%s, %s::uuid[],"
            " %s::integer[], %s::text[], %s::jsonb[], %s::jsonb[], %s::interval[], %s::bigint[])",
            worker,
            [job for job, _ in reported],
            [attempt for _, attempt in reported],
            list(outcomes),
            [Jsonb({"of": attempt}) for _, attempt in reported],
            [Jsonb({"class": "reported", "message": ""}) for _ in reported],
            delays and list(delays),
            None if accounts is None else list(accounts),
        )
        return [(row.job_id, row.verdict, row.status) for row in rows]

    def hand_over(self, worker: int, job: UUID, attempt: int, token: str) -> str:
        verdict: str = self.one(
            "select verdict from penstock.hand_over_jobs(%s, %s, %s, %s)",
            worker,
            [job],
            [attempt],
            [token],
        )
        return verdict

    def call_back(self, job: UUID, attempt: int, token: str, outcome: str) -> str:
        verdict: str = self.one(
            "select outcome from penstock.resolve_callbacks(%s, %s, %s, %s, %s::jsonb[])",
            [job],
            [attempt],
            [token],
            [outcome],
            [Jsonb({"of": attempt})],
        )
        return verdict
