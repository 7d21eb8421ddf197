"""A mark, as the function sends it."""

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
    """A mark, as the teacher gives it."""

    submission: UUID
    score: int
    feedback: str


def mark_of(result: Any) -> Mark | None:
    """The mark in a result; None where there is none: what comes from elsewhere may be anything."""
    if not isinstance(result, dict):
        return None
    score, out_of, feedback = (result.get(name) for name in ("score", "out_of", "feedback"))
    if type(score) is not int or type(out_of) is not int or not isinstance(feedback, str):
        return None
    if not 0 <= score <= out_of <= HIGHEST:
        return None
    return Mark(score, out_of, feedback[:LONGEST_FEEDBACK])
