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
    """The app that declared it before, if it no longer does."""

    @property
    def arguments(self) -> tuple[str | None, str | None]:
        """The last two arguments of `declare_queue` and similar functions."""
        return None if self.parts is None else _text(dict(self.parts)), self.instead_of


NOWHERE = Location()


class Queues(Statements):
    async def declare(
        self, name: str, *, by: str | None = None, at: Location = NOWHERE, **options: Any
    ) -> None:
        """Declare a queue.

        The same options again change nothing. Other options from another app are refused, and the
        error names both apps.
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
        """Declare the queue of a kind, and where the account and keys of its jobs come from."""
        await self._fetch(
            "select penstock.declare_kind($1, $2, $3::text::jsonb, $4, $5::text::jsonb, $6)",
            (name, queue, _text(options), by, *at.arguments),
        )

    async def edit(self, name: str, /, **options: Any) -> None:
        """Override options at run time, also after restarts; None removes an override."""
        refuse_nuls(queue=name)
        await self._fetch("select penstock.edit_queue($1, $2::text::jsonb)", (name, _text(options)))

    async def reset(self, name: str) -> None:
        """Remove every override."""
        refuse_nuls(queue=name)
        await self._fetch("select penstock.reset_queue($1)", (name,))

    async def pause(self, name: str, *, reason: str | None = None) -> None:
        """Start no more jobs; running ones go on."""
        refuse_nuls(queue=name, reason=reason)
        await self._fetch("select penstock.pause_queue($1, $2)", (name, reason))

    async def resume(self, name: str) -> None:
        """Start jobs again, also after a key, a quota or a setting had stopped the queue."""
        refuse_nuls(queue=name)
        await self._fetch("select penstock.resume_queue($1)", (name,))


class Circuits(Statements):
    """Whether the provider of a queue answers, and the alerts about it for operators."""

    async def open(self, queue: str, *, reason: str | None = None) -> None:
        """Start no more jobs until the circuit is closed by hand; running ones go on."""
        refuse_nuls(queue=queue, reason=reason)
        await self._fetch("select penstock.open_circuit($1, $2)", (queue, reason))

    async def close(self, queue: str) -> None:
        """Declare the provider available: jobs start at once, as the queue's limits allow."""
        refuse_nuls(queue=queue)
        await self._fetch("select penstock.close_circuit($1)", (queue,))

    async def due_checks(self, queues: Sequence[str]) -> list[tuple[str, str | None]]:
        """Queues with an unavailable provider; its host:port if the caller is to check it."""
        sql = "select queue, address from penstock.due_checks($1)"
        return list((await self._pairs(sql, list(queues))).items())

    async def report_check(self, queue: str, *, reachable: bool) -> None:
        """Report whether the provider accepted a connection."""
        await self._fetch("select penstock.report_check($1, $2)", (queue, reachable))

    async def alerts(self) -> list[Answer]:
        """The present alerts for operators, the oldest first."""
        return await self._values("select alert from penstock.list_alerts() alert")


def _text(options: dict[str, Any]) -> str:
    return encode(options, "options")
