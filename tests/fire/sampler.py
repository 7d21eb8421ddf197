"""Checks one snapshot after the other during a storm; waits for an unavailable server.

In each snapshot no job started above a limit, counters equal the counts, no invariant is broken,
and the ledger is consistent with earlier snapshots.
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
# In a storm much work is delayed for some seconds: work counts as stuck if it is found in each
# check for this time and some seconds more.
STILL = timedelta(seconds=20)
STUCK_SECONDS = 3.0
POLL_SECONDS = 1.0
# An answer takes this long only from a stopped server or through a network that drops packets.
ANSWER_SECONDS = 20.0

# Like LIMITS of storm.py; but jobs that started before a limit was lowered may run on.
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
        """`dsn`: directly to the server, not through a relay."""
        self._wire = Wire(dsn)
        self._log = log
        self._auditor = Auditor()
        self.seen: Counter[str] = Counter()
        self._still: dict[tuple[str, str], float] = {}
        """Work that was stuck in each check since that time."""
        self._reported: set[tuple[str, str]] = set()
        self._polled_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        try:
            while not stop.is_set():
                await self.sample()
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self.close()

    def close(self) -> None:
        self._wire.cut()

    async def sample(self) -> None:
        """Check one snapshot and log the result."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._wire.open() as conn:
                await self._judge(conn)
                if time.monotonic() - self._polled_at >= POLL_SECONDS:
                    await self._check_stuck(conn)
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

    async def _check_stuck(self, conn: asyncpg.Connection) -> None:
        rows = await conn.fetch("select * from penstock.check_liveness($1)", STILL)
        now = self._polled_at = time.monotonic()
        found = {(row["rule"], row["subject"]): row for row in rows}
        self._still = {key: self._still.get(key, now) for key in found}
        for key, since in self._still.items():
            if now - since >= STUCK_SECONDS and key not in self._reported:
                self._reported.add(key)
                row = found[key]
                what = f"{row['rule']}: {row['subject']}, {row['detail']}, since {row['since']}"
                self._note("stuck", what)

    def _note(self, word: str, what: str = "") -> None:
        self.seen[word] += 1
        match word:
            case "sound" | "breach" | "away" | "stuck":
                self._log.write(Sample(word=word, what=what))
