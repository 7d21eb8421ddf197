"""Queues, their kinds and circuits: declared by code, edited by operators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.engine.encoding.encode import encode, refuse_nuls
from penstock.engine.statements import Answer, Statements


@dataclass(frozen=True, slots=True)
class Location:
    """Where an app's code declares something."""

    parts: Mapping[str, str | int] | None = None
    """`file`, `line`, `host`, and the file of the `app`."""
    instead_of: str | None = None
    """The app that declared it before, and was found to do so no longer."""

    @property
    def arguments(self) -> tuple[str | None, str | None]:
        """As the last two of `declare_queue` and its like."""
        return None if self.parts is None else _text(dict(self.parts)), self.instead_of


NOWHERE = Location()


class Queues(Statements):
    async def declare(
        self, name: str, *, by: str | None = None, at: Location = NOWHERE, **options: Any
    ) -> None:
        """Say what a queue is.

        The same options again change nothing; other options from another app are refused with both
        names.
        """
        await self._fetch(
            "select penstock.declare_queue($1, $2::text::jsonb, $3, $4::text::jsonb, $5)",
            (name, _text(options), by, *at.arguments),
        )

    async def declare_kind(
        self,
        name: str,
        queue: str,
        *,
        by: str | None = None,
        at: Location = NOWHERE,
        **options: Any,
    ) -> None:
        """Say which queue a kind of job waits in, and where its account and keys come from."""
        await self._fetch(
            "select penstock.declare_kind($1, $2, $3::text::jsonb, $4, $5::text::jsonb, $6)",
            (name, queue, _text(options), by, *at.arguments),
        )

    async def edit(self, name: str, /, **options: Any) -> None:
        """Override options at run time, over restarts; None goes back to what is declared."""
        refuse_nuls(queue=name)
        await self._fetch("select penstock.edit_queue($1, $2::text::jsonb)", (name, _text(options)))

    async def reset(self, name: str) -> None:
        """Drop every override."""
        refuse_nuls(queue=name)
        await self._fetch("select penstock.reset_queue($1)", (name,))

    async def pause(self, name: str, *, reason: str | None = None) -> None:
        """Start nothing more; what runs goes on."""
        refuse_nuls(queue=name, reason=reason)
        await self._fetch("select penstock.pause_queue($1, $2)", (name, reason))

    async def resume(self, name: str) -> None:
        """Start jobs again; also where a key, a quota or a setting had stopped it."""
        refuse_nuls(queue=name)
        await self._fetch("select penstock.resume_queue($1)", (name,))


class Circuits(Statements):
    """Whether the provider behind a queue answers, and the alerts that operators get of it."""

    async def open(self, queue: str, *, reason: str | None = None) -> None:
        """Start nothing more until it is closed by hand; what runs goes on."""
        refuse_nuls(queue=queue, reason=reason)
        await self._fetch("select penstock.open_circuit($1, $2)", (queue, reason))

    async def close(self, queue: str) -> None:
        """The provider is there again: jobs start as the queue's limits allow, at once."""
        refuse_nuls(queue=queue)
        await self._fetch("select penstock.close_circuit($1)", (queue,))

    async def due_checks(self, queues: Sequence[str]) -> list[tuple[str, str | None]]:
        """Queues with an unavailable provider; its host:port where the caller is to check it."""
        sql = "select queue, address from penstock.due_checks($1)"
        return list((await self._pairs(sql, list(queues))).items())

    async def report_check(self, queue: str, *, reachable: bool) -> None:
        """Whether it took a connection."""
        await self._fetch("select penstock.report_check($1, $2)", (queue, reachable))

    async def alerts(self) -> list[Answer]:
        """What an operator has to know now, the oldest first."""
        return await self._values("select alert from penstock.list_alerts() alert")


def _text(options: dict[str, Any]) -> str:
    return encode(options, "options")
