"""Queries of live streams: what has changed of what is watched, and its present state."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from penstock.db.adapters.caller_connection import Fetch
from penstock.engine.queries.notifications import CHANGE_PAUSE_SECONDS, Notifier

# How many of its jobs an event of a batch has.
BATCH_ITEMS = 100


class Scope(NamedTuple):
    """Jobs that are watched together: of a topic, of an account, or of a topic in an account."""

    topic: str | None
    account: str | None
    public: bool = False
    """As customers see them (public.sql): those who see all of a job watch it apart from them."""


class WatchedJob(NamedTuple):
    """A job, or a batch of them, and who watches it."""

    id: UUID
    public: bool = False
    """As in Scope."""


class WatchRequest(NamedTuple):
    """What a caller wants to watch, and the account and topic that the caller is limited to."""

    kind: str
    """job, batch or account"""
    name: str
    account: str | None
    topic: str | None


@dataclass(frozen=True, slots=True)
class ScopeState:
    """A scope that has changed: its newest live jobs, and which of its newest have finished."""

    n: int
    fingerprint: int
    live: dict[UUID, int]
    finished: list[UUID]


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as it is now."""

    id: UUID
    version: int
    status: str
    attempt: int
    mark: str
    """Position, reason and staleness: they change without a new version."""
    eta_seconds: float | None
    text: str
    """JSON, as Postgres wrote it."""


class Chunk(NamedTuple):
    attempt: int
    seq: int
    data: str


class Events:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def notifier(self) -> Notifier:
        """Notifies all servers of live streams of changes, for the running event loop."""
        return Notifier(lambda _: self.notify(), pause_seconds=CHANGE_PAUSE_SECONDS)

    async def notify(self) -> None:
        """Notify all servers of live streams. After commit; the notification may be lost."""
        await self._fetch("select penstock.tell_change()", ())

    async def may_watch(self, requests: Sequence[WatchRequest]) -> list[bool]:
        """Whether each is there and its caller may see it."""
        rows = await self._fetch(
            "select n, seen from penstock.may_watch($1, $2, $3, $4)", _columns(requests, 4)
        )
        answers = {row["n"]: row["seen"] for row in rows}
        return [answers[n] for n in range(1, len(requests) + 1)]

    async def dead_keys(self, ids: Sequence[str]) -> set[str]:
        """Which of these keys were revoked or have expired."""
        rows = await self._fetch("select id from penstock.find_dead_keys($1) id", (list(ids),))
        return {row["id"] for row in rows}

    async def changed_jobs(self, ids: Sequence[UUID], versions: Sequence[int]) -> list[UUID]:
        """Which of these have another version, or are not live any more."""
        rows = await self._fetch(
            "select id from penstock.look_at_jobs($1, $2)", (list(ids), list(versions))
        )
        return [row["id"] for row in rows]

    async def changed_scopes(
        self,
        scopes: Sequence[Scope],
        fingerprints: Sequence[int | None],
        *,
        margin: timedelta,
        most: int,
    ) -> list[ScopeState]:
        """Those that have another fingerprint; `n` counts from 0."""
        rows = await self._fetch(
            "select n, print, ids, versions, ended"
            " from penstock.look_at_scopes($1, $2, $3, $4, $5)",
            (*_columns(scopes, 2), list(fingerprints), margin, most),
        )
        return [
            ScopeState(
                row["n"] - 1,
                row["print"],
                dict(zip(row["ids"] or (), row["versions"] or (), strict=True)),
                row["ended"] or [],
            )
            for row in rows
        ]

    async def running_jobs(self, scopes: Sequence[Scope]) -> list[tuple[int, UUID, int]]:
        """The running jobs of these scopes: (n from 0, job, version)."""
        rows = await self._fetch(
            "select n, id, version from penstock.look_at_started($1, $2)", _columns(scopes, 2)
        )
        return [(row["n"] - 1, row["id"], row["version"]) for row in rows]

    async def recently_finished(
        self, scopes: Sequence[Scope], *, since: timedelta, most: int
    ) -> dict[int, tuple[list[UUID], bool]]:
        """Jobs of each scope (n from 0) that finished in that time; whether there may be more."""
        rows = await self._fetch(
            "select n, ids, more from penstock.find_recent($1, $2, $3, $4)",
            (*_columns(scopes, 2), since, most),
        )
        return {row["n"] - 1: (row["ids"] or [], row["more"]) for row in rows}

    async def read_jobs(
        self, ids: Sequence[UUID], *, positions: int, public: bool = False
    ) -> list[JobState]:
        """Those of these jobs that exist; the first `positions` with their position and ETA.

        `public`: as customers see them.
        """
        rows = await self._fetch(
            "select id, version, status, attempt, mark, eta_seconds, job"
            " from penstock.read_jobs($1, $2, $3)",
            (list(ids), positions, public),
        )
        return [JobState(*row.values()) for row in rows]

    async def read_chunks(
        self, after: Sequence[tuple[UUID, int, int]], *, most: int
    ) -> list[list[Chunk]]:
        """Chunks after each (job, attempt, number), in order, `most` of each job."""
        rows = await self._fetch(
            "select n, attempt, seq, data from penstock.read_chunks_after($1, $2, $3, $4)",
            (*_columns(after, 3), most),
        )
        pages: list[list[Chunk]] = [[] for _ in after]
        for n, attempt, seq, data in (row.values() for row in rows):
            pages[n - 1].append(Chunk(attempt, seq, data))
        return pages

    async def batch_fingerprints(self, ids: Sequence[UUID]) -> dict[UUID, int]:
        """A number per batch that changes with any of its jobs."""
        rows = await self._fetch("select id, print from penstock.look_at_batches($1)", (list(ids),))
        return {row["id"]: row["print"] for row in rows}

    async def read_batch(
        self, batch: UUID, *, items: int = BATCH_ITEMS, public: bool = False
    ) -> str:
        """The batch with the first of its jobs, as JSON text."""
        [row] = await self._fetch(
            "select (penstock.read_batch_of(cast($1 as uuid), null, $2, p_public => $3) - 'next')"
            "::text as batch",
            (batch, items, public),
        )
        text: str = row["batch"]
        return text

    async def read_balances(self, names: Sequence[str]) -> dict[str, str]:
        """Balance and counts of accounts, as JSON text."""
        rows = await self._fetch(
            "select name, account from penstock.read_balances($1)", (list(names),)
        )
        return {row["name"]: row["account"] for row in rows}


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> tuple[list[object], ...]:
    return tuple([row[column] for row in rows] for column in range(width))
