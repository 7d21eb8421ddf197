"""Which jobs somebody looks at: as the fields of a form, as a query, as words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from penstock.dashboard.components.words import STATUSES
from penstock.engine.queries.lists import JobFilter
from penstock.engine.states import JobStatus
from penstock.errors import Invalid

FIELDS = ("status", "kind", "queue", "account", "topic", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(JobFilter):
    """None is any. What a form leaves empty is not asked for."""

    batch: UUID | None = None

    @property
    def fields(self) -> dict[str, str]:
        """What is asked for, by the name of its field."""
        values = {name: getattr(self, name) for name in FIELDS}
        return {name: str(value) for name, value in values.items() if value is not None}

    def address(self, **more: str) -> str:
        """The page that shows these, from the dashboard's root."""
        query = urlencode(self.fields | more)
        return f"jobs?{query}" if query else "jobs"

    def words(self) -> str:
        """`failed jobs of kind mark in queue ollama`."""
        words = "jobs" if self.status is None else f"{STATUSES[self.status].lower()} jobs"
        for name, value in self.fields.items():
            if name != "status":
                words += f" {'in' if name == 'queue' else 'of'} {name} {value}"
        return words


def read_filter(given: Mapping[str, Any]) -> Filter:
    """What a query or a form asks for; Invalid where it cannot be meant."""
    texts = {name: str(given.get(name, "")) for name in FIELDS}
    status, batch = texts["status"].strip(), texts["batch"].strip()
    return Filter(
        status=_status(status) if status else None,
        kind=texts["kind"].strip() or None,
        queue=texts["queue"].strip() or None,
        # As they are: the name of an account may begin with a blank.
        account=texts["account"] or None,
        topic=texts["topic"] or None,
        batch=_batch(batch) if batch else None,
    )


def read_id(text: str) -> UUID | None:
    """An id as people paste it, with blanks or without its dashes; None: it is none."""
    try:
        return UUID("".join(text.split()))
    except ValueError:
        return None


def _status(text: str) -> JobStatus:
    try:
        return JobStatus(text)
    except ValueError:
        raise Invalid(
            f"There is no state {text}.",
            code="invalid_filter",
            field="status",
            hint=f"The states are {', '.join(JobStatus)}.",
        ) from None


def _batch(text: str) -> UUID:
    batch = read_id(text)
    if batch is None:
        raise Invalid(
            f"There is no batch “{text[:100]}”: that is not an id.",
            code="invalid_filter",
            field="batch",
            hint="They look like 0199f0a4-6c1e-7d3a-9b52-2f6d8a7c1e05.",
        )
    return batch
