"""The database of a scenario, and the table of scenarios that detect the loss of each guard."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from mutation.guards import REPLACEMENTS, Edit
from support import factory
from support.clock import Clock
from support.factory import Row
from support.interleave import Step

LONG_LEASE = "100 days"
# The token that a callback needs.
SIGN = "a sign of some length"
# A submit that wakes workers before its job is on disk.
WAKING = (
    "call penstock.submit_waking('q', '{}', null, null, null, null, null, null, null, null, null,"
    f" null, null, '', 'q', null, null{', null' * 9})"
)


@dataclass
class Scene:
    """A scenario's database, with the controller of its clock."""

    conn: asyncpg.Connection
    clock: Clock
    connect: Callable[[], Awaitable[asyncpg.Connection]]

    async def value(self, query: str, *values: Any) -> Any:
        return await self.conn.fetchval(query, *values)

    async def worker(self, *, lease: str = LONG_LEASE) -> int:
        return await factory.worker(self.conn, lease=lease)

    async def start(self, worker: int, queue: str = "q", limit: int = 1) -> list[Row]:
        """Claim jobs, and check that so many were claimed."""
        rows = await factory.claim(self.conn, worker, queue, limit)
        assert len(rows) == limit, f"{len(rows)} of {limit} started"
        return rows

    async def running(self, account: str | None = None, **options: Any) -> tuple[int, Row]:
        """Return a worker and the job that it runs, in a queue with these options."""
        await factory.queue(self.conn, **options)
        worker = await self.worker()
        await factory.submit(self.conn, account=account)
        [row] = await self.start(worker)
        return worker, row

    async def awaiting(self) -> tuple[int, Row]:
        """Return a worker and the job that it has dispatched with SIGN."""
        worker, row = await self.running()
        assert await factory.hand_over(self.conn, worker, row, SIGN) == "done"
        return worker, row

    async def settle(self, job: UUID, attempt: int, outcome: str) -> str:
        """Settle an attempt like upkeep: without a worker, fenced only by the attempt number."""
        verdict: str = await self.value(
            "select verdict from penstock._settle_jobs(null, null, array[$1::uuid],"
            " array[$2::integer], array[$3], null, null, null, null)",
            job,
            attempt,
            outcome,
        )
        return verdict

    async def status(self, job: UUID) -> str:
        return await factory.status(self.conn, job)

    async def unlimited_then(self, account: str, **options: Any) -> None:
        """Give an account that had none a plan with these options."""
        await factory.plan(self.conn, "limited", default=False, **options)
        await self.conn.execute("select penstock.set_account_plan($1, 'limited')", account)

    async def does_not_wait(self, conn: asyncpg.Connection, call: Any) -> Any:
        """Return the result of the call, which must not wait for another session's lock."""
        step: Step[Any] = Step(conn, call)
        if await step.waits(self.conn):
            step._task.cancel()
            await asyncio.gather(step._task, return_exceptions=True)
            raise AssertionError("it waits for a lock that somebody else has")
        return await step

    async def all_reach_the_disk(self, call: Callable[[int], Awaitable[object]]) -> None:
        """Check that each call returns after its write is on disk: the server alone takes 0.2 s."""
        await self.conn.execute("set synchronous_commit = on")
        for n in range(20):
            before = await self.value("select pg_current_wal_insert_lsn()")
            await call(n)
            assert await self.value("select pg_current_wal_flush_lsn() > $1::pg_lsn", before)

    async def is_held(self, job: UUID) -> bool:
        """Return whether another session has locked the job's row."""
        return not await self.conn.fetch(
            "select from penstock.job where id = $1 for update skip locked", job
        )


Scenario = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """A guard, and the scenario that succeeds with it and fails without it."""

    guard: str
    scenario: Scenario
    beside: tuple[str | Edit, ...]
    """Other lines that are removed in both runs because they would detect the fault first."""
    raises: type[BaseException]
    match: str | None
    """How it fails without the guard; the name of a constraint if one is the second defence."""


CASES: dict[str, Case] = {}


def catches(
    *guards: str,
    replace: tuple[str, str] | None = None,
    beside: Sequence[str | Edit] = (),
    raises: type[BaseException] = AssertionError,
    match: str | None = None,
) -> Callable[[Scenario], Scenario]:
    """Register a scenario for these guards; `replace`: an entry of REPLACEMENTS for each."""

    def enter(scenario: Scenario) -> Scenario:
        for guard in guards:
            assert guard not in CASES, f"{guard} has a scenario already"
            if replace:
                REPLACEMENTS[guard] = replace
            CASES[guard] = Case(guard, scenario, tuple(beside), raises, match)
        return scenario

    return enter
