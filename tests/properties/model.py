"""A second implementation of the lifecycle: the expected jobs, workers and limits after each step.

Nothing here is a copy of the SQL. The model has no lanes and no counters; it counts running jobs.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import floor
from typing import NamedTuple
from uuid import UUID

from properties.settings import (
    ACCOUNTS,
    CANCEL_GRACE,
    CREDITS,
    EPOCH,
    KIND_OPTIONS,
    KINDS,
    LEASE,
    PLANS,
    QUEUES,
    TIMEOUT_GRACE,
    backoff,
    recovery_wait,
)

WAITING = ("scheduled", "queued")
STARTED = ("running", "awaiting")
CHARGED = ("retry", "timed_out")
CRASHES = ("stuck", "lost")


class Item(NamedTuple):
    """The request of a caller."""

    kind: str
    account: str | None
    key: str | None
    priority: int | None
    delay: timedelta | None
    expires: timedelta | None
    max_attempts: int | None
    price: int | None = None


@dataclass
class Job:
    id: UUID
    kind: str
    account: str | None
    key: str | None
    priority: int
    max_attempts: int
    run_at: datetime
    expires_at: datetime | None
    status: str
    attempt: int = 0
    failures: int = 0
    deferrals: int = 0
    crashes: int = 0
    worker: int | None = None
    token: str | None = None
    timeout_at: datetime | None = None
    deadline_at: datetime | None = None
    cancel_at: datetime | None = None
    retry_of: UUID | None = None
    retried_by: UUID | None = None
    reason: str | None = None
    reserved: int = 0
    # The outcome of each settled attempt, by its number.
    settled: dict[int, str] = field(default_factory=dict)

    @property
    def queue(self) -> str:
        return KINDS[self.kind]

    @property
    def live(self) -> bool:
        return self.status in WAITING + STARTED


@dataclass
class Worker:
    id: int
    beat_at: datetime
    kinds: Collection[str] = frozenset(KINDS)
    lost: bool = False
    stopped: bool = False
    lost_jobs: int | None = None

    @property
    def gone(self) -> bool:
        return self.lost or self.stopped


@dataclass(frozen=True)
class Start:
    """An attempt and its worker; kept after it was settled, to report it again as a stale one."""

    job: UUID
    attempt: int
    worker: int
    account: int | None


Skip = Callable[[Job], bool]


class Model:
    def __init__(self) -> None:
        self.now = EPOCH
        self.jobs: dict[UUID, Job] = {}
        self.workers: dict[int, Worker] = {}
        self.starts: dict[tuple[UUID, int], Start] = {}
        self.tokens: dict[tuple[UUID, int], str] = {}
        self.late_results: set[tuple[UUID, int]] = set()
        self.paused: set[str] = set()
        self.widths = {name: options.get("concurrency") for name, options in QUEUES.items()}
        self.plan_of = dict(ACCOUNTS)
        self.balance = dict.fromkeys(ACCOUNTS, CREDITS)
        self.plans: dict[str, int | None] = {
            name: options.get("concurrency") for name, options in PLANS.items()
        }
        self.next_at = dict.fromkeys(QUEUES, EPOCH)

    # Reading

    def live(self, *statuses: str) -> list[Job]:
        wanted = statuses or WAITING + STARTED
        return [job for job in self.jobs.values() if job.status in wanted]

    def finished(self) -> list[Job]:
        return [job for job in self.jobs.values() if not job.live]

    def slots(self, account: str | None) -> int | None:
        """How many more jobs the account may start; None: as many as it likes."""
        limit = self.plans[self.plan_of[account]] if account else None
        if limit is None:
            return None
        return max(0, limit - sum(job.account == account for job in self.live(*STARTED)))

    def room(self, queue: str, limit: int) -> int:
        """How many jobs the queue lets start now, at most `limit`."""
        width = self.widths[queue]
        if width is not None:
            limit = min(limit, width - sum(job.queue == queue for job in self.live(*STARTED)))
        if queue == "paced":
            ahead = max(self.next_at[queue], self.now) - self.now
            limit = min(limit, floor((2 * PACE - ahead) / PACE))
        return max(0, limit)

    def twin(self, kind: str, account: str | None, key: str | None) -> Job | None:
        for job in self.live():
            if key is not None and (job.kind, job.account, job.key) == (kind, account, key):
                return job
        return None

    # Actions of callers

    def submit(self, job: UUID, item: Item) -> Job:
        run_at = self.now + (item.delay or timedelta(0))
        default: int = KIND_OPTIONS.get(item.kind, QUEUES[KINDS[item.kind]])["attempts"]
        self.jobs[job] = Job(
            job,
            item.kind,
            item.account,
            item.key,
            item.priority or 0,
            item.max_attempts or default,
            run_at,
            run_at + item.expires if item.expires else None,
            "scheduled" if run_at > self.now else "queued",
            reserved=item.price or 0,
        )
        if item.account:
            self.balance[item.account] -= item.price or 0
        return self.jobs[job]

    def charged(self, job: Job) -> int:
        """What of a finished job's price was kept."""
        return job.reserved if job.status == "succeeded" else 0

    def _refund(self, job: Job) -> None:
        if job.account:
            self.balance[job.account] += job.reserved - self.charged(job)

    def cancel(self, job: Job) -> None:
        if job.status in WAITING:
            job.status, job.reason = "cancelled", "cancelled"
            self._refund(job)
        elif job.live:
            job.cancel_at = job.cancel_at or self.now

    # Actions of workers

    def start(self, job: Job, worker: int, account: int | None) -> None:
        options = QUEUES[job.queue]
        job.status, job.attempt, job.worker = "running", job.attempt + 1, worker
        timeout = timedelta(seconds=options["timeout_seconds"])
        stuck = timedelta(seconds=options["stuck_after_seconds"])
        job.timeout_at = self.now + timeout
        job.deadline_at = self.now + min(timeout + TIMEOUT_GRACE, stuck)
        job.expires_at = None
        if job.queue == "paced":
            self.next_at["paced"] = max(self.next_at["paced"], self.now) + PACE
        self.starts[job.id, job.attempt] = Start(job.id, job.attempt, worker, account)

    def hand_over(self, job: Job, token: str) -> None:
        assert job.timeout_at
        stuck = timedelta(seconds=QUEUES[job.queue]["stuck_after_seconds"])
        job.status, job.worker, job.token = "awaiting", None, token
        job.deadline_at = min(job.timeout_at, self.now + stuck)
        self.tokens[job.id, job.attempt] = token

    def end_start(self, job: Job, outcome: str, delay: timedelta | None = None) -> None:
        final, reason = self._final(job, outcome)
        number = job.attempt
        job.failures += outcome in (*CHARGED, "failed")
        if final is None:
            job.deferrals += outcome == "deferred"
            job.crashes += outcome in CRASHES
            job.run_at = self.now + (self._wait(job, outcome) if delay is None else delay)
            job.status = "scheduled" if job.run_at > self.now else "queued"
            shown = {"retry": "retried", "lost_with_others": "lost"}
            job.settled[number] = shown.get(outcome, outcome)
        else:
            job.status, job.reason, job.settled[number] = final, reason, final
            self._refund(job)
        job.worker = job.token = job.timeout_at = job.deadline_at = None

    def _final(self, job: Job, outcome: str) -> tuple[str | None, str | None]:
        """Return the status and reason if this attempt finishes the job, else None."""
        if outcome in ("succeeded", "failed"):
            return outcome, {"succeeded": None, "failed": "reported"}[outcome]
        if outcome == "cancelled" or job.cancel_at:
            return "cancelled", "cancelled"
        if outcome in CHARGED and job.failures + 1 >= job.max_attempts:
            return "failed", "attempts_exhausted"
        if outcome in CRASHES and job.crashes >= QUEUES[job.queue]["recovery"]:
            return "failed", "stuck_exhausted"
        return None, None

    def _wait(self, job: Job, outcome: str) -> timedelta:
        if outcome in CHARGED:
            return backoff(job.queue, job.failures)
        if outcome == "deferred":
            return timedelta(seconds=min(60, 2 ** (job.deferrals - 1)))
        return recovery_wait(job.crashes) if outcome in CRASHES else timedelta(0)

    # What upkeep does. `skip`: jobs it must leave alone, since an app holds their account.

    def expire(self, queue: str, skip: Skip) -> list[Job]:
        late = [
            job
            for job in self.live(*WAITING)
            if job.queue == queue and job.expires_at and job.expires_at <= self.now
            if not skip(job)
        ]
        for job in late:
            job.status, job.reason = "failed", "expired"
            self._refund(job)
        return late

    def stage(self, queue: str, skip: Skip) -> list[Job]:
        due = [
            job
            for job in self.live("scheduled")
            if job.queue == queue and job.run_at <= self.now and not skip(job)
        ]
        for job in due:
            job.status = "queued"
        return due

    def recover(self, skip: Skip) -> dict[UUID, str]:
        """Settle attempts that no worker settles; return the outcome of each."""
        for worker in self.workers.values():
            if not worker.gone and worker.beat_at + LEASE < self.now:
                worker.lost = True
            if worker.gone and worker.lost_jobs is None:
                worker.lost_jobs = len(self.held_by([worker.id]))
        found = {
            job.id: why for job in self.live(*STARTED) if (why := self._due(job)) and not skip(job)
        }
        for job_id, why in found.items():
            self.end_start(self.jobs[job_id], why)
        return found

    def held_by(self, workers: Collection[int | None]) -> list[Job]:
        return [job for job in self.live("running") if job.worker in workers]

    def _due(self, job: Job) -> str | None:
        """Return how upkeep should settle this attempt now; None if it may run on."""
        assert job.deadline_at
        assert job.timeout_at
        grace = CANCEL_GRACE if job.status == "running" else timedelta(0)
        if job.cancel_at and job.cancel_at + grace <= self.now:
            return "cancelled"
        worker = self.workers[job.worker] if job.worker else None
        if worker and worker.gone:
            if worker.stopped:
                return "released"
            return "lost_with_others" if (worker.lost_jobs or 0) > 1 else "lost"
        if job.deadline_at <= self.now:
            return "timed_out" if job.timeout_at <= self.now else "stuck"
        return None

    def add_late_result(self, job: UUID, attempt: int) -> None:
        """Record a late result, for an attempt that was settled otherwise."""
        if self.jobs[job].settled.get(attempt, "succeeded") != "succeeded":
            self.late_results.add((job, attempt))


PACE = timedelta(seconds=10)
