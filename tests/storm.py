"""A storm: many connections claim, submit, cancel, snooze and die at once, on a seed.

    claimers    claim, work for milliseconds, report in batches with mixed outcomes, or die
    submitters  in transactions of their own that commit, roll back, or are cut
    cancellers  likewise
    upkeep      two at once, recovers what the dead held
    cutter      cuts connections, from our end or from the server's
    samplers    look at one snapshot after the other: within limits, counters equal counts

When most of the work is done the weather calms, and the claimers go on until nothing is left.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg

from clock import Clock
from penstock.db.pool import prepare
from referee import Fate, Referee

GONE = (asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, asyncpg.InterfaceError, OSError)

CLAIMERS = 50
SUBMITTERS = 6
CANCELLERS = 3
UPKEEPERS = 2
SAMPLERS = 2

# What a work of milliseconds, a poll and a moment of thought last, in seconds.
WORK = (0.0, 0.004)
IDLE = (0.02, 0.08)
THOUGHT = (0.0, 0.008)

OUTCOMES = {"succeeded": 80, "snoozed": 8, "retry": 5, "released": 4, "failed": 3}

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


class Session:
    """A connection that may be cut at any moment, and is opened again for the next call."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn: asyncpg.Connection | None = None

    async def open(self) -> asyncpg.Connection:
        if self._conn is None or self._conn.is_closed():
            self._conn = await asyncpg.connect(self._dsn)
            await prepare(self._conn)
        return self._conn

    def cut(self) -> None:
        """As a broken wire does: no goodbye, in the middle of whatever it was."""
        if self._conn is not None:
            self._conn.terminate()

    @property
    def pid(self) -> int | None:
        return None if self._conn is None or self._conn.is_closed() else self._conn.get_server_pid()


@dataclass
class Storm:
    dsn: str
    seed: int
    jobs: int
    accounts: int
    clock: Clock
    referee: Referee = field(default_factory=Referee)
    samples: int = 0

    def __post_init__(self) -> None:
        self._sessions: list[Session] = []
        self._abandoned: list[int] = []
        self._left_to_submit = self.jobs // 4
        self._calm = asyncio.Event()
        self._over = asyncio.Event()

    async def rage(self, seconds: float) -> None:
        """Fill the queue, let everyone loose, and come back when nothing is left to do."""
        watcher = await self._session().open()
        await self._fill(watcher)
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as actors:
            for act, n in (
                (self._claim, CLAIMERS),
                (self._submit, SUBMITTERS),
                (self._cancel, CANCELLERS),
                (self._recover, UPKEEPERS),
                (self._cut, 1),
                (self._sample, SAMPLERS),
            ):
                for number in range(n):
                    chance = random.Random(f"{self.seed} {act.__name__} {number}")
                    actors.create_task(act(chance))
            while await self._live(watcher) > self.jobs // 10 or self._left_to_submit > 0:
                await asyncio.sleep(0.1)
            self._calm.set()
            while await self._live(watcher) > 0:
                await self._hurry(watcher)
                await asyncio.sleep(0.05)
            self._over.set()
        for session in self._sessions:
            session.cut()

    def _session(self) -> Session:
        self._sessions.append(Session(self.dsn))
        return self._sessions[-1]

    async def _live(self, conn: asyncpg.Connection) -> int:
        live: int = await conn.fetchval("select count(*) from penstock.job")
        return live

    async def _hurry(self, conn: asyncpg.Connection) -> None:
        """What was lost twice waits for 10 s or 60 s: when all that is left does, time moves."""
        waits = await conn.fetchval(
            "select bool_and(status = 'scheduled') and min(run_at) > penstock.clock() + '1 second'"
            " from penstock.job"
        )
        if waits:
            await self.clock.advance("70s")

    async def _fill(self, conn: asyncpg.Connection) -> None:
        chance = random.Random(f"{self.seed} fill")
        for start in range(0, self.jobs, 500):
            tags = self.referee.tags(min(500, self.jobs - start))
            jobs = await self._accept(conn, tags, chance)
            self.referee.submitted(tags, Fate.COMMITTED, jobs)

    async def _accept(
        self, conn: asyncpg.Connection, tags: Sequence[int], chance: random.Random
    ) -> list[asyncpg.Record]:
        rows = await conn.fetch(
            "select id from penstock.submit_many($1, $2, $3, p_priorities => $4,"
            " p_delays => $5::text[]::interval[])",
            ["q"] * len(tags),
            [{"tag": tag} for tag in tags],
            [f"a{chance.randrange(self.accounts)}" for _ in tags],
            [chance.choice([0, 0, 0, 5, -5]) for _ in tags],
            [chance.choice([None, None, "0.02"]) for _ in tags],
        )
        return [row["id"] for row in rows]
