"""The ETA of a job, compared with the time until it really starts."""

import random
import statistics
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock

LONG_LEASE = "100 days"


async def eta_of(conn: asyncpg.Connection, job: UUID) -> float | None:
    eta: float | None = (await factory.read(conn, job))["eta_seconds"]
    return eta


async def measure(conn: asyncpg.Connection) -> None:
    await conn.execute("select penstock.measure_waits('0')")


async def pace(conn: asyncpg.Connection, kind: str = "q") -> float | None:
    found: float | None = await conn.fetchval(
        "select p.seconds from penstock.pace p join penstock.kind k on k.id = p.kind_id"
        " where k.name = $1",
        kind,
    )
    return found


async def ran(
    conn: asyncpg.Connection,
    clock: Clock,
    worker: int,
    lengths: Sequence[float],
    kind: str = "q",
    *,
    outcome: str = "succeeded",
) -> None:
    """Run jobs for these durations, one after the other, and measure them."""
    for length in lengths:
        await factory.submit(conn, kind)
        started = await factory.claim(conn, worker)
        await clock.advance(length, beats=True)
        await factory.finish(conn, worker, started, outcome)
    await measure(conn)


async def queue(conn: asyncpg.Connection, clock: Clock, **options: Any) -> int:
    """Declare a queue with these options and register a worker, with a stopped clock."""
    await clock.freeze()
    await factory.queue(conn, **options)
    return await factory.worker(conn, lease=LONG_LEASE)


@pytest.mark.parametrize("shape", ["even", "skewed"])
async def test_fifty_concurrent_jobs_of_one_model_have_a_good_eta(
    conn: asyncpg.Connection, clock: Clock, shape: str
) -> None:
    """F2: within 30 % at the median, with run times that vary as those of a model do."""
    chance = random.Random(11)

    def length() -> float:
        even = chance.uniform(2, 8)
        return even if shape == "even" else 1 + chance.expovariate(1 / 4)

    worker = await queue(conn, clock, concurrency=1)
    await ran(conn, clock, worker, [length() for _ in range(30)])
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 50)
    etas = [await eta_of(conn, job) for job in jobs]
    waited: list[float] = []
    begun = await clock.now()
    for job in jobs:
        started = await factory.claim(conn, worker)
        assert started[0]["id"] == job
        waited.append((await clock.now() - begun).total_seconds())
        await clock.advance(length(), beats=True)
        await factory.finish(conn, worker, started)
    assert etas[0] == waited[0] == 0
    off = [
        abs(eta - truly) / truly
        for eta, truly in zip(etas[1:], waited[1:], strict=True)
        if eta is not None
    ]
    assert len(off) == 49
    assert statistics.median(off) <= 0.3, sorted(off)


async def test_the_eta_includes_the_rest_of_running_jobs(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await queue(conn, clock, concurrency=1)
    await ran(conn, clock, worker, [10.0] * 5)
    _, *jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 3)
    await factory.claim(conn, worker)
    assert [await eta_of(conn, job) for job in jobs] == [10, 20]
    await clock.advance("4s")
    assert [await eta_of(conn, job) for job in jobs] == [6, 16]
    await clock.advance("20s")
    assert [await eta_of(conn, job) for job in jobs] == [2, 12], "late: it may finish at any moment"


async def test_slots_share_the_work(conn: asyncpg.Connection, clock: Clock) -> None:
    worker = await queue(conn, clock, concurrency=4)
    await ran(conn, clock, worker, [8.0] * 5)
    await conn.execute("delete from penstock.flow")
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 11)
    assert [await eta_of(conn, job) for job in jobs] == [0] * 4 + [8] * 4 + [16] * 3
    await factory.claim(conn, worker, limit=2)
    await clock.advance("3s")
    await factory.claim(conn, worker, limit=2)
    assert [await eta_of(conn, job) for job in jobs[4:]] == [5, 5, 8, 8, 13, 13, 16]


async def test_a_small_worker_has_fewer_slots_than_the_queue_allows(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await queue(conn, clock, concurrency=40)
    await ran(conn, clock, worker, [8.0] * 5)
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 6)
    await factory.claim(conn, worker, limit=2)
    await measure(conn)
    assert [await eta_of(conn, job) for job in jobs[2:]] == [8, 8, 16, 16]


async def test_without_a_limit_the_measured_number_of_running_jobs_counts(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await queue(conn, clock)
    await ran(conn, clock, worker, [8.0] * 5)
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 6)
    assert await eta_of(conn, jobs[0]) == 0, "the next claim takes it"
    await factory.claim(conn, worker, limit=3)
    await clock.advance("3s")
    assert [await eta_of(conn, job) for job in jobs[3:]] == [5, 5, 5]


async def test_kinds_have_their_own_paces(conn: asyncpg.Connection, clock: Clock) -> None:
    worker = await queue(conn, clock, concurrency=1)
    for kind in ("short", "long", "new"):
        await conn.execute("select penstock.declare_kind($1, 'q')", kind)
    await ran(conn, clock, worker, [2.0] * 10, "short")
    await ran(conn, clock, worker, [30.0] * 10, "long")
    kinds = ["short", "long", "short", "short", "new", "short"]
    *_, last, _, after = await factory.submit_rows(conn, [{"kind": kind} for kind in kinds])
    assert await eta_of(conn, last) == 34
    assert await eta_of(conn, after) == 34 + 2 + 16, (
        "a kind without measurements takes as long as the others"
    )


