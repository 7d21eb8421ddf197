"""Queues and kinds: declared by code, edited by operators."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.db.adapters.caller_connection import Fetch
from penstock.engine.encoding.encode import encode, refuse_nul


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
        return None if self.parts is None else _json(dict(self.parts)), self.instead_of


NOWHERE = Location()


class Queues:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def declare(
        self, name: str, *, by: str | None = None, at: Location = NOWHERE, **options: Any
    ) -> None:
        """Say what a queue is.

        The same options again change nothing; other options from another app are refused with both
        names.
        """
        await self._fetch(
            "select penstock.declare_queue($1, $2::text::jsonb, $3, $4::text::jsonb, $5)",
            (name, _json(options), by, *at.arguments),
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
            (name, queue, _json(options), by, *at.arguments),
        )

    async def edit(self, name: str, /, **options: Any) -> None:
        """Override options at run time, over restarts; None goes back to what is declared."""
        _refuse_odd(queue=name)
        await self._fetch("select penstock.edit_queue($1, $2::text::jsonb)", (name, _json(options)))

    async def reset(self, name: str) -> None:
        """Drop every override."""
        _refuse_odd(queue=name)
        await self._fetch("select penstock.reset_queue($1)", (name,))

    async def pause(self, name: str, *, reason: str | None = None) -> None:
        """Start nothing more; what runs goes on."""
        _refuse_odd(queue=name, reason=reason)
        await self._fetch("select penstock.pause_queue($1, $2)", (name, reason))

    async def resume(self, name: str) -> None:
        """Start jobs again; also where a key, a quota or a setting had stopped it."""
        _refuse_odd(queue=name)
        await self._fetch("select penstock.resume_queue($1)", (name,))


def _refuse_odd(**texts: str | None) -> None:
    """What would fail in the driver, before the database could name the field."""
    for field, text in texts.items():
        refuse_nul(text, field, code=f"invalid_{field}")


def _json(options: dict[str, Any]) -> str:
    return encode(options, "options")
