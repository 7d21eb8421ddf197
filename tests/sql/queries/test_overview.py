"""The dashboard's first page: exact counts are right, and the cost has a bound."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from support import circuits, factory
from support.clock import Clock
from support.factory import refused
from support.shapes import Scale

TEN_PAST = datetime(2090, 3, 1, 9, 10, tzinfo=UTC)


@pytest.fixture
async def system(conn: asyncpg.Connection, clock: Clock) -> asyncpg.Connection:
    """Set the clock to ten past nine, with nothing counted before."""
    await clock.freeze(TEN_PAST)
    await conn.execute("select penstock.make_partitions()")
    await conn.execute(
        "update penstock.rollup set counted_until = $1, settled_until = $1", TEN_PAST
    )
    return conn


async def overview(
    conn: asyncpg.Connection, hours: int = 24, counted: int = 40_000
) -> dict[str, Any]:
    found: dict[str, Any] = await conn.fetchval(
        "select penstock.read_overview($1, $2)", hours, counted
    )
    return found


async def queue(conn: asyncpg.Connection, name: str = "q", **more: Any) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {
        one["name"]: one for one in (await overview(conn, **more))["queues"]
    }
    return found[name]


async def many(conn: asyncpg.Connection, count: int, kind: str = "q", **fields: Any) -> None:
    await factory.submit_rows(conn, [{"kind": kind} | fields for _ in range(count)])


async def test_every_live_job_is_counted_in_its_queue_and_status(
    system: asyncpg.Connection,
) -> None:
    for name in ("a", "b", "idle"):
        await factory.queue(system, name)
    worker = await factory.worker(system, lease="1 day")
    await many(system, 7, "a")
    await many(system, 2, "a", delay_seconds=60)
    await many(system, 5, "b", account="someone")
    await factory.claim(system, worker, "a", 3)
    [handed] = await factory.claim(system, worker, "b", 1)
    await factory.hand_over(system, worker, handed, "a-token-of-this-test")
    found = {one["name"]: one for one in (await overview(system))["queues"]}
    assert found["a"]["jobs"] == {"queued": 4, "scheduled": 2, "running": 3}
    assert found["b"]["jobs"] == {"queued": 4, "awaiting": 1}
    assert found["idle"]["jobs"] == {}
    assert all(one["about"] == [] for one in found.values())


async def test_beyond_the_bound_a_count_is_marked_as_an_estimate(
    system: asyncpg.Connection,
) -> None:
    await factory.queue(system)
    await factory.queue(system, "small")
    await many(system, 400)
    await many(system, 300, delay_seconds=60)
    await many(system, 20, "small")
    found = {one["name"]: one for one in (await overview(system, counted=100))["queues"]}
    assert found["q"]["about"] == ["queued", "scheduled"]
    # A sample of a small table is all of it.
    assert found["q"]["jobs"] == {"queued": 400, "scheduled": 300}
    assert (found["small"]["jobs"], found["small"]["about"]) == ({"queued": 20}, [])


@pytest.mark.parametrize("order", ["aging", "strict", "fair"])
async def test_an_estimate_uses_the_measurements_of_upkeep(
    system: asyncpg.Connection, order: str
) -> None:
    """Exact to a slice, with jobs in no lane, in open and in closed lanes."""
    await factory.queue(system, order=order)
    await factory.plan(system, concurrency=1)
    worker = await factory.worker(system, lease="1 day")
    await many(system, 600, account="full")
    assert await factory.claim(system, worker)
    await many(system, 900, account="other")
    await many(system, 500)
    assert await system.fetchval("select penstock.measure_waits('0')")
    # Only upkeep's measurements can give the number: the sample would read a single page.
    await system.execute(
        "create or replace function penstock._sample_live()"
        " returns table (queue_id integer, status text, jobs bigint) language sql stable"
        " as 'select 0, ''queued''::text, 0::bigint where false'"
    )
    found = await queue(system, counted=100)
    assert found["about"] == ["queued"]
    assert abs(found["jobs"]["queued"] - 1_999) <= 250


async def test_with_very_many_started_jobs_each_queue_has_an_estimate(
    system: asyncpg.Connection,
) -> None:
    """Also a queue of which no job was among those that were read."""
    for name in ("a", "b", "idle"):
        await factory.queue(system, name)
    worker = await factory.worker(system, lease="1 day")
    for name, count in {"a": 5, "b": 3}.items():
        await many(system, count, name)
        await factory.claim(system, worker, name, count)
    await system.execute(
        "create or replace function penstock._counted_attempts() returns integer"
        " language sql immutable parallel safe as 'select 2'"
    )
    found = {one["name"]: one for one in (await overview(system))["queues"]}
    assert [(found[name]["jobs"], found[name]["about"]) for name in ("a", "b", "idle")] == [
        ({"running": 5}, ["running"]),
        ({"running": 3}, ["running"]),
        ({}, []),
    ]


async def test_old_measurements_are_not_used(system: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(system)
    await many(system, 400)
    assert await system.fetchval("select penstock.measure_waits('0')")
    await many(system, 600)
    await clock.advance("5m")
    assert (await queue(system, counted=100))["jobs"] == {"queued": 1_000}


async def test_the_oldest_job_is_the_one_that_was_due_first(
    system: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(system)
    await factory.submit(system, delay_seconds=60)
    await clock.advance("1m")
    due = await clock.now()
    await clock.advance("10m")
    found = await queue(system)
    assert (found["jobs"], found["due"], found["waiting_for"]) == (
        {"scheduled": 1},
        1,
        "no_worker",
    )
    await many(system, 3, priority=100)
    assert datetime.fromisoformat((await queue(system))["oldest_at"]) == due


async def test_a_starved_job_of_a_deep_strict_queue_is_the_oldest(
    system: asyncpg.Connection, clock: Clock
) -> None:
    """It is at the end of the queue, far from the jobs that are read there."""
    await factory.queue(system, order="strict")
    await factory.submit(system, priority=-100)
    began = await clock.now()
    await clock.advance("1d")
    await many(system, 300)
    assert datetime.fromisoformat((await queue(system))["oldest_at"]) == began


async def test_a_queue_shows_what_its_next_job_waits_for(system: asyncpg.Connection) -> None:
    await factory.queue(system, concurrency=1)
    await many(system, 3)
    assert (await queue(system))["waiting_for"] == "no_worker"
    worker = await factory.worker(system, lease="1 day")
    assert (await queue(system))["waiting_for"] is None
    await factory.claim(system, worker)
    assert (await queue(system))["waiting_for"] == "queue_limit"
    await system.execute("select penstock.pause_queue('q', 'moving house')")
    found = await queue(system)
    assert (found["waiting_for"], found["paused_reason"]) == ("paused", "moving house")
    await factory.queue(system, "paced", rate="1/m")
    await many(system, 2, "paced")
    await factory.claim(system, worker, "paced")
    assert (await queue(system, "paced"))["waiting_for"] == "rate_limit"


async def test_a_queue_whose_accounts_are_all_full_waits_for_account_limit(
    system: asyncpg.Connection,
) -> None:
    await factory.queue(system)
    await factory.plan(system, concurrency=1)
    worker = await factory.worker(system, lease="1 day")
    await many(system, 3, account="full")
    await factory.claim(system, worker)
    assert (await queue(system))["waiting_for"] == "account_limit"
    await factory.submit(system, account="free")
    assert (await queue(system))["waiting_for"] is None


async def test_a_driven_queue_waits_for_no_worker(system: asyncpg.Connection) -> None:
    await factory.queue(system, drive="http")
    await many(system, 1)
    assert (await queue(system))["waiting_for"] is None


async def test_an_unavailable_provider_is_shown_with_its_next_probe(
    system: asyncpg.Connection,
) -> None:
    await factory.queue(system)
    worker = await factory.worker(system, lease="1 day")
    await many(system, 4)
    while (await circuits.circuit(system, "q"))["state"] == "closed":
        started = await factory.claim(system, worker, "q", 2)
        await circuits.end(system, worker, started, "unavailable", delay="0")
    found = await overview(system)
    [one] = found["queues"]
    assert (one["waiting_for"], one["circuit"]["class"]) == ("circuit_open", "unavailable")
    assert one["circuit"]["next_at"] > found["now"]
    assert [alert["queue"] for alert in found["alerts"]] == ["q"]


async def run(
    conn: asyncpg.Connection, clock: Clock, worker: int, seconds: float, outcome: str = "succeeded"
) -> None:
    await factory.submit(conn)
    started = await factory.claim(conn, worker)
    await clock.advance(timedelta(seconds=seconds))
    error = None if outcome == "succeeded" else {"class": "bug", "message": "m"}
    await factory.finish(conn, worker, started, outcome, error=error)


async def test_finished_jobs_count_whether_or_not_they_are_rolled_up(
    system: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(system)
    worker = await factory.worker(system, lease="1 day")
    await run(system, clock, worker, 1)
    await run(system, clock, worker, 2, "failed")
    for adds_up in (False, True):
        if adds_up:
            await clock.advance("10s")
            while await system.fetchval("select penstock.roll_up()"):
                pass
        outcomes = (await overview(system))["ended"]
        assert [(bar["outcome"], bar["count"]) for bar in outcomes["bars"]] == [
            ("failed", 1),
            ("succeeded", 1),
        ]
        assert outcomes["bars"][0]["at"] == "2090-03-01T09:00:00.000000Z"
        assert [(one["class"], one["count"]) for one in outcomes["failures"]] == [("bug", 1)]
        assert (outcomes["failed_today"], outcomes["succeeded"], outcomes["avg_seconds"]) == (
            1,
            1,
            1,
        )
        assert list(outcomes["queues"].values()) == [{"ended": 2, "failed": 1}]


async def test_the_average_wait_is_of_jobs_that_have_started(
    system: asyncpg.Connection, clock: Clock
) -> None:
    """A job that was cancelled before it started does not count as a wait of zero."""
    await factory.queue(system)
    worker = await factory.worker(system, lease="1 day")
    assert (await overview(system))["wait_seconds"] is None
    dropped, _ = [await factory.submit(system) for _ in range(2)]
    await system.execute("select penstock.cancel_job($1)", dropped)
    assert (await overview(system))["wait_seconds"] is None
    await clock.advance("10s")
    await factory.finish(system, worker, await factory.claim(system, worker))
    assert (await overview(system))["wait_seconds"] == 10


async def test_failed_today_begins_at_midnight(system: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(system)
    worker = await factory.worker(system, lease="10 days")
    await run(system, clock, worker, 1, "failed")
    await clock.freeze(TEN_PAST.replace(day=2, hour=0, minute=5))
    while await system.fetchval("select penstock.roll_up()"):
        pass
    outcomes = (await overview(system))["ended"]
    assert outcomes["failed_today"] == 0
    assert [bar["count"] for bar in outcomes["bars"]] == [1]


@pytest.mark.parametrize(
    ("hours", "step", "bars"),
    [(24, 3_600, 25), (50, 21_600, 10), (168, 21_600, 29), (720, 86_400, 31)],
)
async def test_bars_are_whole_and_the_last_one_is_running(
    system: asyncpg.Connection, hours: int, step: int, bars: int
) -> None:
    found = await overview(system, hours)
    begins = datetime.fromisoformat(found["ended"]["from"])
    assert found["ended"]["step_seconds"] == step
    assert (TEN_PAST - begins) // timedelta(seconds=step) + 1 == bars
    assert begins.timestamp() % step == 0


async def test_an_invalid_number_of_hours_is_refused(system: asyncpg.Connection) -> None:
    for hours in (0, -1, 2_161, None):
        with refused(422, "invalid_filter", "hours"):
            await system.fetchval("select penstock.read_overview($1)", hours)


async def test_without_a_roll_up_the_page_shows_until_when_it_has_counts(
    system: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(system)
    worker = await factory.worker(system, lease="1 day")
    await run(system, clock, worker, 1)
    await clock.advance("11m")
    outcomes = (await overview(system))["ended"]
    assert (outcomes["behind"], outcomes["bars"]) == (True, [])
    while await system.fetchval("select penstock.roll_up()"):
        pass
    outcomes = (await overview(system))["ended"]
    assert (outcomes["behind"], len(outcomes["bars"])) == (False, 1)


@pytest.mark.parametrize(
    ("upto", "share", "seconds"),
    [
        # All within 0.3 to 1 s: spread evenly between.
        ([0, 0, 100, *[100] * 9], 0.5, 0.65),
        ([0, 0, 100, *[100] * 9], 1.0, 1.0),
        ([100, *[100] * 11], 0.95, 0.095),
        # 95 of 100 took at most 10 s.
        ([0, 0, 0, 0, 95, 100, *[100] * 6], 0.95, 10.0),
        # More than a twentieth took longer than half an hour.
        ([*[90] * 11, 100], 0.95, None),
        ([0] * 12, 0.95, None),
    ],
)
async def test_a_quantile_is_read_off_the_histogram(
    conn: asyncpg.Connection, upto: list[int], share: float, seconds: float | None
) -> None:
    found = await conn.fetchval("select penstock._quantile_seconds($1, $2)", upto, share)
    assert found == (None if seconds is None else pytest.approx(seconds))


async def test_workers_are_listed_with_the_number_of_their_jobs(
    system: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(system)
    short, long = (
        await factory.worker(system, "short", lease="15 s"),
        await factory.worker(system, "long", lease="1 day"),
    )
    await many(system, 5)
    await factory.claim(system, short, limit=2)
    await factory.claim(system, long, limit=3)
    await clock.advance("1m")
    workers = {one["worker_id"]: one for one in (await overview(system))["workers"]}
    assert (workers["short"]["alive"], workers["short"]["running"]) == (False, 2)
    assert (workers["long"]["alive"], workers["long"]["running"]) == (True, 3)


async def test_stuck_jobs_are_counted_as_on_their_own_page(
    system: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(system, stale_after_seconds=60, timeout_seconds=7_200)
    worker = await factory.worker(system, lease="15 s")
    await many(system, 3)
    await factory.claim(system, worker, limit=2)
    await clock.advance("2m")
    found = await overview(system)
    assert (found["stale"], found["recovered"]) == (2, 0)
    await factory.recover(system)
    found = await overview(system)
    assert (found["stale"], found["recovered"]) == (0, 2)
    listed = await system.fetchval("select count(*) from penstock._list_stuck(100)")
    assert listed == 2


async def test_a_receiver_that_refuses_webhooks_is_shown(system: asyncpg.Connection) -> None:
    await system.execute(
        "insert into penstock.delivery (id, job_id, account_id, event, url, trusted, created_at,"
        " tries, next_at, host) select gen_random_uuid(), gen_random_uuid(), 0, 'job.succeeded',"
        " 'https://' || h || '/hook', false, penstock.clock(), t, penstock.clock(), h"
        " from (values ('down.example:443', 5), ('down.example:443', 3), ('slow.example:443', 1))"
        " v (h, t)"
    )
    workers = (await overview(system))["failing_hosts"]
    assert [(one["host"], one["count"]) for one in workers] == [("down.example:443", 2)]


@pytest.mark.timeout(600)
async def test_the_overview_reads_a_bounded_part_of_a_deep_queue(
    conn: asyncpg.Connection, scale: Scale
) -> None:
    """Of 100,000 waiting jobs (1,000,000), it reads those that it counts, and a sample."""
    await factory.queue(conn)
    jobs = scale(100_000, 1_000_000)
    await conn.execute(
        "select count(*) from penstock.submit_many(array_fill('q'::text, array[$1::integer]),"
        " array_fill('{}'::jsonb, array[$1]))",
        jobs,
    )
    await conn.execute("vacuum analyze penstock.job")
    await conn.fetchval("select penstock.read_overview(24, 1000)")
    plan = await conn.fetchval(
        "explain (analyze, buffers, format json) select penstock.read_overview(24, 1000)"
    )
    top = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    # A thousand pages of the sample, and a few hundred for everything else.
    assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 3_000
    [found] = (await overview(conn, counted=1_000))["queues"]
    assert found["about"] == ["queued"]
    assert found["jobs"]["queued"] == pytest.approx(jobs, rel=0.2)
