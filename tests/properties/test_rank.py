"""Order and waits are pure functions; here they are beside their definition in Python."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cluster import Cluster

pytestmark = pytest.mark.timeout(1_800)  # --hypothesis-profile=nightly tries thousands

Ask = Callable[..., list[Any]]

FIRST = datetime(2020, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
MICROSECOND = timedelta(microseconds=1)


class Arrival(NamedTuple):
    """A job as its rank sees it."""

    priority: int
    due_at: datetime
    ordinal: int

    @property
    def micros(self) -> int:
        """When it is due, with its position in the batch: later in a batch is a little later."""
        return (self.due_at - FIRST) // MICROSECOND + self.ordinal


# Moments close to one another, or their order would never be in doubt.
moments = st.builds(
    lambda day, micros: FIRST + day * timedelta(days=1000) + micros * MICROSECOND,
    st.integers(0, 9),
    st.integers(0, 50_000_000),
)
arrivals = st.lists(
    st.builds(Arrival, st.integers(-1000, 1000) | st.integers(-2, 2), moments, st.integers(1, 99)),
    min_size=2,
    max_size=20,
)
intervals = st.timedeltas(timedelta(0), 10 * YEAR) | st.timedeltas(
    timedelta(0), timedelta(minutes=10)
)


@pytest.fixture
def ask(cluster: Cluster) -> Iterator[Ask]:
    """A query's only column, as a list."""
    with cluster.database() as name, psycopg.connect(cluster.dsn(name), autocommit=True) as conn:

        def rows(query: str, *values: Any) -> list[Any]:
            return [value for (value,) in conn.execute(query.encode(), values)]

        yield rows


def ranks(ask: Ask, ordering: str, step: timedelta, jobs: list[Arrival]) -> list[int]:
    priorities, due, ordinals = (list(column) for column in zip(*jobs, strict=True))
    return ask(
        "select penstock._rank(%s, u.priority, %s, u.due_at, u.ordinal)"
        " from unnest(%s::integer[], %s::timestamptz[], %s::bigint[])"
        " with ordinality u (priority, due_at, ordinal, n) order by u.n",
        ordering,
        step,
        priorities,
        due,
        ordinals,
    )


@pytest.mark.parametrize("ordering", ["strict", "fair"])
def test_strict_order_is_priority_then_arrival(ask: Ask, ordering: str) -> None:
    @given(arrivals)
    def holds(jobs: list[Arrival]) -> None:
        found = ranks(ask, ordering, timedelta(0), jobs)
        positions = [(job.priority, job.micros) for job in jobs]
        assert _order(found) == _order(positions)

    holds()


def test_aging_order_is_arrival_with_each_point_of_priority_worth_one_step(ask: Ask) -> None:
    """So a job that has waited for longer than its disadvantage comes first: nothing starves."""

    @given(arrivals, st.timedeltas(timedelta(0), timedelta(hours=1)))
    def holds(jobs: list[Arrival], step: timedelta) -> None:
        found = ranks(ask, "aging", step, jobs)
        assert found == [job.micros + job.priority * (step // MICROSECOND) for job in jobs]

    holds()


def _order(positions: list[Any]) -> list[list[bool]]:
    return [[one < other for other in positions] for one in positions]


@pytest.mark.parametrize("policy", ["constant", "linear", "exponential"])
def test_backoff_grows_as_its_policy_says_and_stops_at_the_longest_wait(
    ask: Ask, policy: str
) -> None:
    """Also after a thousand failures, with the longest delays that a queue may declare."""

    @given(intervals, intervals, st.integers(1, 1000) | st.integers(1, 5))
    def holds(delay: timedelta, longest: timedelta, failures: int) -> None:
        [found] = ask("select penstock._backoff(%s, %s, %s, %s)", policy, delay, longest, failures)
        factor = {"constant": 1, "linear": failures, "exponential": 2 ** min(failures - 1, 30)}
        expected = min(longest // MICROSECOND, delay // MICROSECOND * factor[policy])
        assert abs(found // MICROSECOND - expected) <= 1

    holds()


def test_backoff_never_gets_shorter(ask: Ask) -> None:
    @given(st.sampled_from(["constant", "linear", "exponential"]), intervals, intervals)
    def holds(policy: str, delay: timedelta, longest: timedelta) -> None:
        waits = ask(
            "select penstock._backoff(%s, %s, %s, n) from generate_series(1, 60) n order by n",
            policy,
            delay,
            longest,
        )
        assert waits == sorted(waits)

    holds()


def test_recoveries_wait_nothing_then_ten_seconds_then_a_minute(ask: Ask) -> None:
    waits = ask("select penstock._recovery_wait(n) from generate_series(1, 1000) n order by n")
    assert waits == [timedelta(seconds=n) for n in [0, 10] + [60] * 998]
