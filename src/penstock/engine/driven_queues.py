"""Queues that are driven by calls: who drives, what is due, and what fits into a call."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.db.adapters.caller_connection import Fetch


@dataclass(frozen=True, slots=True)
class State:
    """What is left to do in a queue."""

    due: int
    paused: bool
    held: bool
    """Nothing can start before somebody else acts: an operator, or functions that call back."""
    soon: float | None = None
    """Seconds until the next job that waits for its time is due."""


@dataclass(frozen=True, slots=True)
class Expected:
    """How long a start of this kind will probably take; None: none has ended yet."""

    kind: str
    seconds: float | None
    timeout: float


class Drive:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def begin(self, queue: str) -> bool:
        """Let this session drive the queue; False: another one does. For a session of its own."""
        [row] = await self._fetch("select penstock.begin_drive($1) as ours", (queue,))
        ours: bool = row["ours"]
        return ours

    async def end(self, queue: str) -> None:
        """Let go of it."""
        await self._fetch("select penstock.end_drive($1)", (queue,))

    async def state(self, queue: str, kinds: Sequence[str] | None = None) -> State:
        """`kinds`: count jobs of these alone, which the caller has handlers for."""
        [row] = await self._fetch(
            "select due, paused, held, soon_seconds from penstock.drive_state($1, $2)",
            (queue, _listed(kinds)),
        )
        return State(row["due"], row["paused"], row["held"], row["soon_seconds"])

    async def expected(self, queue: str) -> list[Expected]:
        rows = await self._fetch(
            "select kind, seconds, timeout_seconds from penstock.expected_seconds($1)", (queue,)
        )
        return [Expected(row["kind"], row["seconds"], row["timeout_seconds"]) for row in rows]

    async def next_kind(self, queue: str, kinds: Sequence[str] | None = None) -> str | None:
        """The kind of the job that starts next, of these kinds."""
        [row] = await self._fetch(
            "select penstock.next_kind($1, $2) as kind", (queue, _listed(kinds))
        )
        kind: str | None = row["kind"]
        return kind

    async def due(self, kinds: Sequence[str] | None = None) -> list[str]:
        """Driven queues with work of these kinds that could start now, and that nobody drives."""
        rows = await self._fetch(
            "select q as queue from penstock.due_drives($1) q", (_listed(kinds),)
        )
        return [row["queue"] for row in rows]

    async def is_driven(self, queue: str) -> bool:
        """Whether calls run its jobs, and not workers that stand by."""
        rows = await self._fetch("select drive from penstock.queue where name = $1", (queue,))
        return [row["drive"] for row in rows] == ["http"]

    async def driven(self, kinds: Sequence[str] | None = None) -> list[str]:
        """Which queues of these kinds, or of all, are driven by calls."""
        rows = await self._fetch(
            "select q as queue from penstock.driven_queues($1) q",
            (_listed(kinds),),
        )
        return [row["queue"] for row in rows]


def _listed(kinds: Sequence[str] | None) -> list[str] | None:
    return None if kinds is None else list(kinds)
