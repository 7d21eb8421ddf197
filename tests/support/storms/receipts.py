"""The answers that the actors of a storm over credits got, to compare the database with.

It believes only answers of committed calls. The effect of a cut call is not known until it is
repeated with its key or its reference. A call that cannot be repeated stays in doubt: it took
effect as a whole, or not at all.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from support.storms.referee import FINAL, Fate

FIXED_PRICE = 7
PRICE_OF_QUALITY = {"standard": 1, "high": 3}
PRICE_EACH = 2
SPLIT_MOST = 4


def price_of(kind: str, payload: dict[str, Any]) -> int:
    """The price of a job, computed independently; `cost` is a price that its caller gave."""
    if "cost" in payload:
        return int(payload["cost"])
    match kind:
        case "fixed":
            return FIXED_PRICE
        case "table":
            return int(payload["images"]) * PRICE_OF_QUALITY[payload["quality"]]
        case "split":
            return int(payload["images"]) * PRICE_EACH
    raise AssertionError(kind)


def charge_of(kind: str, payload: dict[str, Any], status: str, units: int | None) -> int:
    """How much of it is charged for such an outcome."""
    price = price_of(kind, payload)
    if status == "succeeded" and units is None:
        return price
    if status == "failed" or units is None:
        return 0
    if kind in ("table", "split"):
        images: int = payload["images"]
        return price * min(units, images) // images
    return min(price, units)


@dataclass
class Request:
    """A submit: the jobs that were requested, and their prices."""

    wanted: Counter[tuple[str, int]]
    fate: Fate = Fate.IN_DOUBT
    jobs: Sequence[UUID] = ()


@dataclass
class Entry:
    """A grant, a deduction or the refund of one, by its reference."""

    amount: int
    fate: Fate = Fate.IN_DOUBT
    is_loose: bool = False  # a call of it was cut: it may take effect after others were refused


@dataclass
class End:
    status: str
    charged: int | None  # if the actor that finished it knows


class Receipts:
    def __init__(self) -> None:
        self.requests: list[Request] = []  # the index is the tag in the payloads
        self.entries: dict[tuple[str, str, str], Entry] = {}  # by account, kind and reference
        self.retries: dict[UUID, UUID] = {}  # jobs that were submitted once more, by the new one
        self.starts: dict[UUID, int] = {}  # the latest attempt of each job
        self.ends: dict[UUID, End] = {}
        self._shown: dict[UUID, str] = {}
        self._successes: set[tuple[UUID, int]] = set()  # attempts that were reported to have one
        self.jobs: list[UUID] = []  # accepted, for actors that cancel one
        self.batches: list[UUID] = []
        self.seen: Counter[str] = Counter()
        self.slowest = 0.0  # seconds until a worker's report had an answer

    def asks(self, wanted: Sequence[tuple[str, int]], tag: int) -> Request:
        """Record a request before it is sent: from then on its jobs may exist."""
        assert tag == len(self.requests)
        self.requests.append(Request(Counter(wanted)))
        return self.requests[tag]

    def accepted(self, request: Request, jobs: Sequence[UUID]) -> None:
        assert len(set(jobs)) == request.wanted.total(), f"{request} was answered with {jobs}"
        request.fate, request.jobs = Fate.COMMITTED, jobs
        self.jobs.extend(jobs)
        self.seen["submits"] += 1
        self.seen["jobs"] += len(jobs)

    def refused(self, error: asyncpg.PostgresError, detail: dict[str, Any]) -> None:
        """A 402 has to be true: it names a balance that is too small."""
        self.seen[f"refused, {detail['code']}"] += 1
        if error.sqlstate == "PS402":
            assert 0 <= detail["balance"] < detail["required"], detail

    def books(self, account: str, kind: str, ref: str, amount: int) -> Entry:
        """Record an entry before it is sent; a repetition finds the first one."""
        entry = self.entries.setdefault((account, kind, ref), Entry(amount))
        assert entry.amount == amount
        return entry

    def started(self, job: UUID, attempt: int) -> None:
        assert job not in self.ends, f"{job} started after it had finished: {self.ends[job]}"
        assert attempt > self.starts.get(job, 0), f"{job} started twice as {attempt}"
        self.starts[job] = attempt

    def reports(self, job: UUID, attempt: int, outcome: str) -> None:
        """An actor is about to report an outcome."""
        if outcome == "succeeded":
            self._successes.add((job, attempt))

    def finished(
        self, job: UUID, status: str, charged: int | None, attempt: int | None = None
    ) -> None:
        """A report finished it: the only one, and not of an earlier attempt."""
        if status not in FINAL:
            return
        latest = self.starts.get(job)
        assert attempt in (None, latest), f"attempt {attempt} of {job} finished {latest}"
        before = self.ends.get(job)
        assert before is None, f"{job} finished as {before} and again as {status}"
        self.ends[job] = End(status, charged)
        self.seen[f"finished, {status}"] += 1

    def shown(self, job: UUID, status: str) -> None:
        """A reader saw its status: once finished, it stays as it is."""
        if status in FINAL:
            before = self._shown.setdefault(job, status)
            assert before == status, f"{job} was {before} and is {status}"

    async def hold(self, conn: asyncpg.Connection) -> None:
        """Everything that was answered is in the database, once, and nothing else is."""
        rows = await conn.fetch(_JOBS)
        self._hold_requests(rows)
        self._hold_ends(rows)
        self._hold_entries(await conn.fetch(_ENTRIES))

    def _hold_requests(self, rows: Sequence[asyncpg.Record]) -> None:
        found: dict[int, list[asyncpg.Record]] = {}
        retried = {}
        for row in rows:
            assert [row["reserved"]] == row["booked"], f"reserved once, at its price: {row}"
            if row["retry_of"] is None:
                found.setdefault(row["tag"], []).append(row)
            else:
                retried[row["id"]] = row["retry_of"]
        for tag, request in enumerate(self.requests):
            there = found.pop(tag, [])
            what = f"{request} left {there}"
            match request.fate:
                case Fate.COMMITTED:
                    assert {row["id"] for row in there} == set(request.jobs), what
                case Fate.ROLLED_BACK:
                    assert not there, what
            if there:
                prices = Counter((row["account"], row["reserved"]) for row in there)
                assert prices == request.wanted, what
        assert not found, f"jobs that no actor requested: {found}"
        assert self.retries.items() <= retried.items()

    def _hold_ends(self, rows: Sequence[asyncpg.Record]) -> None:
        by_id = {row["id"]: row for row in rows}
        for job, end in self.ends.items():
            row = by_id[job]
            assert row["status"] == end.status, f"{job}: the answer was {end}: {row}"
            # A job that was retried by hand costs what its kind costs today.
            if end.charged is not None and row["retry_of"] is None:
                assert row["charged"] == end.charged, f"{job}: the answer was {end}: {row}"
                self.seen["charges known"] += 1
        for row in rows:
            if row["status"] == "succeeded":
                assert (row["id"], row["attempt"]) in self._successes, f"no such success: {row}"
        for job, status in self._shown.items():
            assert by_id[job]["status"] == status, f"{job} was seen as {status}: {by_id[job]}"

    def _hold_entries(self, rows: Sequence[asyncpg.Record]) -> None:
        found = Counter((row["account"], row["kind"], row["ref"], row["amount"]) for row in rows)
        for key, entry in self.entries.items():
            there = found.pop((*key, entry.amount), 0)
            right = {1} if entry.fate is Fate.COMMITTED else {0, int(entry.is_loose)}
            assert there in right, f"{key} {entry}: {there} times"
        assert not found, f"lines that no actor requested: {found}"


# Every job with the credits that the ledger reserved for it, and what was charged in the end.
_JOBS = """
select (p.payload ->> 'tag')::integer as tag, p.id, p.retry_of, p.status::text, p.attempt,
  p.reserved, a.name as account, r.charged, b.booked
from (
  select j.id, j.account_id, j.retry_of, j.status, j.attempt, j.reserved, j.payload
  from penstock.job j
  union all
  select f.id, f.account_id, f.retry_of, f.status, f.attempt, f.reserved, f.payload
  from penstock.finished f
) p
join penstock.account a on a.id = p.account_id
left join penstock.resolution r on r.job_id = p.id
left join (
  select l.job_id, l.account_id, array_agg(-l.amount) as booked from penstock.ledger l
  where l.kind = 'reserve' group by l.job_id, l.account_id
) b on b.job_id = p.id and b.account_id = p.account_id
"""
_ENTRIES = """
select a.name as account, l.kind, l.ref, abs(l.amount) as amount
from penstock.ledger l join penstock.account a on a.id = l.account_id where l.job_id is null
"""
