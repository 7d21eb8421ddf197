"""Filters of the job list: read from a form or a query, written as an address or as words."""

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
    """A filter of jobs; None means any value. An empty field of a form is None."""

    batch: UUID | None = None

    @property
    def fields(self) -> dict[str, str]:
        """The values that are not None, by the name of their field."""
        values = {name: getattr(self, name) for name in FIELDS}
        return {name: str(value) for name, value in values.items() if value is not None}

    def address(self, **more: str) -> str:
        """Return the path of the page that shows these jobs, from the dashboard's root."""
        query = urlencode(self.fields | more)
        return f"jobs?{query}" if query else "jobs"

    def words(self) -> str:
        """Return `failed jobs of kind mark in queue ollama`."""
        words = "jobs" if self.status is None else f"{STATUSES[self.status].lower()} jobs"
        for name, value in self.fields.items():
            if name != "status":
                words += f" {'in' if name == 'queue' else 'of'} {name} {value}"
        return words


def read_filter(given: Mapping[str, Any]) -> Filter:
    """Read a filter from a query or a form; raise Invalid if a value cannot exist."""
    texts = {name: str(given.get(name, "")) for name in FIELDS}
    status, batch = texts["status"].strip(), texts["batch"].strip()
    return Filter(
        status=_status(status) if status else None,
        kind=texts["kind"].strip() or None,
        queue=texts["queue"].strip() or None,
        # Not stripped: the name of an account may begin with a blank.
        account=texts["account"] or None,
        topic=texts["topic"] or None,
        batch=_batch(batch) if batch else None,
    )


def read_id(text: str) -> UUID | None:
    """Read an id as people paste it, with blanks or without dashes; None if it is not an id."""
    try:
        return UUID("".join(text.split()))
    except ValueError:
        return None


def _status(text: str) -> JobStatus:
    try:
        return JobStatus(text)
    except ValueError:
        raise Invalid(
            f"There is no status {text}.",
            code="invalid_filter",
            field="status",
            hint=f"A job is {', '.join(JobStatus)}.",
        ) from None


def _batch(text: str) -> UUID:
    batch = read_id(text)
    if batch is None:
        raise Invalid(
            f"There is no batch “{text[:100]}”: that is not an id.",
            code="invalid_filter",
            field="batch",
            hint="An id looks like 0199f0a4-6c1e-7d3a-9b52-2f6d8a7c1e05.",
        )
    return batch
