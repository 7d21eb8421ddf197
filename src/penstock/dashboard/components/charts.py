"""Layout of bar charts over time; templates/parts/charts.html draws them as stretched SVG.

Lengths are in units of the drawing, whose width grows with its bars. Text stays outside of the
drawing, so that it keeps its size on a phone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

HEIGHT = 100
BAR = 10
_GAP = 1
# The least height of a part that is not empty, so that it can be seen beside large ones.
_LEAST = 0.8
_LABELS = 5
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of the bars; `style` is its class in the stylesheet."""

    name: str
    style: str
    total: int


@dataclass(frozen=True, slots=True)
class Part:
    style: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    begins: str
    """Unique in its chart; part of its HTML id."""
    label: str
    x: float
    counts: Sequence[int]
    """One count for each series."""
    parts: Sequence[Part]
    running: bool
    """The time of this bar is not over, so it can still grow."""


@dataclass(frozen=True, slots=True)
class Chart:
    series: Sequence[Series]
    bars: Sequence[Bar]
    top: int
    """The count that the full height stands for."""
    width: int
    labels: Sequence[str]
    """Labels of the time axis, evenly spread."""

    @property
    def total(self) -> int:
        return sum(series.total for series in self.series)


def stacked(
    counts: Iterable[tuple[str, str, int]],
    series: Mapping[str, tuple[str, str]],
    *,
    begins: str,
    step: int,
    now: str,
) -> Chart:
    """Lay out bars from `begins` to `now`, one for every `step` seconds.

    `counts`: (moment, key of the series, count). `series`: name and style by key, from the bottom
    up.
    """
    sums = Counter[tuple[datetime, str]]()
    for moment, key, count in counts:
        sums[datetime.fromisoformat(moment), key] += count
    first = datetime.fromisoformat(begins)
    steps = int((datetime.fromisoformat(now) - first).total_seconds()) // step + 1
    moments = [first + timedelta(seconds=n * step) for n in range(steps)]
    rows = [[sums[at, key] for key in series] for at in moments]
    top = nice(max((sum(row) for row in rows), default=0))
    styles = [style for _, style in series.values()]
    bars = [
        Bar(
            begins=f"{at:%Y%m%d%H}",
            label=f"{at:%d %b}" if step >= _DAY_SECONDS else f"{at:%d %b %H:%M}",
            x=n * BAR + _GAP,
            counts=row,
            parts=_parts(row, styles, top),
            running=n == len(rows) - 1,
        )
        for n, (at, row) in enumerate(zip(moments, rows, strict=True))
    ]
    totals = [sum(row[n] for row in rows) for n in range(len(series))]
    return Chart(
        series=[
            Series(name, style, total)
            for (name, style), total in zip(series.values(), totals, strict=True)
        ],
        bars=bars,
        top=top,
        width=BAR * len(bars),
        labels=_axis(moments, step),
    )


def nice(most: int) -> int:
    """Round up to a number that keeps the scale still while jobs are added."""
    if most <= 1:
        return 1
    size: int = 10 ** (len(str(most)) - 1)
    return next(top for times in (1, 2, 3, 4, 5, 6, 8, 10) if (top := times * size) >= most)


def _parts(row: Sequence[int], styles: Sequence[str], top: int) -> list[Part]:
    parts: list[Part] = []
    y = float(HEIGHT)
    for count, style in zip(row, styles, strict=True):
        if count:
            height = round(max(_LEAST, count * HEIGHT / top), 2)
            y = round(max(0.0, y - height), 2)
            parts.append(Part(style, y, height))
    return parts


def _axis(moments: Sequence[datetime], step: int) -> list[str]:
    chosen = [moments[n * (len(moments) - 1) // (_LABELS - 1)] for n in range(_LABELS - 1)]
    form = "%d %b" if (moments[-1] - moments[0]).total_seconds() > 2 * _DAY_SECONDS else "%H:%M"
    return [*(f"{at:{form}}" for at in chosen), "today" if step >= _DAY_SECONDS else "now"]
