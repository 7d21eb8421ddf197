"""The invariants after every step of any kind."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from properties.model import Job, Model, Worker
from properties.settings import ACCOUNTS, KINDS
from properties.world import World

T = TypeVar("T")

TICK = timedelta(milliseconds=1)
DRAIN_ROUNDS = 60

SAME = (
    *("kind", "account", "status", "attempt", "failures", "deferrals", "crashes"),
    *("max_attempts", "priority", "key", "retry_of", "reserved"),
)
SAME_LIVE = (*SAME, "worker", "run_at", "expires_at", "timeout_at", "deadline_at", "cancel_at")
SAME_FINISHED = (*SAME, "retried_by")

# The index of one of several, modulo their number.
which = st.integers(0, 11)
# Usually no app has locked an account.
held_accounts = st.sampled_from([(), (), (), *((name,) for name in (*ACCOUNTS, None))])


def pick(candidates: Sequence[T], n: int) -> T:
    return candidates[n % len(candidates)]


def refusal(call: Callable[[], Any]) -> str | None:
    """The code with which the database refused, or None."""
    try:
        call()
    except psycopg.DatabaseError as error:
        return error.sqlstate
    return None


class Lifecycle(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.model = Model()
        self.ranks: dict[UUID, int] = {}
        self.versions: dict[UUID, int] = {}
        self.history: dict[UUID, str] = {}
        world.empty(self.model.now)
        self.sound = True
        self.read()

    def read(self) -> None:
        self.seen = self.world.read()

    def move(self, by: timedelta) -> None:
        self.model.now += by
        self.world.set_clock(self.model.now)

    def add_worker(self, kinds: Collection[str] = KINDS) -> int:
        worker = self.world.register(kinds)
        self.model.workers[worker] = Worker(worker, self.model.now, kinds)
        return worker

    @contextmanager
    def nothing_changed(self) -> Iterator[None]:
        before = self.world.digest()
        yield
        assert self.world.digest() == before, "a write that should be void changed something"

    def waits_behind(self, held: Collection[str | None]) -> Callable[[Job], bool]:
        """Waiting jobs in lanes of locked accounts, which no statement may change."""
        return lambda job: job.account in held and self.seen.live[job.id].lane >= 0

    def runs_behind(self, held: Collection[str | None]) -> Callable[[Job], bool]:
        """Started jobs with a slot or reserved credits of a locked account."""
        return lambda job: (
            job.account in held and (self.seen.live[job.id].slots_held >= 2 or job.reserved > 0)
        )

    def pays_behind(self, held: Collection[str | None]) -> Callable[[Job], bool]:
        """Waiting jobs that cannot finish: in a lane of a locked account, or with its credits."""
        in_lane = self.waits_behind(held)
        return lambda job: in_lane(job) or (job.account in held and job.reserved > 0)

    @invariant()
    def the_database_is_as_the_model_says(self) -> None:
        self.sound = False
        self.read()
        seen, jobs = self.seen, self.model.jobs
        assert not seen.live.keys() & seen.finished.keys(), "L1: live and finished"
        assert seen.live.keys() | seen.finished.keys() == jobs.keys(), "a job was lost or invented"
        for job in jobs.values():
            rows, same = (seen.live, SAME_LIVE) if job.live else (seen.finished, SAME_FINISHED)
            assert job.id in rows, f"{job} is not where it belongs"
            found = {name: getattr(rows[job.id], name) for name in same}
            assert found == {name: getattr(job, name) for name in same}
            if job.status == "failed":
                assert rows[job.id].reason == job.reason
        settled = {(job.id, n): how for job in jobs.values() for n, how in job.settled.items()}
        assert seen.settled == settled, "L4: one row per settled start"
        assert sorted(seen.late_results) == sorted(self.model.late_results)
        assert seen.balances == self.model.balance
        assert seen.charged == {
            job.id: self.model.charged(job) for job in self.model.finished() if job.reserved
        }
        self._assert_what_never_changes()
        faults = self.world.faults()
        assert faults == [], faults
        self.move(TICK)
        self.sound = True

    def _assert_what_never_changes(self) -> None:
        for row in self.seen.live.values():
            assert self.ranks.setdefault(row.id, row.rank) == row.rank, "a rank moved"
            assert self.versions.get(row.id, 1) <= row.version, "a version fell"
            self.versions[row.id] = row.version
        for row in self.seen.finished.values():
            assert self.history.setdefault(row.id, row.whole) == row.whole, "L1: history changed"

    def teardown(self) -> None:
        """After any steps, with a healthy worker and time, every job finishes."""
        if not self.sound:
            return
        for queue in self.model.paused:
            self.world.run("select penstock.resume_queue(%s)", queue)
        for _ in range(DRAIN_ROUNDS):
            if not self.world.one("select count(*) from penstock.job"):
                return
            self.move(timedelta(minutes=6))
            worker = self.world.register()
            self.world.run("select * from penstock.recover_jobs()")
            for queue in self.model.widths:
                started = self.world.claim(worker, queue, 10, wait=False)
                reported = [(row.id, row.attempt) for row in started]
                verdicts = self.world.finish(worker, reported, ["succeeded"] * len(reported))
                assert {verdict for _, verdict, _ in verdicts} <= {"done"}
            faults = self.world.faults()
            assert faults == [], faults
        left = self.world.run("select * from penstock.job")
        raise AssertionError(f"these jobs never end: {left}")
