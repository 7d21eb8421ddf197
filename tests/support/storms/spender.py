"""A caller in a storm over credits: submits jobs, cancels them, deducts and refunds."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from support.broken_connection import Cut, Wire
from support.shapes import T
from support.storms.claimer import THOUGHT
from support.storms.receipts import (
    PRICE_OF_QUALITY,
    SPLIT_MOST,
    Entry,
    Receipts,
    Request,
    price_of,
)
from support.storms.referee import Fate

IDLE = (0.05, 0.5)
RECENT = 60

ACCOUNTS = {"one": 85, "tight": 15}
# Refusals that are expected, and leave nothing behind.
REFUSALS = {
    "insufficient_credits",
    "unknown_ref",
    "job_not_finished",
    "job_contended",
    "dedupe_contended",
}


class Spender:
    def __init__(self, wire: Wire, receipts: Receipts, chance: random.Random) -> None:
        self._wire = wire
        self._receipts = receipts
        self._chance = chance

    async def run(self, calm: asyncio.Event) -> None:
        acts = {
            self._submit: 56,
            self._submit_batch: 12,
            self._cancel: 16,
            self._cancel_batch: 2,
            self._deduct: 5,
            self._refund: 5,
            self._retry: 4,
        }
        while not calm.is_set():
            [act] = self._chance.choices(list(acts), list(acts.values()))
            await act()
            await asyncio.sleep(self._chance.uniform(*IDLE))

    # Jobs

    def _job(self) -> tuple[str, dict[str, Any]]:
        """A kind and a payload, whose price is between 1 and 50."""
        kind = self._chance.choices(["plain", "fixed", "table", "split"], [40, 15, 30, 15])[0]
        match kind:
            case "plain":
                return kind, {"cost": self._chance.randint(1, 50)}
            case "table":
                payload: dict[str, Any] = {
                    "images": self._chance.randint(1, 16),
                    "quality": self._chance.choice(list(PRICE_OF_QUALITY)),
                }
                if self._chance.random() < 0.2:  # its caller sets the price
                    payload["cost"] = self._chance.randint(1, 50)
                return kind, payload
            case "split":
                return kind, {"images": self._chance.randint(1, 12)}
        return kind, {}

    def _account(self) -> str:
        return self._chance.choices(list(ACCOUNTS), list(ACCOUNTS.values()))[0]

    def _times(self) -> dict[str, Any]:
        return {
            "delay": self._chance.choices([None, 0.05], [80, 20])[0],
            "timeout": self._chance.choice([0.5, 3_600.0]),
            "expires": self._chance.choices([None, 0.3], [85, 15])[0],
            "attempts": self._chance.choice([None, 1, 2]),
        }

    async def _submit(self) -> None:
        """Submit with a key, so that the effect is known in the end."""
        kind, payload = self._job()
        account, times = self._account(), self._times()
        tag = len(self._receipts.requests)
        pieces = [payload]
        if kind == "split":
            n = payload["images"]
            pieces = [{"images": min(SPLIT_MOST, n - begun)} for begun in range(0, n, SPLIT_MOST)]
        request = self._receipts.asks([(account, price_of(kind, p)) for p in pieces], tag)
        dedupe = None
        if kind != "split" and self._chance.random() < 0.1:
            dedupe = f"d{self._chance.randrange(4)}"

        async def submit(conn: asyncpg.Connection) -> asyncpg.Record | None:
            return await conn.fetchrow(
                _SUBMIT,
                kind,
                payload | {"tag": tag},
                account,
                dedupe,
                _seconds(times["delay"]),
                times["attempts"],
                _seconds(times["timeout"]),
                _seconds(times["expires"]),
                f"key {tag}",
                payload.get("cost"),
            )

        cuts = self._wire.cuts
        answer = await self._unless_refused(submit)
        if answer is None or answer["deduplicated"]:
            # After a cut, the first call may still run, and find credits again.
            request.fate = Fate.ROLLED_BACK if cuts == self._wire.cuts else Fate.IN_DOUBT
            return
        self._receipts.seen["replayed after a cut"] += answer["replayed"]
        assert answer["balance"] >= 0, f"a balance below zero: {answer}"
        self._note(request, answer["ids"] or [answer["id"]], answer["batch"])
        if self._chance.random() < 0.1:
            again = await self._wire.insist(submit)
            assert again
            assert again["replayed"]
            assert (again["id"], again["ids"]) == (answer["id"], answer["ids"])

    def _note(self, request: Request, jobs: list[UUID], batch: UUID | None) -> None:
        self._receipts.accepted(request, jobs)
        if batch:
            self._receipts.batches.append(batch)

    async def _unless_refused(self, call: Callable[[asyncpg.Connection], Awaitable[T]]) -> T | None:
        """The call's answer, however often the connection is cut; None: refused."""
        while True:
            try:
                return await self._wire.insist(call)
            except asyncpg.PostgresError as error:
                if not str(error.sqlstate).startswith("PS"):
                    raise
                detail = json.loads(error.detail or "{}")
                if detail["code"] == "idempotency_in_progress":
                    continue  # the server has not noticed the cut yet
                if detail["code"] not in REFUSALS:
                    raise
                self._receipts.refused(error, detail)
                return None

    async def _submit_batch(self) -> None:
        """Submit without a key, in a transaction that commits, rolls back or is cut."""
        tag = len(self._receipts.requests)
        items = []
        wanted = []
        for _ in range(self._chance.choice([2, 3, 5])):
            kind, payload = self._job()
            if kind == "split":
                payload["images"] = min(payload["images"], SPLIT_MOST)
            account = self._account()
            wanted.append((account, price_of(kind, payload)))
            items.append(
                {"kind": kind, "payload": payload | {"tag": tag}, "account": account}
                | ({"price": payload["cost"]} if "cost" in payload else {})
            )
        request = self._receipts.asks(wanted, tag)
        fate = Fate.ROLLED_BACK
        rows: list[asyncpg.Record] = []
        try:
            async with self._wire.open() as conn:
                transaction = conn.transaction()
                await transaction.start()
                try:
                    rows = await conn.fetch(_SUBMIT_BATCH, items)
                except asyncpg.PostgresError as error:
                    if error.sqlstate != "PS402":
                        raise
                    await transaction.rollback()
                    self._receipts.refused(error, json.loads(error.detail or "{}"))
                    request.fate = fate
                    return
                await asyncio.sleep(self._chance.uniform(*THOUGHT))
                match self._chance.choices(["commit", "roll back", "cut"], [80, 12, 8])[0]:
                    case "commit":
                        fate = Fate.IN_DOUBT
                        await transaction.commit()
                        fate = Fate.COMMITTED
                    case "roll back":
                        await transaction.rollback()
                    case _:
                        self._wire.cut()
        except Cut:
            pass
        request.fate = fate
        self._receipts.seen[f"batch {fate.name.lower()}"] += 1
        if fate is Fate.COMMITTED:
            self._note(request, [UUID(row["id"]) for row in rows], UUID(rows[0]["batch"]))

    async def _cancel(self) -> None:
        if not self._receipts.jobs:
            return
        job = self._chance.choice(self._receipts.jobs[-RECENT:])
        answer = await self._unless_refused(
            lambda conn: conn.fetchval("select penstock.cancel_job($1)", job)
        )
        if answer:
            self._receipts.seen["cancels"] += 1
            self._receipts.shown(job, answer["status"])

    async def _cancel_batch(self) -> None:
        if not self._receipts.batches:
            return
        batch = self._chance.choice(self._receipts.batches[-RECENT // 4 :])
        answer = await self._unless_refused(
            lambda conn: conn.fetchval("select penstock.cancel_batch($1)", batch)
        )
        if answer:
            self._receipts.seen["batch cancels"] += 1
            total = answer["credits"]
            assert total["charged"] + total["refunded"] <= total["reserved"], answer
            for item in answer["items"]:
                self._receipts.shown(UUID(item["id"]), item["status"])

    async def _retry(self) -> None:
        """Retry by hand: a new job at the present price."""
        if not self._receipts.ends:
            return
        job = self._chance.choice(list(self._receipts.ends)[-RECENT:])
        answer = await self._unless_refused(
            lambda conn: conn.fetchval("select penstock.retry_job($1)", job)
        )
        if answer and not answer["deduplicated"] and answer["id"] != str(job):
            self._receipts.seen["retried by hand"] += 1
            self._receipts.retries[UUID(answer["id"])] = job

    # Credits

    async def pay(self, account: str, amount: int, ref: str) -> None:
        """Buy credits; now and then the payment is reported twice."""
        entry = self._receipts.books(account, "grant", ref, amount)
        for _ in range(2 if self._chance.random() < 0.2 else 1):
            await self._book(entry, ref, _GRANT, account, amount, ref)

    async def _deduct(self) -> None:
        known = [key for key in self._receipts.entries if key[1] == "deduct"]
        if known and self._chance.random() < 0.3:
            account, _, ref = self._chance.choice(known[-RECENT:])
            amount = self._receipts.entries[account, "deduct", ref].amount
        else:
            account, ref = self._account(), f"ref {self._chance.getrandbits(64):x}"
            amount = self._chance.randint(1, 20)
        entry = self._receipts.books(account, "deduct", ref, amount)
        await self._book(entry, ref, _DEDUCT, account, amount, ref)

    async def _refund(self) -> None:
        known = [key for key in self._receipts.entries if key[1] == "deduct"]
        if known:
            account, _, ref = self._chance.choice(known[-RECENT:])
            amount = self._receipts.entries[account, "deduct", ref].amount
            entry = self._receipts.books(account, "refund", ref, amount)
            await self._book(entry, ref, _REFUND, account, ref)

    async def _book(self, entry: Entry, ref: str, call: str, *arguments: Any) -> None:
        """Repeat until there is an answer; the reference makes it happen only once."""
        was, cuts = entry.fate, self._wire.cuts
        answer = await self._unless_refused(lambda conn: conn.fetchval(call, *arguments))
        entry.is_loose |= cuts < self._wire.cuts
        if answer:
            assert (answer["ref"], abs(answer["amount"])) == (ref, entry.amount)
            assert answer["balance"] >= 0, f"a balance below zero: {answer}"
            assert answer["replayed"] or was is not Fate.COMMITTED, answer
            entry.fate = Fate.COMMITTED
            self._receipts.seen[f"{answer['kind']}{', replayed' * answer['replayed']}"] += 1
        elif entry.fate is Fate.IN_DOUBT:
            entry.fate = Fate.ROLLED_BACK


def _seconds(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


_SUBMIT = """
select id, deduplicated, replayed, balance, batch, ids from penstock.submit_one($1, $2, $3, $4,
  p_delay => $5, p_max_attempts => $6, p_timeout => $7, p_expires => $8, p_key => $9,
  p_price => $10)
"""
_SUBMIT_BATCH = """
select job ->> 'id' as id, job ->> 'batch' as batch
from penstock.submit_jobs($1) with ordinality s (job, n) order by n
"""
_GRANT = "select penstock.grant_credits($1, $2, 'bought', $3)"
_DEDUCT = "select penstock.deduct_credits($1, $2, 'tokens', $3)"
_REFUND = "select penstock.refund_credits($1, $2, 'too slow')"
