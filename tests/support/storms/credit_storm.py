"""A storm over credits: callers spend, workers charge or refund, and the server is killed.

    spenders   see spender.py; most of them use one account
    payer      buys more whenever the account is nearly empty, which it is most of the time
    hands      the workers: see credit_worker.py
    upkeep     two at once, recovers attempts of dead workers and attempts over their time
    cutter     cuts connections in the middle of calls, from the client's or the server's end
    killer     kills the server and restarts it
    auditor    see auditor.py; one snapshot after the other

When the time is over, only the hands go on, until no job is left.
"""

import asyncio
import random
import time

import asyncpg

from penstock.client.testing import clock_script
from penstock.db.connections.pool import prepare
from penstock.db.schema import migrations
from support.broken_connection import Cut, Wire
from support.clock import Clock
from support.servers.killable import Killable
from support.storms.auditor import Auditor
from support.storms.claimer import IDLE
from support.storms.credit_worker import Hand
from support.storms.receipts import FIXED_PRICE, PRICE_EACH, PRICE_OF_QUALITY, SPLIT_MOST, Receipts
from support.storms.spender import Spender

SPENDERS = 32
HANDS = 8
UPKEEPERS = 2

FIRST_CREDITS = 1_000
# How long nothing may happen before the clock is moved for waiting jobs.
STILL_SECONDS = 0.3
AUDIT_PAUSE_SECONDS = 0.02
CALM_SECONDS = 120

KINDS = {
    "plain": {},
    "fixed": {"price": FIXED_PRICE},
    "table": {"price": {"per": "images", "by": "quality", **PRICE_OF_QUALITY}},
    "split": {
        "price": {"per": "images", "each": PRICE_EACH},
        "split_field": "images",
        "split_most": SPLIT_MOST,
    },
}


