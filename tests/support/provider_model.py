"""Jobs of a queue against a provider in simulated time: how its circuit reacts.

Time is the database's test clock, moved from one event to the next; nothing waits.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg

from support import factory
from support.circuits import end
from support.clock import Clock
from support.factory import Row

POLL_SECONDS = 0.5
REFUSAL_SECONDS = 0.01


@dataclass(frozen=True)
class Reply:
    """How a call ends: after how long, and the class of its failure (None: an answer)."""

    seconds: float
    failure: str | None = None


@dataclass
class Run:
    """A worker with some slots, and a provider; times are seconds since the run began."""

    conn: asyncpg.Connection
    clock: Clock
    provider: Callable[["Run", Row], Reply]
    slots: int = 8
    seed: int = 1
    now: float = 0.0
    calls: list[float] = field(default_factory=list)
    answered: Counter[str | None] = field(default_factory=Counter)
    """By account."""
    under_way: dict[UUID, Reply] = field(default_factory=dict)
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    @property
    def served(self) -> int:
        return self.answered.total()

    async def until(self, seconds: float) -> None:
        """Run jobs until then; attempts under way at that moment are released."""
        await self.clock.freeze()
        worker = await factory.worker(self.conn, f"w{self.now}", lease="100 days")
        order = itertools.count()
        ends: list[tuple[float, int, Row, Reply]] = []
        recovered_at = self.now
        while True:
            free = self.slots - len(ends)
            for row in await factory.claim(self.conn, worker, limit=free) if free else []:
                reply = self.provider(self, row)
                self.calls.append(self.now)
                self.under_way[row["id"]] = reply
                heapq.heappush(ends, (self.now + reply.seconds, next(order), row, reply))
            due = min([self.now + POLL_SECONDS, *(at for at, *_ in ends[:1])])
            if due >= seconds:
                break
            await self.clock.advance(due - self.now)
            self.now = due
            while ends and ends[0][0] <= self.now:
                _, _, row, reply = heapq.heappop(ends)
                await self._finish(worker, row, reply)
            if self.now >= recovered_at + 1:
                await factory.recover(self.conn)
                recovered_at = self.now
        self.under_way.clear()
        await factory.finish(self.conn, worker, [row for *_, row, _ in ends], "released")

    async def _finish(self, worker: int, row: Row, reply: Reply) -> None:
        del self.under_way[row["id"]]
        if reply.failure is None:
            self.answered[row["account"]] += 1
            await factory.finish(self.conn, worker, [row])
        elif reply.failure == "timed_out":
            await factory.finish(self.conn, worker, [row], "timed_out")
        else:
            await end(self.conn, worker, [row], reply.failure, address="127.0.0.1:80")


def half_up(
    share: float = 0.5, seconds: float = 1.0, failure: str = "overloaded"
) -> Callable[[Run, Row], Reply]:
    """A provider that answers this share of its calls, and refuses the others at once."""

    def provider(run: Run, _: Row) -> Reply:
        if run.chance.random() < share:
            return Reply(seconds * run.chance.uniform(0.5, 1.5))
        return Reply(REFUSAL_SECONDS, failure)

    return provider


def room_for(capacity: int) -> Callable[[Run, Row], Reply]:
    """A provider that refuses calls beyond its capacity."""

    def provider(run: Run, _: Row) -> Reply:
        if sum(reply.failure is None for reply in run.under_way.values()) < capacity:
            return Reply(run.chance.uniform(0.5, 1.5))
        return Reply(REFUSAL_SECONDS, "overloaded")

    return provider


def hangs_for(
    account: str, failure: str = "stalled", seconds: float = 20
) -> Callable[[Run, Row], Reply]:
    """A provider that works, except for the jobs of one account."""

    def provider(run: Run, row: Row) -> Reply:
        if row["account"] == account:
            return Reply(seconds, failure)
        return Reply(run.chance.uniform(0.5, 1.5))

    return provider
