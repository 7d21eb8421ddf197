"""Queues that are driven by calls: who drives, what is due, and what fits into a call."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.engine.statements import Statements


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


class Drive(Statements):
    async def begin(self, queue: str) -> bool:
        """Let this session drive the queue; False: another one does. For a session of its own."""
        return await self._value(bool, "select penstock.begin_drive($1)", queue)

    async def end(self, queue: str) -> None:
        """Let go of it."""
        await self._fetch("select penstock.end_drive($1)", (queue,))

    async def state(self, queue: str, kinds: Sequence[str] | None = None) -> State:
        """`kinds`: count jobs of these alone, which the caller has handlers for."""
        sql = "select due, paused, held, soon_seconds from penstock.drive_state($1, $2)"
        [state] = await self._rows(State, sql, queue, _listed(kinds))
        return state

    async def expected(self, queue: str) -> list[Expected]:
        sql = "select kind, seconds, timeout_seconds from penstock.expected_seconds($1)"
        return await self._rows(Expected, sql, queue)

    async def next_kind(self, queue: str, kinds: Sequence[str] | None = None) -> str | None:
        """The kind of the job that starts next, of these kinds."""
        kind: str | None
        [kind] = await self._values("select penstock.next_kind($1, $2)", queue, _listed(kinds))
        return kind

    async def due(self, kinds: Sequence[str] | None = None) -> list[str]:
        """Driven queues with work of these kinds that could start now, and that nobody drives."""
        sql = "select q as queue from penstock.due_drives($1) q"
        return await self._values(sql, _listed(kinds))

    async def is_driven(self, queue: str) -> bool:
        """Whether calls run its jobs, and not workers that stand by."""
        sql = "select drive from penstock.queue where name = $1"
        return await self._values(sql, queue) == ["http"]

    async def driven(self, kinds: Sequence[str] | None = None) -> list[str]:
        """Which queues of these kinds, or of all, are driven by calls."""
        sql = "select q as queue from penstock.driven_queues($1) q"
        return await self._values(sql, _listed(kinds))


def _listed(kinds: Sequence[str] | None) -> list[str] | None:
    return None if kinds is None else list(kinds)
