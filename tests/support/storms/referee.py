"""Keeps the books of a storm: what was accepted, who has which job, and how all jobs finished.

It runs in the process of the actors and believes only answers of the database. If the connection of
an actor was cut, the effect of its call is unknown to the actor and to the referee: such a submit
may or may not exist, and such a worker is declared lost, with all its attempts.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from uuid import UUID

import asyncpg

GIVEN_BACK = {"snoozed", "retry", "released", "deferred"}
FINAL = {"succeeded", "failed", "cancelled"}


class Fate(Enum):
    """The effect of a submit."""

    COMMITTED = auto()
    ROLLED_BACK = auto()
    IN_DOUBT = auto()


@dataclass
class Hold:
    """One attempt, from the claim that returned it until its report took effect."""

    worker: int
    attempt: int
    outcome: str | None = None  # as reported, once it is under way
    in_doubt: bool = False  # a report was cut: it may have taken effect
    abandoned: bool = False  # its worker died


class Referee:
    def __init__(self) -> None:
        self.fates: dict[int, Fate] = {}  # by the tag in the payload
        self.jobs: list[UUID] = []  # committed, for those who want one to cancel
        self.seen: Counter[str] = Counter()
        self._holds: dict[UUID, Hold] = {}
        self._attempts: dict[UUID, int] = {}
        self._ends: dict[UUID, str] = {}

    def tags(self, n: int) -> list[int]:
        """New tags for a submit that is about to begin: in doubt until there is an answer."""
        tags = list(range(len(self.fates), len(self.fates) + n))
        self.submitted(tags, Fate.IN_DOUBT)
        return tags

    def submitted(self, tags: Iterable[int], fate: Fate, jobs: Iterable[UUID] = ()) -> None:
        for tag in tags:
            self.fates[tag] = fate
        self.jobs.extend(jobs)

    def claimed(self, worker: int, rows: Sequence[asyncpg.Record]) -> None:
        """M4: no other worker has it, it has not finished, and its attempt number has grown."""
        for row in rows:
            job, attempt = row["id"], row["attempt"]
            self.seen["started"] += 1
            hold = self._holds.get(job)
            assert job not in self._ends, f"{job} started after it had {self._ends[job]}"
            assert attempt > self._attempts.get(job, 0), f"{job} started twice as {attempt}"
            if hold and not hold.abandoned:
                assert hold.outcome in GIVEN_BACK, f"{job} has two owners: {hold} and {worker}"
            self._attempts[job] = attempt
            self._holds[job] = Hold(worker, attempt)

    def reports(self, rows: Sequence[asyncpg.Record], outcomes: Sequence[str]) -> None:
        """An actor is about to report: from now on the report may have taken effect."""
        for row, outcome in zip(rows, outcomes, strict=True):
            if hold := self._mine(row):
                hold.outcome = outcome

    def doubts(self, rows: Sequence[asyncpg.Record]) -> None:
        for row in rows:
            if hold := self._mine(row):
                hold.in_doubt = True

    def answered(
        self, row: asyncpg.Record, verdict: str, status: str | None, *, late: bool = False
    ) -> None:
        """The answer to a report; `locked` changes nothing. `late`: a dead worker reported it."""
        self.seen[f"late, {verdict}" if late else verdict] += 1
        if verdict == "locked":
            return
        hold = self._mine(row)
        if verdict == "stale" and not late:
            # For a live worker a report is stale only if a cut one took effect after all.
            assert hold is None or hold.in_doubt, f"a living worker lost {row['id']}: {hold}"
        elif status in FINAL:
            self._end(row["id"], status or "")
        if hold:
            del self._holds[row["id"]]

    def called_back(self, row: asyncpg.Record, answer: str) -> None:
        """`duplicate`: upkeep has settled a cancelled one, or a cut call had taken effect."""
        assert answer in ("accepted", "duplicate"), f"a callback of {row['id']} was {answer}"
        self.seen["called back"] += 1
        self._holds.pop(row["id"], None)
        if answer == "accepted":
            self._end(row["id"], "succeeded")

    def cancelled(self, job: UUID) -> None:
        self._end(job, "cancelled")

    def abandons(self, worker: int) -> None:
        """Its worker died: as soon as upkeep releases them, others may have its jobs."""
        self.seen["abandoned"] += 1
        for hold in self._holds.values():
            if hold.worker == worker:
                hold.abandoned = True

    def _mine(self, row: asyncpg.Record) -> Hold | None:
        hold = self._holds.get(row["id"])
        return hold if hold and hold.attempt == row["attempt"] else None

    def _end(self, job: UUID, status: str) -> None:
        before = self._ends.setdefault(job, status)
        assert before == status, f"{job} ended as {before} and as {status}"
        self.seen[status] += 1

    async def balance(self, conn: asyncpg.Connection) -> None:
        """M1, E9: every accepted job exists, once, no other does, and outcomes are as answered."""
        rows = await conn.fetch(
            "select (payload ->> 'tag')::integer as tag, id, status::text from penstock.job"
            " union all"
            " select (payload ->> 'tag')::integer, id, status::text from penstock.finished"
        )
        found = Counter(row["tag"] for row in rows)
        fates = {fate: [t for t, f in self.fates.items() if f is fate] for fate in Fate}
        assert [tag for tag in fates[Fate.COMMITTED] if found[tag] != 1] == []
        assert [tag for tag in fates[Fate.ROLLED_BACK] if found[tag] != 0] == []
        assert [tag for tag in fates[Fate.IN_DOUBT] if found[tag] > 1] == []
        assert found.keys() <= self.fates.keys()
        statuses = {row["id"]: row["status"] for row in rows}
        assert {j: s for j, s in self._ends.items() if statuses.get(j) != s} == {}
        self.seen["jobs"] = len(rows)
