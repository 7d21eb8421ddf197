"""Attempts that go on outside: dispatched under a token, and finished by a callback with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from penstock.db.adapters.caller_connection import borrow
from penstock.engine.jobs.attempts import (
    NO_BEARING,
    Bearing,
    Claimed,
    OutcomeRow,
    bearing_columns,
)
from penstock.engine.statements import Statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What a function reports of one attempt; its JSON is text."""

    job_id: UUID
    attempt: int
    token: str
    outcome: str
    """succeeded, failed, retry, provisional, deferred or progress"""
    result: str | None = None
    error: str | None = None
    units: int | None = None
    usage: str | None = None
    delay: timedelta | None = None
    bearing: Bearing | None = None
    """Without an address: only a worker reports one."""
    stage: str | None = None
    progress: str | None = None


class Resolved(NamedTuple):
    """Answer to an item: accepted, duplicate, stale, unknown, invalid, or locked (try again)."""

    job_id: UUID
    outcome: str


class KindAndQueue(NamedTuple):
    """The kind and queue of a job."""

    kind: str
    queue: str


class Callbacks(Statements):
    async def hand_over(self, worker: int, claimed: Claimed, token: str) -> str:
        """Dispatch an attempt; `done`, `stale` or `locked` (its row is locked)."""
        return await self._value(
            str,
            "select verdict from penstock.hand_over_jobs($1, $2, $3, $4)",
            *(worker, [claimed.id], [claimed.attempt], [token]),
        )

    async def take_back(self, row: OutcomeRow, token: str, *, wait: timedelta | None = None) -> str:
        """Finish a dispatched attempt that no function took; `stale` if a callback came first."""
        return await self._value(
            str,
            "select penstock.release_job($1, $2, $3, $4, $5::text::jsonb, $6, $7, $8, $9, $10)",
            *(row.job_id, row.attempt, token, row.outcome, row.error, row.delay, wait),
            *(row.bearing or NO_BEARING),
        )

    async def resolve(
        self, items: Sequence[Item], *, wait: timedelta | None = None, conn: Any = None
    ) -> list[Resolved]:
        """Apply callbacks in one transaction, each item independently.

        `wait`: how long to wait for each locked account before the answer is `locked`.
        """
        effects, retry_afters, _ = bearing_columns([item.bearing for item in items])
        rows = await self._on(conn)(
            "select job_id, outcome from penstock.resolve_callbacks($1, $2, $3, $4,"
            " $5::text[]::jsonb[], $6::text[]::jsonb[], $7, $8::text[]::jsonb[], $9, $10,"
            " $11::text[]::jsonb[], $12, $13, $14)",
            (
                [item.job_id for item in items],
                [item.attempt for item in items],
                [item.token for item in items],
                [item.outcome for item in items],
                [item.result for item in items],
                [item.error for item in items],
                [item.units for item in items],
                [item.usage for item in items],
                [item.delay for item in items],
                [item.stage for item in items],
                [item.progress for item in items],
                wait,
                effects,
                retry_afters,
            ),
        )
        return [Resolved(row["job_id"], row["outcome"]) for row in rows]

    async def kinds(self, jobs: Sequence[UUID]) -> dict[UUID, KindAndQueue]:
        """The kinds and queues of jobs; unknown and deleted jobs are left out."""
        sql = "select job_id, kind, queue from penstock.find_callbacks($1)"
        rows = await self._fetch(sql, (list(jobs),))
        return {row["job_id"]: KindAndQueue(row["kind"], row["queue"]) for row in rows}

    async def remember(self, signature: bytes, *, conn: Any) -> bool:
        """Record a signed message in the transaction of `conn`; False if it was recorded before."""
        [row] = await borrow(conn)("select penstock.remember_callback($1) as new", (signature,))
        new: bool = row["new"]
        return new
