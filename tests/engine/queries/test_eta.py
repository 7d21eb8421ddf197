"""A displayed ETA falls freely and rises only by large steps."""

import pytest

from penstock.engine.queries.eta import settled


@pytest.mark.parametrize(
    ("shown", "now", "then"),
    [
        (None, 40.0, 40.0),
        (40.0, 39.9, 39.9),
        (40.0, 3.0, 3.0),
        (40.0, 40.0, 40.0),
        (40.0, 46.0, 40.0),
        (40.0, 46.1, 46.1),
        (0.0, 0.5, 0.5),
        (40.0, None, None),
        (None, None, None),
    ],
)
def test_a_displayed_eta(shown: float | None, now: float | None, then: float | None) -> None:
    """F2: up to 15 % more is not shown; an unknown ETA is None."""
    assert settled(shown, now) == then


def test_an_eta_that_rises_slowly_is_shown_in_the_end() -> None:
    shown: float | None = 100.0
    seen = {shown := settled(shown, 100.0 + n) for n in range(40)}
    assert seen == {100.0, 116.0, 134.0}
