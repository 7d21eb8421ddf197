"""The hands of the test clock: what `penstock.clock()` answers in a test's database."""

from datetime import datetime, timedelta

import asyncpg

from penstock.settings import duration


class Clock:
    """Moves the only "now" there is. Everything that is committed later sees the new time."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self._conn = conn  # its own, or a test's open transaction would hide the move

    async def now(self) -> datetime:
        moment: datetime = await self._conn.fetchval("select penstock.clock()")
        return moment

    async def advance(self, by: str | float | timedelta, *, beats: bool = False) -> None:
        """Move on by `"5m"`. With `beats`, live workers' heartbeats move along.

        Without, a worker falls silent for that long, as seen by everyone else. Worker processes
        that really run need `beats`: their next beat is seconds away, and the lease is shorter
        than most moves.
        """
        step = duration(by, field="by")
        async with self._conn.transaction():
            await self._conn.execute("update penstock.test_clock set moved = moved + $1", step)
            if beats:
                await self._conn.execute(
                    "update penstock.worker set beat_at = beat_at + $1"
                    " where stopped_at is null and lost_at is null",
                    step,
                )

    async def freeze(self, at: datetime | None = None) -> datetime:
        """Stop at this moment, or at `at`; `advance` still moves it."""
        moment: datetime = await self._conn.fetchval(
            "update penstock.test_clock"
            " set frozen_at = coalesce($1, penstock.clock()), moved = '0' returning frozen_at",
            at,
        )
        return moment

    async def thaw(self) -> None:
        """Run on from where it stands."""
        await self._conn.execute(
            "update penstock.test_clock"
            " set moved = penstock.clock() - clock_timestamp(), frozen_at = null"
        )
