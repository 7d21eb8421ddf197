"""A queue's rate, over any run of claims: never more than allowed, never less than due."""

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import count
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from support.cluster import Cluster

pytestmark = pytest.mark.timeout(1_800)  # --hypothesis-profile=nightly tries thousands

START = datetime(2030, 1, 1, tzinfo=UTC)
PERIODS = {"s": timedelta(seconds=1), "min": timedelta(minutes=1), "h": timedelta(hours=1)}
MICROSECOND = timedelta(microseconds=1)
# By which part of a step a job may start early; never more, because the pace does not drift.
EARLY = Fraction(1, 1_000_000)
JOBS = 40
CLAIMERS = 3

# How long after the one before, in thousandths of the time between two starts; who; how many.
claims = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 500, 999, 1000, 1001, 2500, 20_000]) | st.integers(0, 5000),
        st.integers(0, CLAIMERS - 1),
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=25,
)


@pytest.fixture
def conn(cluster: Cluster) -> Iterator[psycopg.Connection[Any]]:
    with cluster.database() as name, psycopg.connect(cluster.dsn(name), autocommit=True) as conn:
        for _ in range(CLAIMERS):
            conn.execute("select penstock.register_worker('w', '1000 days')")
        yield conn


def declare(conn: psycopg.Connection[Any], name: str, rate: str, burst: int) -> None:
    conn.execute("select penstock.declare_queue(%s, %s)", [name, Jsonb(
        {"rate": rate, "burst": burst, "retention_failed_seconds": 7 * 86400})])  # fmt: skip
    conn.execute("select penstock.declare_kind(%s, %s)", [name, name])
    conn.execute(
        "select from penstock.submit_many(array_fill(%s::text, array[%s]),"
        " array_fill('{}'::jsonb, array[%s]))",
        [name, JOBS, JOBS],
    )


def test_in_any_window_start_at_most_its_share_and_one_burst(
    conn: psycopg.Connection[Any],
) -> None:
    names = (f"q{n}" for n in count())
    workers = [worker for (worker,) in conn.execute("select id from penstock.worker")]

    @given(st.integers(1, 90), st.sampled_from(sorted(PERIODS)), st.integers(1, 5), claims)
    def holds(number: int, period: str, burst: int, turns: list[tuple[int, int, int]]) -> None:
        name = next(names)
        now = START
        conn.execute("update penstock.test_clock set frozen_at = %s, moved = '0'", [now])
        declare(conn, name, f"{number}/{period}", burst)
        step = PERIODS[period] / number  # both sides round it to a whole microsecond
        starts: list[datetime] = []
        tokens, since = Fraction(burst), now
        for wait, who, limit in turns:
            now += step * (wait / 1000)
            conn.execute("update penstock.test_clock set frozen_at = %s", [now])
            started = conn.execute(
                "select id from penstock.claim_jobs(%s, %s, %s)", [workers[who], name, limit]
            ).rowcount
            # The same as a bucket: starting a job takes one out, and each step adds one.
            filled = Fraction((now - since) // MICROSECOND, step // MICROSECOND)
            tokens, since = min(Fraction(burst), tokens + filled), now
            assert started == min(limit, int(tokens + EARLY), JOBS - len(starts))
            tokens -= started
            starts += [now] * started
        assert_windows_hold(starts, step, burst)

    holds()


def assert_windows_hold(starts: list[datetime], step: timedelta, burst: int) -> None:
    """Between any two attempts: an even share, and one burst."""
    for first, since in enumerate(starts):
        for until in starts[first:]:
            inside = bisect_right(starts, until) - first
            assert inside <= (until - since) / step + burst + EARLY
