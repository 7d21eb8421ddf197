"""How long a provider asks us to wait, in all formats that providers use."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.failures.retry_after import LONGEST, retry_after

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)

REQUESTED = [
    ({"retry-after": "7"}, 7),
    ({"retry-after": " 7 "}, 7),
    ({"retry-after": "0"}, 0),
    ({"retry-after": "1.5"}, 1.5),
    ({"retry-after": ".5"}, 0.5),
    ({"retry-after": "Sun, 15 Nov 2026 12:00:30 GMT"}, 30),
    ({"retry-after": "Sunday, 15-Nov-26 12:00:30 GMT"}, 30),
    ({"retry-after": "2026-11-15T12:00:30Z"}, 30),
    ({"retry-after": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0),
    ({"retry-after": "Sun, 15 Nov 2026 13:00:05 +0100"}, 5),
    ({"retry-after-ms": "250"}, 0.25),
    ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
    ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
    ({"retry-after-ms": "-1", "retry-after": "9"}, 9),
    ({"retry-after": "86401"}, 86_400),
    ({"retry-after": "9" * 60}, 86_400),
    ({"retry-after": "Sun, 15 Nov 2099 12:00:00 GMT"}, 86_400),
    ({"x-ratelimit-reset-requests": "6m0s"}, 360),
    ({"x-ratelimit-reset-requests": "12ms"}, 0.012),
    ({"x-ratelimit-reset-requests": "1h2m3.5s"}, 3723.5),
    ({"x-ratelimit-reset-requests": "500µs"}, 0.0005),
    ({"x-ratelimit-reset": "30"}, 30),
    ({"ratelimit-reset": "30"}, 30),
    ({"x-ratelimit-reset": str(int(NOW.timestamp()) + 40)}, 40),
    ({"x-ratelimit-reset": str(int(NOW.timestamp() * 1000) + 40_000)}, 40),
    ({"anthropic-ratelimit-requests-reset": "2026-11-15T12:00:40Z"}, 40),
    # A limit with something left was not exceeded; of the exceeded ones the last to reset counts.
    (
        {
            "x-ratelimit-remaining-requests": "3",
            "x-ratelimit-reset-requests": "6m0s",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "2s",
        },
        2,
    ),
    (
        {
            "anthropic-ratelimit-input-tokens-remaining": "0",
            "anthropic-ratelimit-input-tokens-reset": "2026-11-15T12:00:40Z",
            "anthropic-ratelimit-output-tokens-remaining": "0",
            "anthropic-ratelimit-output-tokens-reset": "2026-11-15T12:00:50Z",
        },
        50,
    ),
    ({"retry-after": "soon", "x-ratelimit-reset-tokens": "2s"}, 2),
    ({"retry-after": "4", "x-ratelimit-reset-tokens": "2m"}, 4),
]


@pytest.mark.parametrize(("headers", "seconds"), REQUESTED)
def test_the_wait_comes_from_the_headers(headers: dict[str, str], seconds: float) -> None:
    assert retry_after(headers, NOW) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "soon",
        "-1",
        "nan",
        "inf",
        "-inf",
        "1e3",
        "0x10",
        "\N{FULLWIDTH DIGIT SEVEN}",
        "5 minutes",
        "1,5",
    ],
)
def test_garbage_gives_no_wait(value: str) -> None:
    names = ("retry-after", "retry-after-ms", "x-ratelimit-reset-tokens")
    assert [retry_after({name: value}, NOW) for name in names] == [None, None, None]


def test_without_headers_there_is_no_wait() -> None:
    assert retry_after({}, NOW) is None
    assert retry_after({"x-ratelimit-limit-tokens": "30"}, NOW) is None
    assert retry_after({"x-preset-reset": "30"}, NOW) is None


WORDS = st.one_of(
    st.text(max_size=80),
    st.from_regex(r"[+-]?[0-9.eE]{1,40}", fullmatch=True),
    st.from_regex(r"([0-9.]{1,12}(h|m|s|ms|us|ns)){1,4}", fullmatch=True),
    st.datetimes().map(lambda at: at.isoformat() + "Z"),
    st.datetimes().map(lambda at: f"{at:%a, %d %b %Y %H:%M:%S} GMT"),
    st.datetimes().map(lambda at: at.isoformat() + "+23:59"),
)
NAMES = st.sampled_from(
    [
        "retry-after",
        "retry-after-ms",
        "x-ratelimit-reset-tokens",
        "x-ratelimit-remaining-tokens",
        "anthropic-ratelimit-requests-reset",
        "ratelimit-reset",
    ]
)


@given(st.dictionaries(NAMES, WORDS))
@example({"retry-after": "0001-01-01T00:00:00+23:59"})
@example({"retry-after": "9999-12-31T23:59:59-23:59"})
@example({"retry-after": "Mon, 01 Jan 0001 00:00:00 +2359"})
@example({"retry-after": "Mon, 01 Jan 99999 00:00:00 GMT"})
@example({"retry-after": "Mon, 01 Jan 2026 00:00:00 +999999999"})
def test_any_header_gives_no_wait_or_one_of_at_most_a_day(headers: dict[str, str]) -> None:
    wait = retry_after(headers, NOW)
    assert wait is None or timedelta(0) <= wait <= LONGEST
