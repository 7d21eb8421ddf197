"""A wait that is shown falls freely and rises only by much."""

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
def test_a_shown_wait(shown: float | None, now: float | None, then: float | None) -> None:
    """F2: up to 15 % more is not shown; an unknown wait is none."""
    assert settled(shown, now) == then


def test_a_wait_that_creeps_up_is_shown_in_the_end() -> None:
    shown: float | None = 100.0
    seen = {shown := settled(shown, 100.0 + n) for n in range(40)}
    assert seen == {100.0, 116.0, 134.0}