async def test_the_accounts_own_limit_counts(conn: asyncpg.Connection, clock: Clock) -> None:
    worker = await queue(conn, clock, concurrency=10)
    await factory.plan(conn, concurrency=1)
    await ran(conn, clock, worker, [10.0] * 5)
    await conn.execute("delete from penstock.flow")
    *own, other = await factory.submit_rows(
        conn, [{"kind": "q", "account": account} for account in "aaab"]
    )
    assert [await eta_of(conn, job) for job in own] == [0, 10, 20]
    await factory.claim(conn, worker, limit=1)
    await clock.advance("3s")
    assert [await eta_of(conn, job) for job in own] == [None, 7, 17]
    assert await eta_of(conn, other) == 0


async def test_the_rate_of_the_queue_counts(conn: asyncpg.Connection, clock: Clock) -> None:
    worker = await queue(conn, clock, rate="6/min", burst=2)
    await ran(conn, clock, worker, [1.0] * 2)
    await clock.advance("10m", beats=True)
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 5)
    assert await factory.claim(conn, worker, limit=5)
    # Two at once, then one every ten seconds.
    assert [await eta_of(conn, job) for job in jobs[2:]] == [10, 20, 30]


async def test_a_job_that_backs_off_does_not_start_before_it_is_due(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await queue(conn, clock, concurrency=1)
    await ran(conn, clock, worker, [10.0] * 5)
    job = await factory.submit(conn)
    started = await factory.claim(conn, worker)
    await factory.finish(conn, worker, started, "retry", delay="5 minutes")
    assert await eta_of(conn, job) == 300
    await clock.advance("4m", beats=True)
    assert await eta_of(conn, job) == 60


async def test_without_measurements_there_is_no_eta(conn: asyncpg.Connection, clock: Clock) -> None:
    worker = await queue(conn, clock, concurrency=1)
    first, second = await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    assert await eta_of(conn, first) == 0, "it is next, and the slot is free"
    assert await eta_of(conn, second) is None, "it is not known how long the first will take"
    await factory.claim(conn, worker)
    assert await eta_of(conn, first) is None, "it runs"
    assert await eta_of(conn, second) is None


@pytest.mark.parametrize("reason", ["paused", "circuit_open", "rate_limit"])
async def test_in_an_outage_there_is_no_eta(
    conn: asyncpg.Connection, clock: Clock, reason: str
) -> None:
    worker = await queue(conn, clock, concurrency=1)
    await ran(conn, clock, worker, [10.0] * 5)
    job = await factory.submit(conn)
    assert await eta_of(conn, job) == 0
    if reason == "paused":
        await conn.execute("select penstock.pause_queue('q', null)")
    else:
        await conn.execute(
            "with c as (update penstock.circuit set state = 'open', next_at = penstock.clock(),"
            " class = $1 returning circuit) select penstock._publish_circuit('q', c.circuit,"
            " penstock.clock()) from c",
            {"circuit_open": "unavailable", "rate_limit": "rate_limited"}[reason],
        )
    assert await eta_of(conn, job) is None
    assert (await factory.read(conn, job))["position"] == 1


async def test_without_a_worker_there_is_no_eta(conn: asyncpg.Connection, clock: Clock) -> None:
    worker = await queue(conn, clock, concurrency=1)
    await ran(conn, clock, worker, [10.0] * 5)
    job = await factory.submit(conn)
    await conn.execute("select penstock.stop_worker($1)", worker)
    assert await eta_of(conn, job) is None


async def test_one_job_of_four_hours_does_not_distort_the_eta(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await queue(conn, clock)
    await ran(conn, clock, worker, [10.0] * 20)
    await ran(conn, clock, worker, [4 * 3_600.0, 10.0, 10.0])
    assert await pace(conn) == 10


async def test_cancelled_jobs_do_not_count_for_the_pace(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await queue(conn, clock)
    await ran(conn, clock, worker, [10.0] * 3)
    await ran(conn, clock, worker, [1.0] * 5, outcome="cancelled")
    assert await pace(conn) == 10


async def test_only_kinds_with_newly_finished_jobs_are_measured_again(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await queue(conn, clock)
    await conn.execute("select penstock.declare_kind('other', 'q')")
    await ran(conn, clock, worker, [10.0])
    await ran(conn, clock, worker, [2.0], "other")
    await conn.execute("update penstock.pace set seconds = 99")
    await ran(conn, clock, worker, [4.0], "other")
    assert (await pace(conn), await pace(conn, "other")) == (99, 3)


async def test_deep_in_a_queue_the_work_ahead_comes_from_the_snapshot(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await queue(conn, clock, concurrency=1)
    await conn.execute("select penstock.declare_kind('long', 'q')")
    await ran(conn, clock, worker, [1.0] * 5)
    await ran(conn, clock, worker, [4.0] * 5, "long")
    kinds = ["q", "long"] * 3_000
    await conn.execute(
        "select count(*) from penstock.submit_many($1, $2)", kinds, [{}] * len(kinds)
    )
    await measure(conn)
    last = await conn.fetchval("select id from penstock.job order by rank desc limit 1")
    assert await eta_of(conn, last) == pytest.approx(3_000 * 5, abs=10)
    near = await conn.fetchval("select id from penstock.job order by rank offset 100 limit 1")
    assert await eta_of(conn, near) == 250
