"""Queues that calls drive: which session drives, which jobs are due, which fit into a call."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.engine.statements import Statements


@dataclass(frozen=True, slots=True)
class State:
    """The jobs that are left in a queue."""

    due: int
    paused: bool
    held: bool
    """Nothing can start before others act: an operator, or functions that call back."""
    soon: float | None = None
    """Seconds until the next scheduled job is due."""


@dataclass(frozen=True, slots=True)
class Expected:
    """How long an attempt of this kind will probably take; None: no job of it has finished yet."""

    kind: str
    seconds: float | None
    timeout: float


class Drive(Statements):
    async def begin(self, queue: str) -> bool:
        """Let this session drive the queue; False if another one does. Needs its own session."""
        return await self._value(bool, "select penstock.begin_drive($1)", queue)

    async def end(self, queue: str) -> None:
        """Stop driving the queue."""
        await self._fetch("select penstock.end_drive($1)", (queue,))

    async def state(self, queue: str, kinds: Sequence[str] | None = None) -> State:
        """The jobs left in a queue. `kinds`: count only these, the ones with handlers here."""
        sql = "select due, paused, held, soon_seconds from penstock.drive_state($1, $2)"
        [state] = await self._rows(State, sql, queue, _listed(kinds))
        return state

    async def expected(self, queue: str) -> list[Expected]:
        sql = "select kind, seconds, timeout_seconds from penstock.expected_seconds($1)"
        return await self._rows(Expected, sql, queue)

    async def next_kind(self, queue: str, kinds: Sequence[str] | None = None) -> str | None:
        """The kind of the job that starts next, among these kinds."""
        kind: str | None
        [kind] = await self._values("select penstock.next_kind($1, $2)", queue, _listed(kinds))
        return kind

    async def due(self, kinds: Sequence[str] | None = None) -> list[str]:
        """Driven queues that no session drives, with jobs of these kinds that could start now."""
        sql = "select q as queue from penstock.due_drives($1) q"
        return await self._values(sql, _listed(kinds))

    async def is_driven(self, queue: str) -> bool:
        """Whether calls run the queue's jobs, and not standing workers."""
        sql = "select drive from penstock.queue where name = $1"
        return await self._values(sql, queue) == ["http"]

    async def driven(self, kinds: Sequence[str] | None = None) -> list[str]:
        """Which queues, of all or of these kinds, are driven by calls."""
        sql = "select q as queue from penstock.driven_queues($1) q"
        return await self._values(sql, _listed(kinds))


def _listed(kinds: Sequence[str] | None) -> list[str] | None:
    return None if kinds is None else list(kinds)
