"""Figures as lines of a table: ours, the bare one of the same run, and the requirement."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Rounds = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    ours: float
    unit: str
    other: float
    """The figure of the same run with which ours is compared."""
    other_is: str
    must: float | None = None
    of: Literal["ratio", "ours"] = "ratio"
    """What the requirement `must` applies to."""
    least: bool = True
    """Whether `must` is the least value, or the largest."""

    @property
    def ratio(self) -> float:
        return self.ours / self.other if self.other else float("nan")

    @property
    def met(self) -> bool | None:
        if self.must is None:
            return None
        judged = self.ratio if self.of == "ratio" else self.ours
        return judged >= self.must if self.least else judged <= self.must

    def kept(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "ours": _kept(self.ours),
            "unit": self.unit,
            "beside": {self.other_is: _kept(self.other)},
            "ratio": _kept(self.ratio),
            "must": self._must(),
            "met": self.met,
        }

    def __str__(self) -> str:
        met = {None: "", True: "met", False: "NOT met"}[self.met]
        beside = f"{_figure(self.other)} {self.unit} {self.other_is}"
        return (
            f"{self.what:62}{_figure(self.ours):>10} {self.unit:4} beside {beside:44}"
            f"{self.ratio:>7.2f}  {self._must() or '':12}{met}"
        )

    def _must(self) -> str | None:
        if self.must is None:
            return None
        sign, unit = "≥" if self.least else "≤", "" if self.of == "ratio" else f" {self.unit}"
        return f"{sign} {self.must:,g}{unit}"


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one part."""

    lines: Sequence[Line]
    rounds: Rounds

    def kept(self) -> dict[str, Any]:
        return {
            "figures": [line.kept() for line in self.lines],
            "rounds": {
                name: [_kept(value) for value in values] for name, values in self.rounds.items()
            },
        }


def medians(rounds: Rounds) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in rounds.items()}


def percentile(values: Iterable[float], percent: int) -> float:
    """Return the smallest value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _kept(value: float) -> float | None:
    """Round for JSON, which has no NaN."""
    return None if math.isnan(value) else round(value, 3)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
