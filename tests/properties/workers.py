"""The actions of workers: claim, finish, dispatch, call back; in time and too late."""

from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from properties.base import Lifecycle, held_accounts, pick, refusal, which
from properties.model import WAITING, Job, Start, Worker
from properties.settings import FEW, QUEUES

outcomes = st.sampled_from(
    ["succeeded", "failed", "cancelled", "retry", "retry", "deferred", "snoozed", "released"]
)
# Of four, a lane of a fair queue gets no more than three at once (_choose: twice its share).
claims = st.tuples(*(st.sampled_from([0, 1, 2, 3]) for _ in QUEUES))
delays = st.sampled_from([None, None, timedelta(0), timedelta(seconds=45)])


class Workers(Lifecycle):
    @initialize()
    def begin(self) -> None:
        self.add_worker()
        self.add_worker(FEW)

    @rule(
        n=which,
        after=st.sampled_from([0, 0, 1, 20]),
        limits=claims,
        held=held_accounts,
        wait=st.sampled_from([False, False, False, True]),
    )
    def claim(
        self,
        n: int,
        after: int,
        limits: tuple[int, ...],
        held: tuple[str | None, ...],
        wait: bool,
    ) -> None:
        """From every queue where something waits, up to so many each."""
        self.move(timedelta(seconds=after))
        self._claim_from_all(n, limits, held, wait=wait)

    def _running(self, n: int) -> list[Job]:
        """What one worker runs; if nobody runs anything, someone begins, after a while."""
        if not self.model.live("running"):
            self.move(timedelta(seconds=25))
            self._claim_from_all(n, (3,) * len(QUEUES), (), wait=False)
        jobs = self.model.live("running")
        return self.model.held_by([pick(jobs, n).worker]) if jobs else []

    def _claim_from_all(
        self, n: int, limits: tuple[int, ...], held: tuple[str | None, ...], *, wait: bool
    ) -> None:
        for queue, limit in zip(sorted(QUEUES), limits, strict=True):
            if limit and any(job.queue == queue for job in self.model.live(*WAITING)):
                # Mostly one of the living, who come last.
                worker = pick(list(self.model.workers.values())[-3:], n)
                self._claim(worker, queue, limit, held, wait=wait and not held)
                self.read()

    def _claim(
        self, worker: Worker, queue: str, limit: int, held: tuple[str | None, ...], *, wait: bool
    ) -> None:
        opened = any(
            lane.open
            for lane in self.seen.lanes
            if lane.queue == queue and lane.kind in worker.kinds
        )
        if queue in self.model.paused or (wait and not opened and not worker.gone):
            assert self.world.claim(worker.id, queue, limit, wait=wait) == []
            return
        if worker.gone:
            with self.nothing_changed():
                code = refusal(lambda: self.world.claim(worker.id, queue, limit, wait=wait))
            assert code == "PS409"
            return
        with self.world.held(held):
            rows = self.world.claim(worker.id, queue, limit, wait=wait)
        moved = self.model.expire(queue, self.pays_behind(held))
        moved += self.model.stage(queue, self.waits_behind(held))
        chosen = [row.id for row in rows]
        self._assert_right_choice(worker, chosen, queue, limit, held, exact=not moved)
        for row in rows:
            self.model.start(self.model.jobs[row.id], worker.id, row.slot_account)
            assert row.attempt == self.model.jobs[row.id].attempt

    def _assert_right_choice(
        self,
        worker: Worker,
        chosen: list[UUID],
        queue: str,
        limit: int,
        held: tuple[str | None, ...],
        *,
        exact: bool,
    ) -> None:
        """Within every limit, nothing left idle that could run, and the first in line first."""
        room = self.model.room(queue, limit)
        # A late job that is still here could not be settled, because its account is locked.
        waiting = [
            job
            for job in self.model.live("queued")
            if job.queue == queue
            and job.kind in worker.kinds
            and not (job.expires_at and job.expires_at <= self.model.now)
        ]
        # Jobs from before their account had a limit: the claim puts them into a lane on its way.
        strays = [
            job for job in waiting
            if self.seen.live[job.id].lane < 0 and self.model.slots(job.account) is not None
        ]  # fmt: skip
        stuck = {job.id for job in waiting if self.waits_behind(held)(job)}
        ready = [
            job
            for job in waiting
            if job.id not in stuck and not (job in strays and job.account in held)
        ]
        line = self._line(ready, queue)
        assert len(chosen) == len(set(chosen)) <= room
        assert set(chosen) <= {job.id for job in ready}
        for account, n in Counter(self.model.jobs[job].account for job in chosen).items():
            slots = self.model.slots(account)
            assert slots is None or n <= slots, f"{account} is over its limit"
        assert chosen or not (line and room), "the claim left a job that may start"
        full = any(
            lane.open and self.model.slots(lane.account) == 0
            for lane in self.seen.lanes
            if lane.queue == queue and lane.kind in worker.kinds
        )
        if not full and (exact or queue != "fair"):
            first = sorted(line.values())[:room]
            assert sorted(line[job] for job in chosen) == first, "out of order"

    def _line(self, ready: list[Job], queue: str) -> dict[UUID, tuple[int, int]]:
        """Where each job that may start stands: by rank, or by its lane's virtual time."""
        line: dict[UUID, tuple[int, int]] = {}
        lanes = {
            lane.account: lane for lane in self.seen.lanes if lane.queue == queue and lane.waiting
        }
        ahead: Counter[str | None] = Counter()
        for job in sorted(ready, key=lambda job: self.seen.live[job.id].rank):
            slots = self.model.slots(job.account)
            nth = ahead[job.account]
            ahead[job.account] += 1
            if slots is not None and nth >= slots:
                continue
            if queue == "fair" and job.account in lanes:
                lane = lanes[job.account]
                line[job.id] = (lane.head + nth * lane.step, nth)
            else:
                line[job.id] = (self.seen.live[job.id].rank, 0)
        return line

    @rule(
        n=which,
        reported=st.lists(st.tuples(outcomes, delays), min_size=1, max_size=4),
        held=held_accounts,
        knows=st.booleans(),
        late=st.booleans(),
    )
    def finish(
        self,
        n: int,
        reported: list[tuple[str, timedelta | None]],
        held: tuple[str | None, ...],
        knows: bool,
        late: bool,
    ) -> None:
        """Report a worker's batch; with `late`, including an attempt that was settled before."""
        jobs = self._running(n)[: len(reported)]
        if not jobs:
            return
        worker = jobs[0].worker
        assert worker
        batch = [(job.id, job.attempt) for job in jobs]
        reported = reported[: len(batch)]
        accounts = [self.model.starts[start].account for start in batch]
        owners = [account for account in accounts if account is not None] if knows else None
        busy = self.runs_behind(held)
        expected: Counter[tuple[UUID, str]] = Counter()
        for job in jobs:
            expected[job.id, "locked" if busy(job) else "done"] += 1
        stale = [start for start in self._settled_attempts() if start.worker == worker]
        extra = [pick(stale, n)] if late and stale else []
        expected.update((start.job, "stale") for start in extra)

        with self.world.held(held):
            verdicts = self.world.finish(
                worker,
                [*batch, *((start.job, start.attempt) for start in extra)],
                [*(outcome for outcome, _ in reported), *("succeeded" for _ in extra)],
                [*(delay for _, delay in reported), *(None for _ in extra)],
                owners,
            )
        assert Counter((job, verdict) for job, verdict, _ in verdicts) == expected
        for start in extra:
            self.model.add_late_result(start.job, start.attempt)
        for job, (outcome, delay) in zip(jobs, reported, strict=True):
            if expected[job.id, "done"]:
                self.model.end_start(job, outcome, delay)

    def _settled_attempts(self) -> list[Start]:
        return [
            start
            for (job, attempt), start in self.model.starts.items()
            if attempt in self.model.jobs[job].settled
        ]

    @rule(n=which, outcome=outcomes, ahead=st.integers(0, 1))
    @precondition(lambda self: self.model.starts)
    def write_what_is_stale(self, n: int, outcome: str, ahead: int) -> None:
        """L3: a late or repeated report; one for another worker's attempt or for a future one."""
        if settled := self._settled_attempts():
            self._finish_again(pick(settled, n), outcome, twice=bool(ahead))
        if started := self.model.live("running", "awaiting"):
            self._finish_anothers(pick(started, n), n, outcome, ahead)
        self._call_back_wrongly(pick(list(self.model.jobs.values()), n), outcome)

    def _finish_again(self, start: Start, outcome: str, *, twice: bool) -> None:
        reported = [(start.job, start.attempt)] * (1 + twice)
        with self.nothing_changed():
            verdicts = self.world.finish(start.worker, reported, [outcome] * len(reported))
        assert {verdict for _, verdict, _ in verdicts} == {"stale"}
        if outcome == "succeeded":
            self.model.add_late_result(start.job, start.attempt)

    def _finish_anothers(self, job: Job, n: int, outcome: str, ahead: int) -> None:
        """Another worker's start, one that is with a function outside, or one yet to come."""
        others = [worker for worker in self.model.workers if worker != job.worker or ahead]
        with self.nothing_changed():
            [(_, verdict, _)] = self.world.finish(
                pick(others, n), [(job.id, job.attempt + ahead)], [outcome]
            )
            handed = self.world.hand_over(pick(others, n), job.id, job.attempt + ahead, "x" * 20)
        assert (verdict, handed) == ("stale", "stale")

    @rule(n=which)
    def hand_over(self, n: int) -> None:
        for job in self._running(n)[:1]:
            worker = job.worker
            assert worker
            token = f"the secret of {job.id} {job.attempt}"
            assert self.world.hand_over(worker, job.id, job.attempt, token) == "done"
            self.model.hand_over(job, token)
            with self.nothing_changed():
                assert self.world.hand_over(worker, job.id, job.attempt, token) == "stale"

    @rule(n=which, outcome=st.sampled_from(["succeeded", "failed", "retry"]), held=held_accounts)
    def call_back(self, n: int, outcome: str, held: tuple[str | None, ...]) -> None:
        if not self.model.live("awaiting"):
            self.hand_over(n)
            self.read()
        if not (awaiting := self.model.live("awaiting")):
            return
        job = pick(awaiting, n)
        assert job.token
        with self.world.held(held):
            verdict = self.world.call_back(job.id, job.attempt, job.token, outcome)
        if self.runs_behind(held)(job):
            assert verdict == "locked"
            return
        assert verdict == "accepted"
        token, number = job.token, job.attempt
        self.model.end_start(job, outcome)
        if outcome == "failed":
            job.reason = "bug"  # no error was sent along
        with self.nothing_changed():
            again = self.world.call_back(job.id, number, token, outcome)
        assert again == ("stale" if job.live else "duplicate")
        if outcome == "succeeded":
            self.model.add_late_result(job.id, number)

    def _call_back_wrongly(self, job: Job, outcome: str) -> None:
        """With a token made up, for every attempt there was, and for a job that is not."""
        known = outcome in ("succeeded", "failed", "retry", "provisional", "deferred")
        for number in range(job.attempt + 2):
            with self.nothing_changed():
                verdict = self.world.call_back(job.id, number, "d" * 16, outcome)
            assert verdict == (self._why_not(job, number) if known else "invalid")
            if outcome == "succeeded" and number in job.settled:
                self.model.add_late_result(job.id, number)
        with self.nothing_changed():
            verdict = self.world.call_back(uuid4(), 1, "d" * 16, outcome)
        assert verdict == ("unknown" if known else "invalid")

    def _why_not(self, job: Job, number: int) -> str:
        if not job.live:
            last_settled = number == job.attempt and number in job.settled
            return "duplicate" if last_settled and self._finished_by_attempt(job) else "stale"
        return "stale" if number in job.settled else "invalid"

    def _finished_by_attempt(self, job: Job) -> Any:
        """Return False if the job was cancelled or expired after its last attempt was settled."""
        return job.settled.get(job.attempt) == job.status
