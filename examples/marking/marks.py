"""Marks of the function."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

LONGEST_FEEDBACK = 2_000
HIGHEST = 1_000


@dataclass(frozen=True, slots=True)
class Mark:
    score: int
    out_of: int
    feedback: str


@dataclass(frozen=True, slots=True)
class Correction:
    """Validate a mark of the teacher."""

    submission: UUID
    score: int
    feedback: str


def mark_of(result: Any) -> Mark | None:
    """Return the mark in a result; None if it is invalid, as outside results can be anything."""
    if not isinstance(result, dict):
        return None
    score, out_of, feedback = (result.get(name) for name in ("score", "out_of", "feedback"))
    if type(score) is not int or type(out_of) is not int or not isinstance(feedback, str):
        return None
    if not 0 <= score <= out_of <= HIGHEST:
        return None
    return Mark(score, out_of, feedback[:LONGEST_FEEDBACK])
