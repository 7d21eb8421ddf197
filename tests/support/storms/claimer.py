"""A worker in a storm: claims, works for milliseconds, reports in batches, or dies."""

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

import asyncpg

from support.broken_connection import Cut, Wire
from support.storms.referee import Referee

# How long the work, a poll and an app's transaction take, in seconds.
WORK = (0.0, 0.004)
IDLE = (0.02, 0.08)
THOUGHT = (0.0, 0.008)

OUTCOMES = {"succeeded": 80, "snoozed": 8, "retry": 5, "released": 4, "failed": 3}


class Claimer:
    def __init__(
        self, wire: Wire, referee: Referee, bury: Callable[[int], None], chance: random.Random
    ) -> None:
        self._wire = wire
        self._referee = referee
        self._bury = bury  # passes the number of a dead worker to upkeep
        self._chance = chance
        self._worker: int | None = None

    async def run(self, over: asyncio.Event, calm: asyncio.Event) -> None:
        while not over.is_set():
            try:
                rows = await self._claim()
            except Cut:
                self._die()  # whether its claim took effect is not known
                continue
            if not rows:
                await self._pause(IDLE)
                continue
            await self._pause(WORK)
            if not calm.is_set() and self._chance.random() < 0.02:
                await self._die_with(rows)
                continue
            if self._chance.random() < 0.05:
                await self._hand_over(rows.pop())
            await self._report(rows)

    def _die(self) -> None:
        """Die with all open attempts; a new worker goes on."""
        if self._worker is not None:
            self._referee.abandons(self._worker)
            self._bury(self._worker)
        self._worker = None

    async def _die_with(self, rows: Sequence[asyncpg.Record]) -> None:
        """Die, but perhaps report success after being declared lost: the first report counts."""
        worker = self._worker
        self._wire.cut()
        self._die()
        await self._pause(IDLE)
        if self._chance.random() < 0.5:
            try:
                answers = await self._finish(worker, rows, ["succeeded"] * len(rows))
            except Cut:
                return
            for row in rows:
                self._referee.answered(row, *answers[row["id"]], late=True)

    async def _pause(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._chance.uniform(*seconds))

    async def _claim(self) -> list[asyncpg.Record]:
        claim = "select id, attempt, slot_account from penstock.claim_jobs($1, 'q', $2, $3)"
        limit, wait = self._chance.choice([1, 1, 2, 5]), self._chance.random() < 0.3
        async with self._wire.open() as conn:
            if self._worker is None:
                self._worker = await conn.fetchval("select penstock.register_worker('w', '1 day')")
            if self._chance.random() < 0.8:
                rows = list(await conn.fetch(claim, self._worker, limit, wait))
            else:
                async with conn.transaction():
                    rows = list(await conn.fetch(claim, self._worker, limit, wait))
                    await self._pause(THOUGHT)
            self._referee.claimed(self._worker, rows)
        return rows

    async def _report(self, rows: list[asyncpg.Record]) -> None:
        """Repeat until each answer is done, or stale if a cut report may have taken effect."""
        outcomes = self._chance.choices(list(OUTCOMES), list(OUTCOMES.values()), k=len(rows))
        while rows:
            self._referee.reports(rows, outcomes)
            try:
                answers = await self._finish(self._worker, rows, outcomes)
            except Cut:
                self._referee.doubts(rows)
                continue
            for row in rows:
                self._referee.answered(row, *answers[row["id"]])
            locked = [n for n, row in enumerate(rows) if answers[row["id"]][0] == "locked"]
            rows, outcomes = [rows[n] for n in locked], [outcomes[n] for n in locked]
            if rows:
                await self._pause(THOUGHT)

    async def _finish(
        self, worker: int | None, rows: Sequence[asyncpg.Record], outcomes: Sequence[str]
    ) -> dict[UUID, tuple[str, str | None]]:
        slots = list({row["slot_account"] for row in rows} - {None})
        async with self._wire.open() as conn:
            answers = await conn.fetch(
                "select job_id, verdict, status::text from penstock.finish_jobs("
                "$1, $2, $3, $4, p_delays => $5, p_accounts => $6)",
                worker,
                [row["id"] for row in rows],
                [row["attempt"] for row in rows],
                outcomes,
                [timedelta(seconds=self._chance.choice([0, 0.02, 0.05])) for _ in rows],
                slots if self._chance.random() < 0.5 else None,
            )
        return {row["job_id"]: (row["verdict"], row["status"]) for row in answers}

    async def _hand_over(self, row: asyncpg.Record) -> None:
        """Dispatch the job; its callback comes later."""
        token = f"{self._chance.getrandbits(128):032x}"
        start = ([row["id"]], [row["attempt"]])
        self._referee.reports([row], ["succeeded"])
        verdict = answer = "locked"
        while answer == "locked":
            try:
                async with self._wire.open() as conn:
                    if verdict == "locked":
                        verdict = await conn.fetchval(
                            "select verdict from penstock.hand_over_jobs($1, $2, $3, $4)",
                            self._worker,
                            *start,
                            [token],
                        )
                    await self._pause(WORK)
                    if verdict != "locked":
                        answer = await conn.fetchval(
                            "select outcome from penstock.resolve_callbacks($1, $2, $3, $4)",
                            *start,
                            [token],
                            ["succeeded"],
                        )
            except Cut:
                self._referee.doubts([row])
        self._referee.called_back(row, answer)
