"""Bar charts over time: one bar per step, heights by count, the last bar unfinished."""

import pytest

from penstock.dashboard.components.charts import HEIGHT, nice, stacked

SERIES = {"succeeded": ("Succeeded", "good"), "failed": ("Failed", "bad")}
BEGINS, NOW = "2026-11-16T00:00:00Z", "2026-11-16T03:20:00Z"


def test_each_hour_has_a_bar_even_without_counts() -> None:
    chart = stacked(
        [("2026-11-16T01:00:00Z", "succeeded", 7)], SERIES, begins=BEGINS, step=3_600, now=NOW
    )
    assert [list(bar.counts) for bar in chart.bars] == [[0, 0], [7, 0], [0, 0], [0, 0]]
    assert [bar.running for bar in chart.bars] == [False, False, False, True]
    assert chart.width == 40
    assert [bar.x for bar in chart.bars] == [1, 11, 21, 31]


def test_parts_are_stacked_and_their_heights_match_the_counts() -> None:
    chart = stacked(
        [("2026-11-16T01:00:00Z", "succeeded", 6), ("2026-11-16T01:00:00Z", "failed", 2)],
        SERIES,
        begins=BEGINS,
        step=3_600,
        now=NOW,
    )
    assert chart.top == 8
    low, high = chart.bars[1].parts
    assert (low.style, low.y, low.height) == ("good", 25, 75)
    assert (high.style, high.y, high.height) == ("bad", 0, 25)
    assert low.y + low.height == HEIGHT


def test_one_failure_among_a_million_is_visible() -> None:
    chart = stacked(
        [("2026-11-16T01:00:00Z", "succeeded", 999_999), ("2026-11-16T01:00:00Z", "failed", 1)],
        SERIES,
        begins=BEGINS,
        step=3_600,
        now=NOW,
    )
    assert chart.bars[1].parts[1].height >= 0.5
    assert all(0 <= part.y <= HEIGHT for part in chart.bars[1].parts)


def test_the_legend_has_the_totals() -> None:
    chart = stacked(
        [(f"2026-11-16T0{hour}:00:00Z", "failed", hour) for hour in range(4)],
        SERIES,
        begins=BEGINS,
        step=3_600,
        now=NOW,
    )
    assert [(one.name, one.total) for one in chart.series] == [("Succeeded", 0), ("Failed", 6)]
    assert chart.total == 6


def test_counts_outside_of_the_range_are_not_drawn() -> None:
    chart = stacked(
        [("2026-11-15T23:00:00Z", "failed", 5)], SERIES, begins=BEGINS, step=3_600, now=NOW
    )
    assert chart.total == 0


@pytest.mark.parametrize(
    ("begins", "step", "labels"),
    [
        ("2026-11-15T03:00:00Z", 3_600, ["03:00", "09:00", "15:00", "21:00", "now"]),
        ("2026-10-17T00:00:00Z", 86_400, ["17 Oct", "24 Oct", "01 Nov", "08 Nov", "today"]),
    ],
)
def test_the_axis_has_times_or_days(begins: str, step: int, labels: list[str]) -> None:
    assert list(stacked([], SERIES, begins=begins, step=step, now=NOW).labels) == labels


@pytest.mark.parametrize(
    ("most", "top"),
    [(0, 1), (1, 1), (2, 2), (7, 8), (9, 10), (11, 20), (99, 100), (412, 500), (1_000, 1_000)],
)
def test_the_scale_ends_at_a_round_number(most: int, top: int) -> None:
    assert nice(most) == top
