"""What a check found, as a value: printed by `penstock doctor`, sent by whoever asks otherwise."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, and what to do where it is not well."""

    name: str
    level: Level
    message: str
    advice: str | None = None


def count(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
