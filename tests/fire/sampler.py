"""Looks at one snapshot after the other in a storm; a server that is away is waited for.

In each: no limit is exceeded by a start, counters are counts, no invariant is broken, and the books
add up with what was seen before.
"""

import asyncio
import time
from collections import Counter
from datetime import timedelta

import asyncpg

from fire.logs import Log, Sample
from support.broken_connection import Cut, Wire
from support.storms.auditor import Auditor

PAUSE_SECONDS = 0.25
# In a storm much is held up for some seconds: what is found has stood still for so long, and for
# some seconds more, in each look.
STILL = timedelta(seconds=20)
STUCK_SECONDS = 3.0
LOOK_SECONDS = 1.0
# An answer takes this long only where nobody is there: a stopped server, a network that swallows.
ANSWER_SECONDS = 20.0

# As LIMITS of storm.py; but a limit that was lowered leaves what had started before.
_BEYOND = """
select 'queue ' || q.name as who, q.concurrency as most, g.running as counted, count(j.id) as found
from penstock.queue q join penstock.gate g on g.queue_id = q.id
left join penstock.job j on j.queue_id = q.id and j.status in ('running', 'awaiting')
where q.concurrency is not null
group by q.id, g.running
having count(j.id) <> g.running
  or (count(j.id) > q.concurrency and max(j.started_at) > q.changed_at)
union all
select 'account ' || coalesce(a.name, 'nobody'), a.concurrency, a.running, count(j.id)
from penstock.account a
left join penstock.job j on j.account_id = a.id and j.status in ('running', 'awaiting')
where a.concurrency is not null
group by a.id
having count(j.id) <> a.running
  or (count(j.id) > a.concurrency and max(j.started_at) > a.limited_at)
"""


class Sampler:
    def __init__(self, dsn: str, log: Log) -> None:
        """`dsn`: straight to the server, through no relay."""
        self._wire = Wire(dsn)
        self._log = log
        self._auditor = Auditor()
        self.seen: Counter[str] = Counter()
        self._still: dict[tuple[str, str], float] = {}
        """What stood still in each look since that moment."""
        self._told: set[tuple[str, str]] = set()
        self._looked = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        try:
            while not stop.is_set():
                await self.look()
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self.close()

    def close(self) -> None:
        self._wire.cut()

    async def look(self) -> None:
        """One snapshot; what it showed is written down."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._wire.open() as conn:
                await self._judge(conn)
                if time.monotonic() - self._looked >= LOOK_SECONDS:
                    await self._look_for_stuck(conn)
        except (Cut, TimeoutError, asyncpg.TooManyConnectionsError) as error:
            self._wire.cut()
            self._still.clear()
            self._note("away", type(error).__name__)
        except AssertionError as error:
            self._note("breach", str(error))
        else:
            self._note("sound")

    async def _judge(self, conn: asyncpg.Connection) -> None:
        async with conn.transaction(isolation="repeatable_read", readonly=True):
            beyond = await conn.fetch(_BEYOND)
            broken = await conn.fetch("select * from penstock.check()")
        assert not beyond, f"limits: {[dict(row) for row in beyond]}"
        assert not broken, f"invariants: {[dict(row) for row in broken]}"
        await self._auditor.check(conn)

    async def _look_for_stuck(self, conn: asyncpg.Connection) -> None:
        rows = await conn.fetch("select * from penstock.check_liveness($1)", STILL)
        now = self._looked = time.monotonic()
        found = {(row["rule"], row["subject"]): row for row in rows}
        self._still = {key: self._still.get(key, now) for key in found}
        for key, since in self._still.items():
            if now - since >= STUCK_SECONDS and key not in self._told:
                self._told.add(key)
                row = found[key]
                what = f"{row['rule']}: {row['subject']}, {row['detail']}, since {row['since']}"
                self._note("stuck", what)

    def _note(self, word: str, what: str = "") -> None:
        self.seen[word] += 1
        match word:
            case "sound" | "breach" | "away" | "stuck":
                self._log.write(Sample(word=word, what=what))
