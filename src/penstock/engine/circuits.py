"""Circuits: whether the provider behind a queue answers, and what operators are told about it."""

from collections.abc import Sequence
from typing import Any

from penstock.db.adapters.caller_connection import Fetch
from penstock.engine.encoding.encode import refuse_nul


class Circuits:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def open(self, queue: str, *, reason: str | None = None) -> None:
        """Start nothing more until it is closed by hand; what runs goes on."""
        refuse_nul(queue, "queue", code="invalid_queue")
        refuse_nul(reason, "reason", code="invalid_reason")
        await self._fetch("select penstock.open_circuit($1, $2)", (queue, reason))

    async def close(self, queue: str) -> None:
        """The provider is there again: jobs start as the queue's limits allow, at once."""
        refuse_nul(queue, "queue", code="invalid_queue")
        await self._fetch("select penstock.close_circuit($1)", (queue,))

    async def due_looks(self, queues: Sequence[str]) -> list[tuple[str, str | None]]:
        """Queues whose provider is away; with its host:port where who asks is to look at it."""
        rows = await self._fetch(
            "select queue, address from penstock.due_looks($1)", (list(queues),)
        )
        return [(row["queue"], row["address"]) for row in rows]

    async def report_look(self, queue: str, *, reachable: bool) -> None:
        """Whether it took a connection."""
        await self._fetch("select penstock.report_look($1, $2)", (queue, reachable))

    async def alerts(self) -> list[dict[str, Any]]:
        """What an operator has to know now, the oldest first."""
        rows = await self._fetch("select alert from penstock.list_alerts() alert", ())
        return [row["alert"] for row in rows]
