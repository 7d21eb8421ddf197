"""A worker in a storm over credits: settles its attempts in every way, dies, or reports late.

Unlike the one of claimer.py it may lose attempts to upkeep while it lives, since time limits are
short here. So it asserts only this: a job that has finished does not finish again.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg

from support.broken_connection import Cut, Wire
from support.storms.claimer import IDLE, WORK
from support.storms.receipts import Receipts, charge_of, price_of

OUTCOMES = {
    "succeeded": 50,
    "failed": 10,
    "retry": 10,
    "timed_out": 7,
    "cancelled": 5,
    "deferred": 6,
    "snoozed": 3,
    "released": 3,
    "provisional": 3,
    "stuck": 3,
}
CALM_OUTCOMES = {"succeeded": 80, "failed": 20}


@dataclass
class Start:
    """An attempt that it has claimed; `units` as far as it knows them to be written."""

    worker: int
    row: asyncpg.Record
    units: int | None = None
    is_known: bool = True  # whether it knows what it has written
    cancel: bool = False


class Hand:
    def __init__(
        self, wire: Wire, receipts: Receipts, bury: Callable[[int], None], chance: random.Random
    ) -> None:
        self._wire = wire
        self._receipts = receipts
        self._bury = bury  # passes the number of a dead worker to upkeep
        self._chance = chance
        self._worker: int | None = None
        self._old: deque[Start] = deque(maxlen=30)
        self._is_calm = False

    async def run(self, over: asyncio.Event, calm: asyncio.Event) -> None:
        while not over.is_set():
            self._is_calm = calm.is_set()
            try:
                starts = await self._claim()
            except Cut:
                self._die()  # whether its claim took effect is not known
                starts = []
            if self._old and self._chance.random() < 0.15:
                await self._report_late()
            if not starts:
                await self._pause(IDLE)
                continue
            self._old.extend(starts)
            await self._pause(WORK)
            await self._report_units(starts)
            if not self._is_calm and self._chance.random() < 0.06:
                self._wire.cut()
                self._die()
                continue
            if self._chance.random() < 0.1:
                await self._hand_over(starts.pop())
            await self._report(starts)

    def _die(self) -> None:
        """Die with all open attempts, without reporting; a new worker goes on."""
        self._receipts.seen["workers died"] += 1
        # Some workers are not declared lost before their attempts are over their time.
        if self._worker is not None and self._chance.random() < 0.7:
            self._bury(self._worker)
        self._worker = None

    async def _report_late(self) -> None:
        """Report the outcome of an old attempt, perhaps of a worker that was declared lost."""
        starts, ends = self._receipts.starts, self._receipts.ends
        # Preferably one that another attempt has followed by now.
        followed = [
            start
            for start in self._old
            if starts[start.row["id"]] > start.row["attempt"] and start.row["id"] not in ends
        ]
        start = self._chance.choice(followed or self._old)
        outcome = self._chance.choice(["succeeded", "succeeded", "failed", "cancelled", "retry"])
        try:
            await self._finish([start], [outcome], late=True)
        except Cut:
            return

    async def _pause(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._chance.uniform(*seconds))

    async def _claim(self) -> list[Start]:
        limit, wait = self._chance.choice([1, 1, 2, 5]), self._chance.random() < 0.3
        async with self._wire.open() as conn:
            if self._worker is None:
                self._worker = await conn.fetchval("select penstock.register_worker('w', '1 day')")
            rows = await conn.fetch(
                "select id, attempt, kind, payload, slot_account"
                " from penstock.claim_jobs($1, 'q', $2, $3)",
                self._worker,
                limit,
                wait,
            )
        self._receipts.seen["starts"] += len(rows)
        for row in rows:
            self._receipts.started(row["id"], row["attempt"])
        return [Start(self._worker or 0, row) for row in rows]

    async def _report_units(self, starts: Sequence[Start]) -> None:
        """With their progress, report for some what they have delivered so far."""
        if self._chance.random() < 0.6:
            return
        for start in starts:
            units = self._units(start)
            start.is_known = False
            try:
                async with self._wire.open() as conn:
                    answer = await conn.fetchrow(
                        "select verdict, cancel from penstock.report_progress($1, $2, $3, $4, $4,"
                        " $5, $6)",
                        start.worker,
                        [start.row["id"]],
                        [start.row["attempt"]],
                        [None],
                        [None],
                        [units],
                    )
            except Cut:
                continue
            assert answer
            start.is_known = True
            start.cancel = answer["cancel"]
            if answer["verdict"] == "done":
                start.units = units

    def _units(self, start: Start) -> int:
        return self._chance.randint(0, price_of(start.row["kind"], start.row["payload"]) + 2)

    async def _hand_over(self, start: Start) -> None:
        """Dispatch it; its callback comes later, whichever worker has the job by then."""
        token = f"{self._chance.getrandbits(128):032x}"
        outcome = self._chance.choice(["succeeded", "succeeded", "failed"])
        units = self._units(start) if self._chance.random() < 0.5 else None
        named = ([start.row["id"]], [start.row["attempt"]], [token])
        verdict = answer = "locked"
        while verdict == "locked":
            verdict = await self._wire.insist(
                lambda conn: conn.fetchval(
                    "select verdict from penstock.hand_over_jobs($1, $2, $3, $4)",
                    start.worker,
                    *named,
                )
            )
        self._receipts.reports(start.row["id"], start.row["attempt"], outcome)
        while answer == "locked":
            await self._pause(IDLE)
            answer = await self._wire.insist(
                lambda conn: conn.fetchval(
                    "select outcome from penstock.resolve_callbacks($1, $2, $3, $4, p_units => $5)",
                    *named,
                    [outcome],
                    [units],
                )
            )
        self._receipts.seen[f"callback, {answer}"] += 1
        if answer == "accepted":
            self._note_end(start, outcome, units)

    async def _report(self, starts: list[Start]) -> None:
        """Repeat until each is done, or stale: its time was over, or a cut report took effect."""
        chances = CALM_OUTCOMES if self._is_calm else OUTCOMES
        outcomes = self._chance.choices(list(chances), list(chances.values()), k=len(starts))
        for n, start in enumerate(starts):
            if start.cancel and self._chance.random() < 0.7:
                outcomes[n] = "cancelled"
        began = time.monotonic()
        while starts:
            try:
                locked = await self._finish(starts, outcomes)
            except Cut:
                await self._pause(IDLE)
                continue
            starts, outcomes = [starts[n] for n in locked], [outcomes[n] for n in locked]
            if starts:
                await self._pause(IDLE)
        self._receipts.slowest = max(self._receipts.slowest, time.monotonic() - began)

    async def _finish(
        self, starts: Sequence[Start], outcomes: Sequence[str], *, late: bool = False
    ) -> list[int]:
        """Report outcomes, and record the answers; return which of them were locked."""
        units = [self._units(s) if self._chance.random() < 0.4 else None for s in starts]
        slots = list({start.row["slot_account"] for start in starts} - {None})
        rows = [start.row for start in starts]
        for row, outcome in zip(rows, outcomes, strict=True):
            self._receipts.reports(row["id"], row["attempt"], outcome)
        async with self._wire.open() as conn:
            answers = await conn.fetch(
                "select job_id, verdict, status::text from penstock.finish_jobs($1, $2, $3, $4,"
                " p_delays => $5, p_accounts => $6, p_units => $7)",
                starts[0].worker,
                [row["id"] for row in rows],
                [row["attempt"] for row in rows],
                outcomes,
                [timedelta(seconds=self._chance.choice([0, 0.02, 0.05])) for _ in rows],
                slots if self._chance.random() < 0.5 else None,
                units,
            )
        by_job = {answer["job_id"]: answer for answer in answers}
        locked = []
        for n, start in enumerate(starts):
            answer: Any = by_job[start.row["id"]]
            self._receipts.seen[f"{'late, ' * late}{answer['verdict']}"] += 1
            if answer["verdict"] == "done":
                self._note_end(start, answer["status"], units[n])
            elif answer["verdict"] == "locked":
                locked.append(n)
        return locked

    def _note_end(self, start: Start, status: str, units: int | None) -> None:
        charged = None
        if units is not None or start.is_known:
            delivered = start.units if units is None else units
            charged = charge_of(start.row["kind"], start.row["payload"], status, delivered)
        self._receipts.finished(start.row["id"], status, charged, start.row["attempt"])
