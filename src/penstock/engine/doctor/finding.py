"""What a check found, as a value: `penstock doctor` prints it, other callers may send it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.errors import PenstockError, Refused

Level = Literal["ok", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was checked, its state, and what to do if that is not good."""

    name: str
    level: Level
    message: str
    advice: str | None = None

    def __post_init__(self) -> None:
        assert self.level == "ok" or self.advice, self.name  # noqa: S101  # a problem needs advice


class Problem(NamedTuple):
    """A possible problem: whether it is there, how bad it is, and what to do."""

    there: object
    level: Level
    message: str
    advice: str


def judge(name: str, problems: Iterable[Problem], ok: str) -> Finding:
    """The finding for the first of these problems that is there, or that there is none."""
    for problem in problems:
        if problem.there:
            return Finding(name, problem.level, problem.message, problem.advice)
    return Finding(name, "ok", ok)


def of_error(name: str, error: PenstockError, otherwise: str) -> Finding:
    """A failure as a finding; its advice is its hint, else its second sentence, or `otherwise`."""
    if isinstance(error, Refused):
        return Finding(name, "bad", error.message.removesuffix("."), error.hint or otherwise)
    what, _, more = str(error).partition(". ")
    advice = " ".join(part for part in (more, error.hint) if part)
    return Finding(name, "bad", what.removesuffix("."), advice or otherwise)


def count(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
