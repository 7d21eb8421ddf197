"""What servers of live streams ask: what changed of what is watched, and how it is now."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from penstock.db.adapters.caller_connection import Fetch

# So many of its jobs are told with a batch.
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


class Watched(NamedTuple):
    """What somebody wants to watch, and what they are bound to."""

    kind: str
    """job, batch or account"""
    name: str
    account: str | None
    topic: str | None


@dataclass(frozen=True, slots=True)
class Glance:
    """A scope that is not as it was: its newest live jobs, and what ended of its newest."""

    n: int
    print: int
    live: dict[UUID, int]
    ended: list[UUID]


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as it is now."""

    id: UUID
    version: int
    status: str
    attempt: int
    mark: str
    """Place, reason and staleness: they change without a new version."""
    eta_seconds: float | None
    text: str
    """JSON, as Postgres wrote it."""


class Emitted(NamedTuple):
    attempt: int
    seq: int
    data: str


class Events:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def tell(self) -> None:
        """A hint to all who watch. After commit; it may be lost."""
        await self._fetch("select penstock.tell_change()", ())

    async def may_watch(self, wanted: Sequence[Watched]) -> list[bool]:
        """Whether each is there and theirs."""
        rows = await self._fetch(
            "select n, seen from penstock.may_watch($1, $2, $3, $4)", _columns(wanted, 4)
        )
        found = {row["n"]: row["seen"] for row in rows}
        return [found[n] for n in range(1, len(wanted) + 1)]

    async def dead_keys(self, ids: Sequence[str]) -> set[str]:
        """Of these keys, those that were revoked, or whose time is over."""
        rows = await self._fetch("select id from penstock.find_dead_keys($1) id", (list(ids),))
        return {row["id"] for row in rows}

    async def look_at_jobs(self, ids: Sequence[UUID], versions: Sequence[int]) -> list[UUID]:
        """Of these, those that have changed or do not live any more."""
        rows = await self._fetch(
            "select id from penstock.look_at_jobs($1, $2)", (list(ids), list(versions))
        )
        return [row["id"] for row in rows]

    async def look_at_scopes(
        self, scopes: Sequence[Scope], prints: Sequence[int | None], *, margin: timedelta, most: int
    ) -> list[Glance]:
        """Of these, those that have changed; `n` counts from 0."""
        rows = await self._fetch(
            "select n, print, ids, versions, ended"
            " from penstock.look_at_scopes($1, $2, $3, $4, $5)",
            (*_columns(scopes, 2), list(prints), margin, most),
        )
        return [
            Glance(
                row["n"] - 1,
                row["print"],
                dict(zip(row["ids"] or (), row["versions"] or (), strict=True)),
                row["ended"] or [],
            )
            for row in rows
        ]

    async def look_at_started(self, scopes: Sequence[Scope]) -> list[tuple[int, UUID, int]]:
        """What runs in them: (n from 0, job, version)."""
        rows = await self._fetch(
            "select n, id, version from penstock.look_at_started($1, $2)", _columns(scopes, 2)
        )
        return [(row["n"] - 1, row["id"], row["version"]) for row in rows]

    async def recent(
        self, scopes: Sequence[Scope], *, since: timedelta, most: int
    ) -> dict[int, tuple[list[UUID], bool]]:
        """What ended in each (n from 0) in that time, and whether there may be more."""
        rows = await self._fetch(
            "select n, ids, more from penstock.find_recent($1, $2, $3, $4)",
            (*_columns(scopes, 2), since, most),
        )
        return {row["n"] - 1: (row["ids"] or [], row["more"]) for row in rows}

    async def read_jobs(
        self, ids: Sequence[UUID], *, places: int, public: bool = False
    ) -> list[Seen]:
        """These jobs, as far as they are there; the first `places` with their place and wait.

        `public`: as customers see them.
        """
        rows = await self._fetch(
            "select id, version, status, attempt, mark, eta_seconds, job"
            " from penstock.read_jobs($1, $2, $3)",
            (list(ids), places, public),
        )
        return [Seen(*row.values()) for row in rows]

    async def read_chunks(
        self, after: Sequence[tuple[UUID, int, int]], *, most: int
    ) -> list[list[Emitted]]:
        """What jobs emitted after each (job, attempt, number), in order, `most` of each."""
        rows = await self._fetch(
            "select n, attempt, seq, data from penstock.read_chunks_after($1, $2, $3, $4)",
            (*_columns(after, 3), most),
        )
        found: list[list[Emitted]] = [[] for _ in after]
        for n, attempt, seq, data in (row.values() for row in rows):
            found[n - 1].append(Emitted(attempt, seq, data))
        return found

    async def look_at_batches(self, ids: Sequence[UUID]) -> dict[UUID, int]:
        """A print of each: another one, and something has changed in it."""
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
        """Accounts at a glance, as JSON text."""
        rows = await self._fetch(
            "select name, account from penstock.read_balances($1)", (list(names),)
        )
        return {row["name"]: row["account"] for row in rows}


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> tuple[list[object], ...]:
    return tuple([row[column] for row in rows] for column in range(width))