class CreditStorm:
    def __init__(self, server: Killable, seed: int) -> None:
        self._server = server
        self._seed = seed
        self._wires: list[Wire] = []
        self._never_cut: list[Wire] = []
        self._dead: list[int] = []
        self._up = asyncio.Event()
        self._calm = asyncio.Event()
        self._over = asyncio.Event()
        self.receipts = Receipts()
        self.auditor = Auditor()

    async def prepare(self) -> None:
        self._up.set()
        conn = await self._connect()
        await migrations.up(conn)
        await conn.execute(clock_script())
        # Short times: an attempt that is not settled is over its time, or stuck, within seconds.
        options = {"timeout_seconds": 3_600, "stuck_after_seconds": 3, "delay_seconds": 0}
        await conn.execute("select penstock.declare_queue('q', $1)", options)
        for kind, price in KINDS.items():
            await conn.execute("select penstock.declare_kind($1, 'q', $2)", kind, price)
        await conn.execute("select penstock.declare_plan('free', $1)", {"default": True})
        await conn.execute("select penstock.declare_plan('few', $1)", {"concurrency": 3})
        await conn.execute("select penstock.create_account('one', 'free')")
        await conn.execute("select penstock.create_account('tight', 'few')")
        conn.terminate()

    async def rage(self, seconds: float, kills: int) -> None:
        """Run all actors for this time, and return when no job is left."""
        payer = Spender(self._wire(never_cut=True), self.receipts, self._chance("first"))
        await payer.pay("one", FIRST_CREDITS, "first")
        await payer.pay("tight", FIRST_CREDITS // 4, "first")
        async with asyncio.timeout(seconds + CALM_SECONDS), asyncio.TaskGroup() as actors:
            for act, n in (
                (self._spend, SPENDERS),
                (self._pay, 1),
                (self._work, HANDS),
                (self._recover, UPKEEPERS),
                (self._cut, 1),
                (self._audit, 1),
            ):
                for number in range(n):
                    actors.create_task(act(self._chance(f"{act.__name__} {number}")))
            await self._kill(seconds, kills)
            self._calm.set()
            await self._until_nothing_is_left()
            self._over.set()

    async def close(self) -> None:
        """The state after the storm: no jobs, all resolved, every answer was true."""
        conn = await self._connect()
        try:
            await self.auditor.check(conn, thorough=True)
            assert not await conn.fetch("select * from penstock.reconcile()")
            left = "select (select count(*) from penstock.job) + sum(running) from penstock.account"
            assert await conn.fetchval(left) == 0
            for row in await conn.fetch(_BOOKS):
                assert row["charged"] + row["balance"] == row["granted"] - row["deducted"], row
            await self.receipts.hold(conn)
        finally:
            conn.terminate()
            for wire in self._wires + self._never_cut:
                wire.cut()

    def figures(self) -> str:
        seen = dict(sorted(self.receipts.seen.items()))
        return (
            f"{self.auditor.snapshots} snapshots, lowest balances {self.auditor.lowest},"
            f" slowest report {self.receipts.slowest:.2f} s, {seen}"
        )

    def _chance(self, name: str) -> random.Random:
        return random.Random(f"{self._seed} {name}")

    async def _connect(self) -> asyncpg.Connection:
        conn = await asyncpg.connect(self._server.dsn)
        await prepare(conn)
        return conn

    def _wire(self, *, never_cut: bool = False) -> Wire:
        """A connection that the cutter may cut, unless `never_cut`."""
        wire = Wire(self._server.dsn, self._up)
        (self._never_cut if never_cut else self._wires).append(wire)
        return wire

    # Actors

    async def _spend(self, chance: random.Random) -> None:
        await Spender(self._wire(), self.receipts, chance).run(self._calm)

    async def _pay(self, chance: random.Random) -> None:
        wire = self._wire()
        payer = Spender(wire, self.receipts, chance)
        n = 0
        while not self._calm.is_set():
            await asyncio.sleep(chance.uniform(0.1, 0.4))
            poor = await wire.insist(
                lambda conn: conn.fetch(
                    "select name from penstock.account where balance < 60 and id <> 0"
                )
            )
            for row in poor:
                n += 1
                await payer.pay(row["name"], chance.randint(20, 400), f"payment {n}")

    async def _work(self, chance: random.Random) -> None:
        hand = Hand(self._wire(), self.receipts, self._dead.append, chance)
        await hand.run(self._over, self._calm)

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
                        [worker for worker in dead if chance.random() < 0.4],
                    )
                    await conn.execute(
                        "update penstock.worker set beat_at = beat_at - interval '2 days'"
                        " where id = any ($1)",
                        dead,
                    )
                    rows = await conn.fetch(
                        "select job_id, outcome, verdict, status::text from penstock.recover_jobs()"
                    )
            except Cut:
                self._dead.extend(dead)
                continue
            for row in rows:
                if row["verdict"] == "done":
                    self.receipts.seen[f"recovered, {row['outcome']}"] += 1
                    # What a cancelled job has delivered is not known here.
                    charged = 0 if row["status"] == "failed" else None
                    self.receipts.finished(row["job_id"], row["status"], charged)

    async def _cut(self, chance: random.Random) -> None:
        wire = self._wire(never_cut=True)
        while not self._calm.is_set():
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            victim = chance.choice(self._wires)
            self.receipts.seen["connections cut"] += 1
            if chance.random() < 0.5:
                victim.cut()
            elif pid := victim.pid:
                try:
                    async with wire.open() as conn:
                        await conn.execute("select pg_terminate_backend($1)", pid)
                except Cut:
                    continue

    async def _kill(self, seconds: float, kills: int) -> None:
        """Kill the server so many times, spread over the time; then the storm is over."""
        chance = self._chance("kill")
        ends = time.monotonic() + seconds
        for left in range(kills, 0, -1):
            await asyncio.sleep((ends - time.monotonic()) / (left + 1) * chance.uniform(0.7, 1.3))
            await asyncio.to_thread(self._server.kill)
            await asyncio.sleep(chance.uniform(0, 0.05))  # some actors notice it
            self._up.clear()
            await asyncio.to_thread(self._server.start)
            self._up.set()
            self.receipts.seen["servers killed"] += 1
        await asyncio.sleep(max(0, ends - time.monotonic()))

    async def _audit(self, _: random.Random) -> None:
        wire = self._wire(never_cut=True)
        while not self._over.is_set():
            await wire.insist(self.auditor.check)
            await asyncio.sleep(AUDIT_PAUSE_SECONDS)

    async def _until_nothing_is_left(self) -> None:
        conn = await self._connect()
        clock = Clock(conn)
        last, since = -1, time.monotonic()
        while live := await conn.fetchval("select count(*) from penstock.job"):
            if live != last:
                last, since = live, time.monotonic()
            elif time.monotonic() - since > STILL_SECONDS:
                # All remaining jobs wait: for a minute after a crash, for a cancel to be noticed.
                await clock.advance("70s")
                since = time.monotonic()
            await asyncio.sleep(0.05)
        conn.terminate()


# Computed again from the tables, all at once.
_BOOKS = """
select a.name, a.balance,
  (select coalesce(sum(l.amount), 0) from penstock.ledger l
   where l.account_id = a.id and l.kind = 'grant') as granted,
  (select coalesce(-sum(l.amount), 0) from penstock.ledger l
   where l.account_id = a.id and l.ref is not null and l.kind <> 'grant') as deducted,
  (select coalesce(sum(r.charged), 0) from penstock.resolution r
   where r.account_id = a.id) as charged
from penstock.account a where a.id <> 0
"""
