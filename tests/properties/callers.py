"""The actions of callers: submit, cancel, retry, and the operator's edits."""

from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from psycopg.types.json import Jsonb

from properties.base import Lifecycle, pick, refusal, which
from properties.model import STARTED, Item, Job
from properties.settings import ACCOUNTS, KINDS, PLANS, QUEUES

# With more jobs than this, the walk goes on with those it has.
MANY = 8


def seconds(*choices: int | None) -> st.SearchStrategy[timedelta | None]:
    return st.sampled_from([n if n is None else timedelta(seconds=n) for n in choices])


items = st.builds(
    Item,
    st.sampled_from(sorted(KINDS)),
    st.sampled_from([None, *ACCOUNTS]),
    st.sampled_from([None, None, None, "k", "l"]),
    st.sampled_from([None, None, -1, 2]),
    seconds(None, None, None, 0, 20, 300),
    seconds(None, None, None, 15, 60),
    st.sampled_from([None, None, None, 1, 3]),
    st.sampled_from([None, None, 0, 3, 40]),
).map(lambda item: item if item.account else item._replace(price=None))

_SUBMIT_MANY = """
select id, status::text, deduplicated from penstock.submit_many(%s::text[],
  array_fill('{}'::jsonb, array[%s]), %s::text[], p_dedupe_keys => %s::text[],
  p_priorities => %s::integer[], p_delays => %s::interval[], p_expires => %s::interval[],
  p_max_attempts => %s::integer[], p_prices => %s::bigint[]) order by ordinal
"""

_SUBMIT_ONE = """
select id, status::text, deduplicated from penstock.submit_one(%s, '{}', p_account => %s,
  p_dedupe_key => %s, p_priority => %s, p_delay => %s, p_expires => %s, p_max_attempts => %s,
  p_price => %s)
"""


class Callers(Lifecycle):
    @initialize(batch=st.lists(items, min_size=4, max_size=8))
    def submit_the_first(self, batch: list[Item]) -> None:
        self.submit(batch)

    @rule(batch=st.lists(items, min_size=1, max_size=4))
    @precondition(lambda self: len(self.model.live()) <= MANY)
    def submit_more(self, batch: list[Item]) -> None:
        self.submit(batch)

    def submit(self, batch: list[Item]) -> None:
        if not self._can_pay(batch):
            with self.nothing_changed():
                assert refusal(lambda: self._send(batch)) == "PS402"
            return
        answers = self._send(batch)
        assert len(answers) == len(batch)
        for item, answer in zip(batch, answers, strict=True):
            self._accept(item, answer)

    def _send(self, batch: list[Item]) -> list[Any]:
        if len(batch) == 1:
            return self.world.run(_SUBMIT_ONE, *batch[0])
        kinds, *columns = [list(column) for column in zip(*batch, strict=True)]
        return self.world.run(_SUBMIT_MANY, kinds, len(batch), *columns)

    def _can_pay(self, batch: list[Item]) -> bool:
        """Whether every account has enough for what of the batch is new."""
        owed: Counter[str] = Counter()
        seen: set[tuple[str, str | None, str]] = set()
        for item in batch:
            if item.key is not None:
                if self.model.twin(*item[:3]) or (*item[:2], item.key) in seen:
                    continue
                seen.add((*item[:2], item.key))
            if item.account:
                owed[item.account] += item.price or 0
        return all(price <= self.model.balance[account] for account, price in owed.items())

    def _accept(self, item: Item, answer: Any) -> UUID:
        twin = self.model.twin(item.kind, item.account, item.key)
        assert answer.deduplicated == (twin is not None)
        job = twin or self.model.submit(answer.id, item)
        assert (answer.id, answer.status) == (job.id, job.status)
        return job.id

    @rule(n=which, what=st.sampled_from(["cancel", "cancel twice", "retry"]))
    @precondition(lambda self: self.model.jobs)
    def ask(self, n: int, what: str) -> None:
        """A person's click."""
        job = pick(list(self.model.jobs.values()), n)
        if what == "retry":
            self._retry(job)
        else:
            self._cancel(job, twice=what != "cancel")

    def _cancel(self, job: Job, *, twice: bool) -> None:
        for _ in range(1 + twice):
            self.model.cancel(job)
            answer = self.world.one("select penstock.cancel_job(%s)", job.id)
            assert answer["status"] == job.status
            assert answer["cancel_requested"] == (job.status in STARTED)

    def _retry(self, job: Job) -> None:
        if job.status == "scheduled":
            self._retry_now(job)
        elif job.live:
            with self.nothing_changed():
                call = lambda: self.world.one("select penstock.retry_job(%s)", job.id)  # noqa: E731
                assert refusal(call) == "PS409"
        else:
            self._retry_by_hand(job)

    def _retry_now(self, job: Job) -> None:
        """Start a scheduled job now; it gets the position of a new one."""
        answer = self.world.one("select penstock.retry_job(%s)", job.id)
        job.run_at, job.status = self.model.now, "queued"
        assert (answer["id"], answer["status"]) == (str(job.id), "queued")
        before = self.ranks[job.id]
        self.read()
        self.ranks[job.id] = self.seen.live[job.id].rank
        assert self.ranks[job.id] <= before

    def _retry_by_hand(self, old: Job) -> None:
        again = Item(
            *(old.kind, old.account, old.key, old.priority, None, None, old.max_attempts),
            price=old.reserved,
        )
        living = old.retried_by and self.model.jobs[old.retried_by].live
        if not living and not self._can_pay([again]):
            with self.nothing_changed():
                call = lambda: self.world.one("select penstock.retry_job(%s)", old.id)  # noqa: E731
                assert refusal(call) == "PS402"
            return
        answer = self.world.one("select penstock.retry_job(%s)", old.id)
        new = UUID(answer["id"])
        if old.retried_by and self.model.jobs[old.retried_by].live:
            assert (new, answer["deduplicated"]) == (old.retried_by, True)
        elif twin := self.model.twin(old.kind, old.account, old.key):
            assert (new, answer["deduplicated"]) == (twin.id, True)
        else:
            job = self.model.submit(new, again)
            job.retry_of, old.retried_by = old.id, new
            assert not answer["deduplicated"]

    @rule(
        queue=st.sampled_from(sorted(QUEUES)),
        account=st.sampled_from(sorted(ACCOUNTS)),
        plan=st.sampled_from(sorted(PLANS)),
        limit=st.sampled_from([None, 1, 2, 3]),
        what=st.sampled_from(["queue", "account", "plan", "pause"]),
    )
    def edit(self, queue: str, account: str, plan: str, limit: int | None, what: str) -> None:
        """Lower limits below the number of running jobs, raise them, set new ones, remove them."""
        width = Jsonb({"concurrency": limit})
        if what == "queue":
            self.world.run("select penstock.edit_queue(%s, %s)", queue, width)
            self.model.widths[queue] = limit or QUEUES[queue].get("concurrency")
        elif what == "account":
            self.world.run("select penstock.set_account_plan(%s, %s)", account, plan)
            self.model.plan_of[account] = plan
        elif what == "plan":
            self.world.run("select penstock.edit_plan(%s, %s)", plan, width)
            self.model.plans[plan] = limit or PLANS[plan].get("concurrency")
        else:
            verb = "resume" if queue in self.model.paused else "pause"
            self.world.run(f"select penstock.{verb}_queue(%s)", queue)
            self.model.paused ^= {queue}
