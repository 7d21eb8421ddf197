"""How a start ended, as the columns that finish_jobs takes."""

from datetime import timedelta
from typing import get_args

import pytest

from penstock.engine.jobs.outcomes import (
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
    columns,
)

OOPS = Error("unavailable", "no answer")
TOLD = {"class": "unavailable", "message": "no answer", "retryable": True}
FIVE = timedelta(minutes=5)

CASES: list[tuple[Outcome, Columns]] = [
    (Succeeded(), ("succeeded", None, None, None)),
    (Succeeded({"score": 7}), ("succeeded", {"score": 7}, None, None)),
    (Failed(OOPS), ("failed", None, TOLD, None)),
    (Retry(OOPS), ("retry", None, TOLD, None)),
    (Retry(OOPS, after=FIVE), ("retry", None, TOLD, FIVE)),
    (TimedOut(OOPS), ("timed_out", None, TOLD, None)),
    (Stuck(OOPS), ("stuck", None, TOLD, None)),
    (Deferred(OOPS, FIVE), ("deferred", None, TOLD, FIVE)),
    (Snoozed(FIVE), ("snoozed", None, None, FIVE)),
    (Released(), ("released", None, None, None)),
    (Cancelled(), ("cancelled", None, None, None)),
    (Cancelled(OOPS), ("cancelled", None, TOLD, None)),
]


@pytest.mark.parametrize(("outcome", "expected"), CASES)
def test_each_outcome_becomes_its_columns(outcome: Outcome, expected: Columns) -> None:
    assert columns(outcome) == expected


def test_no_outcome_is_left_out() -> None:
    assert {type(outcome) for outcome, _ in CASES} == set(get_args(Outcome))


def test_an_error_says_whether_to_try_again() -> None:
    assert Error("refused", "no", retryable=False).as_json()["retryable"] is False
