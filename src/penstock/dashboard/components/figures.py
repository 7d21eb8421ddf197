"""Figures of a queue by the hour, as rows of a small table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Hour:
    hour: str
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    again: int = 0
    """Starts after which the job went on: tried again, put off, given back."""
    succeeded_ms: int = 0

    @property
    def average_seconds(self) -> float | None:
        """How long what succeeded took, from its last start."""
        return self.succeeded_ms / self.succeeded / 1000 if self.succeeded else None


def by_hour(throughput: Iterable[dict[str, Any]]) -> list[Hour]:
    """The latest first; an hour in which nothing ended has no row."""
    found: dict[str, Hour] = {}
    for one in throughput:
        hour = found.setdefault(one["hour"], Hour(one["hour"]))
        match one["outcome"]:
            case "succeeded":
                hour.succeeded += one["count"]
                hour.succeeded_ms += one["total_duration_ms"]
            case "failed":
                hour.failed += one["count"]
            case "cancelled":
                hour.cancelled += one["count"]
            case _:
                hour.again += one["count"]
    return sorted(found.values(), key=lambda hour: hour.hour, reverse=True)
