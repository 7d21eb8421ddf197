"""Random walks through outages: any failure at any time, and an outage is still not a failure.

There is no model: the invariants of a circuit do not depend on its history. One job is odd: every
attempt of it fails in the same way, and the other jobs must not suffer from it.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from psycopg.types.json import Jsonb

from properties.base import TICK, pick, which
from properties.settings import EPOCH
from properties.walks import walk
from properties.world import World
from support.circuits import EFFECTS
from support.shapes import Scale

LONG_RUN = 2_000
STEPS = 40
MANY = 10
# Once the provider is well: a quarter of an hour, as after a refused key, for each job there is.
DRAIN_TIME = timedelta(minutes=15) * 2 * MANY
# One without a limit, whose gate counts only in times of trouble, and one with.
WITH_CIRCUITS = ["plain", "pair"]
PLAIN = {"retry": "bug", "failed": "bug", "timed_out": "timeout", "stuck": "stalled"}
OTHER_ENDS = [*PLAIN, "released"]
HANDS = ["open", "close", "close", "resume", "resume", "there", "there", "away", "look"]
CHARGED = ("provisional", "retry", "timed_out")
# So often a job is deferred for nothing while others are answered.
ISOLATED = 10

Report = tuple[str, float | None, timedelta | None]

queues = st.sampled_from(WITH_CIRCUITS)
kinds = st.sampled_from(["plain", "once", "once", "pair"])
afters = st.sampled_from([None, None, 0.5, 20.0])
reports = st.tuples(
    st.sampled_from([*EFFECTS, *OTHER_ENDS, *["succeeded"] * 6]),
    afters,
    st.sampled_from([None, timedelta(0), timedelta(seconds=5)]),
)

_CIRCUITS = """
select q.name, c.state, c.class as cls, c.changed_at::text, c.next_at, c.allowed, c.resume,
  c.probe_job, c.probe_attempt,
  (select count(*) from penstock.job j
   where j.queue_id = q.id and j.deadline_at is not null and j.started_at >= c.changed_at) as fresh,
  (select count(*) from penstock.alert r where r.queue_id = q.id and r.cleared_at is null) as alerts
