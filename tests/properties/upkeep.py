"""Rules of time, of workers' lives, and of those who clean up after both."""

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import rule

from properties.base import Lifecycle, held_accounts, pick, which
from properties.model import Worker
from properties.settings import QUEUES

steps = st.sampled_from([0, 1, 10, 11, 30, 61, 61, 400])
LIVES = ["all beat", "all beat", "all are silent", "all are silent", "one stops"]


class Upkeep(Lifecycle):
    @rule(seconds=steps, n=which, workers=st.sampled_from(LIVES), held=held_accounts)
    def tidy(self, seconds: int, n: int, workers: str, held: tuple[str | None, ...]) -> None:
        """After some time, in which workers beat, fell silent, or one of them stopped."""
        self.move(timedelta(seconds=seconds))
        if workers == "one stops":
            self._stop(pick(list(self.model.workers.values()), n))
        if workers != "all are silent":
            self._beat()
        self._recover(held)
        self.read()
        self._expire_and_stage(held)

    def _recover(self, held: tuple[str | None, ...]) -> None:
        with self.world.held(held):
            rows = self.world.run(
                "select job_id, outcome, verdict, status::text from penstock.recover_jobs()"
            )
        found = self.model.recover(self.runs_behind(held))
        for queue in QUEUES:
            self.model.expire(queue, self.pays_behind(held))
        assert {row.job_id: row.outcome for row in rows} == found
        assert {row.verdict for row in rows} <= {"done"}
        assert all(row.status == self.model.jobs[row.job_id].status for row in rows)
        self._replace_the_gone()

    def _beat(self) -> None:
        lives = dict(self.world.run("select id, penstock.beat_worker(id) from penstock.worker"))
        for worker in self.model.workers.values():
            assert lives[worker.id] == (not worker.gone), "once lost, always lost"
            if not worker.gone:
                worker.beat_at = self.model.now

    def _stop(self, worker: Worker) -> None:
        """In good order; one that was lost stays lost."""
        self.world.run("select penstock.stop_worker(%s)", worker.id)
        worker.stopped = worker.stopped or not worker.lost

    def _replace_the_gone(self) -> None:
        while sum(not worker.gone for worker in self.model.workers.values()) < 2:
            self.add_worker()

    def _expire_and_stage(self, held: tuple[str | None, ...]) -> None:
        with self.world.held(held):
            rows = self.world.run(
                "select name, penstock.expire_jobs(id) as expired,"
                " penstock.stage_due_jobs(id) as staged from penstock.queue"
            )
        for row in rows:
            assert row.expired == len(self.model.expire(row.name, self.pays_behind(held)))
            assert row.staged == len(self.model.stage(row.name, self.waits_behind(held)))
