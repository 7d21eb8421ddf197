"""Outcomes of an attempt, as the columns that finish_jobs takes."""

from datetime import timedelta
from typing import get_args

import pytest

from penstock.engine.jobs.attempts import (
    Bearing,
    Cancelled,
    Columns,
    Deferred,
    Error,
    Failed,
    Outcome,
    Released,
    Retry,
    Snoozed,
    Stuck,
    Succeeded,
    TimedOut,
    bearing_columns,
    columns,
)

OOPS = Error("unavailable", "no answer")
ERROR = {"class": "unavailable", "message": "no answer", "retryable": True}
FIVE = timedelta(minutes=5)

OPENS = Bearing("opens", FIVE, "127.0.0.1:11434")

CASES: list[tuple[Outcome, Columns]] = [
    (Succeeded(), Columns("succeeded")),
    (Succeeded({"score": 7}), Columns("succeeded", {"score": 7})),
    (Failed(OOPS), Columns("failed", error=ERROR)),
    (Failed(OOPS, OPENS), Columns("failed", error=ERROR, bearing=OPENS)),
    (Retry(OOPS), Columns("retry", error=ERROR)),
    (Retry(OOPS, after=FIVE), Columns("retry", error=ERROR, delay=FIVE)),
    (
        Retry(OOPS, provisional=True, bearing=OPENS),
        Columns("provisional", error=ERROR, bearing=OPENS),
    ),
    (TimedOut(OOPS), Columns("timed_out", error=ERROR)),
    (Stuck(OOPS), Columns("stuck", error=ERROR)),
    (Deferred(OOPS, FIVE, OPENS), Columns("deferred", error=ERROR, delay=FIVE, bearing=OPENS)),
    (Snoozed(FIVE), Columns("snoozed", delay=FIVE)),
    (Released(), Columns("released")),
    (Cancelled(), Columns("cancelled")),
    (Cancelled(OOPS), Columns("cancelled", error=ERROR)),
]


@pytest.mark.parametrize(("outcome", "expected"), CASES)
def test_each_outcome_becomes_its_columns(outcome: Outcome, expected: Columns) -> None:
    assert columns(outcome) == expected


def test_no_outcome_is_left_out() -> None:
    assert {type(outcome) for outcome, _ in CASES} == set(get_args(Outcome))


def test_an_error_says_whether_to_try_again() -> None:
    assert Error("refused", "no", retryable=False).as_json()["retryable"] is False


def test_bearings_become_three_columns_and_none_where_no_job_has_one() -> None:
    assert bearing_columns([None, None]) == (None, None, None)
    bearings = [None, Bearing("opens", FIVE, "127.0.0.1:11434")]
    assert bearing_columns(bearings) == [[None, "opens"], [None, FIVE], [None, "127.0.0.1:11434"]]