from penstock.circuit c join penstock.queue q on q.id = c.queue_id
"""


class Outages(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.now = EPOCH
        world.empty(self.now)
        self.worker = world.register()
        # What was started in which opening of a circuit.
        self.probes: dict[tuple[str, Any], set[tuple[UUID, int]]] = {}
        # In the order in which they came: what is picked must not depend on random ids.
        self.order: list[UUID] = []
        self.odd: tuple[UUID, str] | None = None
        self.odd_after: float | None = None
        self.sound = True
        self.read()

    def read(self) -> None:
        self.circuits = {row.name: row for row in self.world.run(_CIRCUITS)}
        found = {row.id: row for row in self.world.run("select * from penstock.job")}
        self.jobs = {job: found.pop(job) for job in self.order if job in found}
        assert not found

    def running(self) -> list[Any]:
        return [job for job in self.jobs.values() if job.status == "running"]

    def move(self, by: timedelta) -> None:
        self.now += by
        self.world.set_clock(self.now)
        self.world.run("select penstock.beat_worker(%s)", self.worker)

    def assert_nothing_charged(self, but: dict[UUID, str] | None = None) -> None:
        """Compare with the last read; `but`: outcomes of attempts of these jobs."""
        before = self.jobs
        self.read()
        for job in self.jobs.values():
            was = before[job.id].failures if job.id in before else 0
            how = (but or {}).get(job.id)
            charge = how in CHARGED or (how == "deferred" and before[job.id].isolated >= ISOLATED)
            assert job.failures <= was + charge, f"{job} was charged"

    @initialize(kind=kinds, n=which, cls=st.sampled_from([None, *EFFECTS]), after=afters)
    def begin(self, kind: str, n: int, cls: str | None, after: float | None) -> None:
        self.submit(kind, [None, None, "ann", None, "bob", "bob"])
        if cls:
            self.odd, self.odd_after = (pick(self.order, n), cls), after

    @rule(kind=kinds, accounts=st.lists(st.sampled_from([None, "ann", "bob"]), min_size=1))
    @precondition(lambda self: len(self.jobs) <= MANY)
    def submit(self, kind: str, accounts: list[str | None]) -> None:
        for account in accounts[:6]:
            self.order.append(
                self.world.one(
                    "select id from penstock.submit_one(%s, '{}', p_account => %s)", kind, account
                )
            )
            self.move(TICK)
        self.assert_nothing_charged()

    @rule(queue=queues, limit=st.integers(1, 4), after=st.sampled_from([0, 1, 5]))
    def claim(self, queue: str, limit: int, after: float) -> None:
        self.move(timedelta(seconds=after))
        was = self.circuits[queue]
        started = self.world.claim(self.worker, queue, limit, wait=False)
        waits = was.cls is None or was.next_at > self.now
        if was.state == "open" and was.cls == "rate_limited":
            assert len(started) <= (0 if waits else was.resume), "half of what ran goes on"
        elif was.state == "open":
            may = not waits
            assert len(started) <= may, "an open circuit lets one probe start, when it is due"
            opening = self.probes.setdefault((queue, was.changed_at), set())
            opening.update((row.id, row.attempt) for row in started)
        self.assert_nothing_charged()
        if was.state == "ramping":
            now = self.circuits[queue].fresh
            assert now <= max(was.fresh, was.allowed), "more run than the ramp allows"

    @rule(queue=queues, ends=st.lists(reports, min_size=1, max_size=1), n=which)
    def probe(self, queue: str, ends: list[Report], n: int) -> None:
        """When it is due, and how it ends, perhaps beside others."""
        due = self.circuits[queue].next_at
        wait = max(due - self.now, timedelta(0)) if due else timedelta(0)
        for after in (wait.total_seconds(), 0):
            self.claim(queue, 4, after)
            self.circuits_are_sound()
        self.end(n, ends)

    @rule(n=which, ends=st.lists(reports, min_size=1, max_size=3))
    def end(self, n: int, ends: list[Report]) -> None:
        """Report some running attempts, each with its own outcome, in one call."""
        if not self.running():
            self.claim(WITH_CIRCUITS[n % 2], 3, 5)
        jobs = self.running()
        jobs = (jobs[n % len(jobs) :] + jobs)[: min(len(ends), len(jobs))] if jobs else []
        if not jobs:
            return
        probes = {
            (row.probe_job, row.probe_attempt)
            for row in self.circuits.values()
            if row.state == "open"
        }
        outcomes = self.report(jobs, ends[: len(jobs)])
        how = dict(zip([job.id for job in jobs], outcomes, strict=True))
        before = self.circuits
        self.assert_nothing_charged(but=how)
        for name, row in self.circuits.items():
            if before[name].state == "open" and row.state != "open":
                assert before[name].probe_job in how, "what was under way does not close it"
        for job in jobs:
            free = how[job.id] in ("deferred", "provisional") or (
                how[job.id] in ("timed_out", "stuck") and (job.id, job.attempt) in probes
            )
            if free and not job.cancel_requested_at:
                assert job.id in self.jobs, "none of these ends a job at once"

    def report(self, jobs: list[Any], ends: list[Report]) -> list[str]:
        """What the worker tells of these starts: their outcomes."""
        outcomes, errors, effects, retry_afters = [], [], [], []
        for job, (drawn, after, _) in zip(jobs, ends, strict=True):
            cls = self.odd[1] if self.odd and self.odd[0] == job.id else drawn
            outcome, effect = EFFECTS.get(cls, (cls, None))
            outcomes.append(outcome)
            errors.append(Jsonb({"class": PLAIN.get(cls, cls), "message": ""}))
            effects.append(effect)
            retry_afters.append(None if after is None else timedelta(seconds=after))
        verdicts = self.world.run(
            "select verdict from penstock.finish_jobs(%s, %s::uuid[], %s::integer[], %s::text[],"
            " null, %s::jsonb[], %s::interval[], p_effects => %s::text[],"
            " p_retry_afters => %s::interval[], p_addresses => %s::text[])",
            self.worker,
            [job.id for job in jobs],
            [job.attempt for job in jobs],
            outcomes,
            errors,
            [delay for _, _, delay in ends],
            effects,
            retry_afters,
            [effect and "10.0.0.1:80" for effect in effects],
        )
        assert {row.verdict for row in verdicts} <= {"done"}
        return outcomes

    @rule(queue=queues, what=st.sampled_from(HANDS))
    def act(self, queue: str, what: str) -> None:
        """What operators do, and those who look whether a provider takes connections."""
        call = {
            "open": "penstock.open_circuit(%s)",
            "close": "penstock.close_circuit(%s)",
            "resume": "penstock.resume_queue(%s)",
            "there": "penstock.report_check(%s, true)",
            "away": "penstock.report_check(%s, false)",
            "look": "penstock.due_checks(array[%s::text])",
        }[what]
        self.world.run(f"select {call}", queue)
        self.assert_nothing_charged()
        if what in ("open", "close"):
            assert self.circuits[queue].state == {"open": "open", "close": "closed"}[what]

    @rule(seconds=st.sampled_from([1, 5, 30, 61, 61, 1000]))
    def tidy(self, seconds: int) -> None:
        """Time goes by, and upkeep fails what was failure_pending for its minute."""
        due = self.now + timedelta(seconds=seconds)
        gone = {job.id for job in self.jobs.values() if job.failure_pending and job.run_at <= due}
        before = {job.id for job in self.jobs.values() if job.status == "scheduled"}
        self.move(timedelta(seconds=seconds))
        self.world.run("select * from penstock.recover_jobs()")
        self.read()
        assert before - self.jobs.keys() == gone

    @rule(n=which)
    @precondition(lambda self: self.jobs)
    def cancel(self, n: int) -> None:
        self.world.run("select penstock.cancel_job(%s)", pick(list(self.jobs), n))
        self.assert_nothing_charged()

    @invariant()
    def circuits_are_sound(self) -> None:
        self.sound = False
        faults = self.world.faults()
        assert faults == [], faults
        for job in self.jobs.values():
            assert job.failures < job.max_attempts, "L7"
            assert job.withdrawn_failures <= 3
            assert not job.failure_pending or job.provisional_at or job.isolated > ISOLATED
        started = {(job.id, job.attempt) for job in self.running()}
        for name, row in self.circuits.items():
            assert len(self.probes.get((name, row.changed_at), set()) & started) <= 1, "two probes"
            reports = row.state == "open" and row.cls != "rate_limited"
            assert row.alerts == reports, f"{row.alerts} alerts, {row.state}"
        self.move(TICK)
        self.sound = True

    def teardown(self) -> None:
        """After any steps, when the provider answers again, every job but the odd one finishes."""
        if not self.sound:
            return
        for queue, row in self.circuits.items():
            if row.state == "open" and row.cls is None:
                self.world.run("select penstock.close_circuit(%s)", queue)
        until = self.now + DRAIN_TIME
        while self.now < until:
            self.world.run("select * from penstock.recover_jobs()")
            for queue in WITH_CIRCUITS:
                rows = self.world.claim(self.worker, queue, 2, wait=False)
                self.report(rows, [("succeeded", self.odd_after, None)] * len(rows))
            self.read()
            if not self.others():
                return
            self.move(self.until_something_may_start())
        raise AssertionError(f"these never end: {self.others()}, odd: {self.odd}")

    def until_something_may_start(self) -> timedelta:
        """A second while jobs wait in line, or the time that all have to wait for."""
        dues = [job.deadline_at or job.run_at for job in self.jobs.values()]
        dues += [row.next_at for row in self.circuits.values() if row.next_at]
        first = min((due - self.now for due in dues if due > self.now), default=TICK)
        return max(first, timedelta(seconds=1))

    def others(self) -> list[Any]:
        return [job for job in self.jobs.values() if not self.odd or job.id != self.odd[0]]


@pytest.mark.timeout(1_800)  # a run of thousands, and the shrinking of what it finds
def test_no_walk_through_outages_charges_a_job_for_them(world: World, scale: Scale) -> None:
    """F5"""
    walk(lambda: Outages(world), scale, many=LONG_RUN, steps=STEPS)
