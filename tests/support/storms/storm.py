"""A storm: many connections claim, submit, cancel, snooze and die at once, on a seed.

    claimers    see claimer.py
    submitters  submit in the app's transactions, which commit, roll back, or are cut
    cancellers  cancel in the same way
    upkeep      two at once, recovers jobs of dead workers
    cutter      cuts connections in the middle of calls, from the client's or the server's end
    sampler     checks one snapshot after the other: within limits, counters equal counts

When most of the work is done, only the claimers go on, until no job is left.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import asyncpg

from support.broken_connection import Cut, Wire
from support.clock import Clock
from support.shapes import Connect, T
from support.storms.claimer import IDLE, THOUGHT, Claimer
from support.storms.referee import Fate, Referee

CLAIMERS = 50
SUBMITTERS = 6
CANCELLERS = 3
UPKEEPERS = 2

# Limits that are exceeded, and counters that differ from a count of the jobs.
LIMITS = """
select 'queue ' || q.name as who, q.concurrency as most, g.running as counted, count(j.id) as found
from penstock.queue q join penstock.gate g on g.queue_id = q.id
left join penstock.job j on j.queue_id = q.id and j.status in ('running', 'awaiting')
where q.concurrency is not null
group by q.id, g.running
having count(j.id) > q.concurrency or count(j.id) <> g.running
union all
select 'account ' || coalesce(a.name, 'nobody'), a.concurrency, a.running, count(j.id)
from penstock.account a
left join penstock.job j on j.account_id = a.id and j.status in ('running', 'awaiting')
where a.concurrency is not null
group by a.id
having count(j.id) > a.concurrency or count(j.id) <> a.running
"""


class Storm:
    def __init__(self, dsn: str, connect: Connect, clock: Clock, seed: int, jobs: int) -> None:
        self._dsn = dsn
        self._connect = connect
        self._clock = clock
        self._seed = seed
        self._jobs = jobs
        self._wires: list[Wire] = []
        self._dead: list[int] = []
        self._left_to_submit = jobs // 4
        self._calm = asyncio.Event()
        self._over = asyncio.Event()
        self.referee = Referee()

    async def rage(self, accounts: int, seconds: float) -> None:
        """Fill the queue, run all actors, and return when no job is left."""
        self._accounts = accounts
        watcher = await self._connect()
        await self._fill(watcher)

        async def nearly_done() -> bool:
            live: int = await watcher.fetchval("select count(*) from penstock.job")
            return live <= self._jobs // 10 and self._left_to_submit <= 0

        async def done() -> bool:
            await self._hurry(watcher)
            return not await watcher.fetchval("select exists (select from penstock.job)")

        async with asyncio.timeout(seconds), asyncio.TaskGroup() as actors:
            for act, n in (
                (self._claim, CLAIMERS),
                (self._submit, SUBMITTERS),
                (self._cancel, CANCELLERS),
                (self._recover, UPKEEPERS),
                (self._cut, 1),
                (self._sample, 1),
            ):
                for number in range(n):
                    chance = random.Random(f"{self._seed} {act.__name__} {number}")
                    actors.create_task(act(chance))
            await _until(nearly_done)
            self._calm.set()
            await _until(done)
            self._over.set()
        for wire in self._wires:
            wire.cut()

    def _wire(self) -> Wire:
        """A connection that the cutter may cut."""
        self._wires.append(Wire(self._dsn))
        return self._wires[-1]

    async def _hurry(self, conn: asyncpg.Connection) -> None:
        """Jobs that were lost twice wait 10 or 60 s: if only such jobs are left, move the clock."""
        if await conn.fetchval(
            "select bool_and(status = 'scheduled') and min(run_at) > penstock.clock() + '1 second'"
            " from penstock.job"
        ):
            await self._clock.advance("70s")

    async def _claim(self, chance: random.Random) -> None:
        claimer = Claimer(self._wire(), self.referee, self._dead.append, chance)
        await claimer.run(self._over, self._calm)

    # Apps

    async def _fill(self, conn: asyncpg.Connection) -> None:
        chance = random.Random(f"{self._seed} fill")
        for start in range(0, self._jobs, 500):
            tags = self.referee.tags(min(500, self._jobs - start))
            jobs = await self._accept(conn, tags, chance)
            self.referee.submitted(tags, Fate.COMMITTED, jobs)

    async def _accept(
        self, conn: asyncpg.Connection, tags: Sequence[int], chance: random.Random
    ) -> list[UUID]:
        rows = await conn.fetch(
            "select id from penstock.submit_many($1, $2, $3, p_priorities => $4,"
            " p_delays => $5::text[]::interval[])",
            ["q"] * len(tags),
            [{"tag": tag} for tag in tags],
            # A few accounts have many jobs.
            [f"a{int(self._accounts * chance.random() ** 2)}" for _ in tags],
            chance.choices([0, 0, 0, 5, -5], k=len(tags)),
            chance.choices([None, None, "0.02"], k=len(tags)),
        )
        return [row["id"] for row in rows]

    async def _submit(self, chance: random.Random) -> None:
        wire = self._wire()
        while not self._calm.is_set() and self._left_to_submit > 0:
            tags = self.referee.tags(chance.choice([1, 1, 2, 5, 20]))

            async def submit(conn: asyncpg.Connection, tags: list[int] = tags) -> list[UUID]:
                return await self._accept(conn, tags, chance)

            fate, jobs = await self._in_transaction(wire, submit, chance)
            self.referee.submitted(tags, fate, jobs or ())
            if fate is Fate.COMMITTED:
                self._left_to_submit -= len(tags)
            await asyncio.sleep(chance.uniform(*IDLE))

    async def _cancel(self, chance: random.Random) -> None:
        wire = self._wire()
        while not self._calm.is_set():
            job = chance.choice(self.referee.jobs)

            async def cancel(conn: asyncpg.Connection, job: UUID = job) -> str:
                answer = await conn.fetchval("select penstock.cancel_job($1)", job)
                status: str = answer["status"]
                return status

            fate, status = await self._in_transaction(wire, cancel, chance)
            if fate is Fate.COMMITTED and status == "cancelled":
                self.referee.cancelled(job)
            await asyncio.sleep(3 * chance.uniform(*IDLE))

    async def _in_transaction(
        self,
        wire: Wire,
        work: Callable[[asyncpg.Connection], Awaitable[T]],
        chance: random.Random,
    ) -> tuple[Fate, T | None]:
        """A transaction of an app, which pauses and then commits, rolls back, or is cut."""
        fate = Fate.ROLLED_BACK
        answer = None
        try:
            async with wire.open() as conn:
                transaction = conn.transaction()
                await transaction.start()
                answer = await work(conn)
                await asyncio.sleep(chance.uniform(*THOUGHT))
                match chance.choices(["commit", "roll back", "cut"], [70, 20, 10])[0]:
                    case "commit":
                        fate = Fate.IN_DOUBT
                        await transaction.commit()
                        fate = Fate.COMMITTED
                    case "roll back":
                        await transaction.rollback()
                    case _:
                        wire.cut()
        except Cut:
            pass
        self.referee.seen[f"app {fate.name.lower()}"] += 1
        return fate, answer if fate is Fate.COMMITTED else None

    # Upkeep, cuts, samples

    async def _recover(self, chance: random.Random) -> None:
        wire = self._wire()
        while not self._over.is_set():
            await asyncio.sleep(chance.uniform(*IDLE))
            dead = self._dead.copy()
            self._dead.clear()
            try:
                async with wire.open() as conn:
                    # Some leave properly; the others have been silent for long.
                    await conn.execute(
                        "select penstock.stop_worker(w) from unnest($1::bigint[]) w",
                        [worker for worker in dead if chance.random() < 0.5],
                    )
                    await conn.execute(
                        "update penstock.worker set beat_at = beat_at - interval '2 days'"
                        " where id = any ($1)",
                        dead,
                    )
                    rows = await conn.fetch("select verdict from penstock.recover_jobs()")
            except Cut:
                self._dead.extend(dead)
            else:
                self.referee.seen["recovered"] += sum(row["verdict"] == "done" for row in rows)

    async def _cut(self, chance: random.Random) -> None:
        conn = await self._connect()
        while not self._calm.is_set():
            await asyncio.sleep(chance.uniform(0.05, 0.25))
            wire = chance.choice(self._wires)
            self.referee.seen["cut"] += 1
            if chance.random() < 0.5:
                wire.cut()
            else:
                await conn.execute("select pg_terminate_backend($1)", wire.pid)

    async def _sample(self, _: random.Random) -> None:
        """M3, G6: in every snapshot."""
        conn = await self._connect()
        while not self._over.is_set():
            async with conn.transaction(isolation="repeatable_read", readonly=True):
                beyond = await conn.fetch(LIMITS)
                broken = await conn.fetch("select * from penstock.check()")
            assert not beyond, f"beyond a limit, or counted wrongly: {beyond}"
            assert not broken, f"invariants are broken: {broken}"
            self.referee.seen["snapshot"] += 1


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110  # only the database knows
        await asyncio.sleep(0.05)
