"""The dashboard's first page: its counts are true where they are exact, and cost what they show."""

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
async def house(conn: asyncpg.Connection, clock: Clock) -> asyncpg.Connection:
    """Ten past nine, with nothing counted before."""
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


async def test_every_live_job_is_counted_in_its_queue_and_status(house: asyncpg.Connection) -> None:
    for name in ("a", "b", "idle"):
        await factory.queue(house, name)
    worker = await factory.worker(house, lease="1 day")
    await many(house, 7, "a")
    await many(house, 2, "a", delay_seconds=60)
    await many(house, 5, "b", account="someone")
    await factory.claim(house, worker, "a", 3)
    [handed] = await factory.claim(house, worker, "b", 1)
    await factory.hand_over(house, worker, handed, "a-token-of-this-test")
    found = {one["name"]: one for one in (await overview(house))["queues"]}
    assert found["a"]["jobs"] == {"queued": 4, "scheduled": 2, "running": 3}
    assert found["b"]["jobs"] == {"queued": 4, "awaiting": 1}
    assert found["idle"]["jobs"] == {}
    assert all(one["about"] == [] for one in found.values())


async def test_beyond_the_bound_a_count_is_an_estimate_and_says_so(
    house: asyncpg.Connection,
) -> None:
    await factory.queue(house)
    await factory.queue(house, "small")
    await many(house, 400)
    await many(house, 300, delay_seconds=60)
    await many(house, 20, "small")
    found = {one["name"]: one for one in (await overview(house, counted=100))["queues"]}
    assert found["q"]["about"] == ["queued", "scheduled"]
    # A sample of a small table is all of it.
    assert found["q"]["jobs"] == {"queued": 400, "scheduled": 300}
    assert (found["small"]["jobs"], found["small"]["about"]) == ({"queued": 20}, [])


@pytest.mark.parametrize("order", ["aging", "strict", "fair"])
async def test_an_estimate_goes_by_what_upkeep_has_measured(
    house: asyncpg.Connection, order: str
) -> None:
    """Within a slice, with jobs in no lane, in open and in closed ones."""
    await factory.queue(house, order=order)
    await factory.plan(house, concurrency=1)
    worker = await factory.worker(house, lease="1 day")
    await many(house, 600, account="full")
    assert await factory.claim(house, worker)
    await many(house, 900, account="other")
    await many(house, 500)
    assert await house.fetchval("select penstock.measure_waits('0')")
    # Nothing but upkeep's measures can tell: the sample would read a single page.
    await house.execute(
        "create or replace function penstock._sample_live()"
        " returns table (queue_id integer, status text, jobs bigint) language sql stable"
        " as 'select 0, ''queued''::text, 0::bigint where false'"
    )
    found = await queue(house, counted=100)
    assert found["about"] == ["queued"]
    assert abs(found["jobs"]["queued"] - 1_999) <= 250


async def test_of_very_many_starts_each_queue_has_an_estimate(house: asyncpg.Connection) -> None:
    """Also one of which none was among those that were looked at."""
    for name in ("a", "b", "idle"):
        await factory.queue(house, name)
    worker = await factory.worker(house, lease="1 day")
    for name, count in {"a": 5, "b": 3}.items():
        await many(house, count, name)
        await factory.claim(house, worker, name, count)
    await house.execute(
        "create or replace function penstock._counted_attempts() returns integer"
        " language sql immutable parallel safe as 'select 2'"
    )
    found = {one["name"]: one for one in (await overview(house))["queues"]}
    assert [(found[name]["jobs"], found[name]["about"]) for name in ("a", "b", "idle")] == [
        ({"running": 5}, ["running"]),
        ({"running": 3}, ["running"]),
        ({}, []),
    ]


async def test_old_measures_are_not_gone_by(house: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(house)
    await many(house, 400)
    assert await house.fetchval("select penstock.measure_waits('0')")
    await many(house, 600)
    await clock.advance("5m")
    assert (await queue(house, counted=100))["jobs"] == {"queued": 1_000}


async def test_the_oldest_is_told_by_when_it_was_due(
    house: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(house)
    await factory.submit(house, delay_seconds=60)
    await clock.advance("1m")
    due = await clock.now()
    await clock.advance("10m")
    found = await queue(house)
    assert (found["jobs"], found["due"], found["waiting_for"]) == (
        {"scheduled": 1},
        1,
        "no_worker",
    )
    await many(house, 3, priority=100)
    assert datetime.fromisoformat((await queue(house))["oldest_at"]) == due


async def test_a_starved_job_of_a_deep_strict_queue_is_the_oldest(
    house: asyncpg.Connection, clock: Clock
) -> None:
    """It stands at the end of the line, far from those that are looked at there."""
    await factory.queue(house, order="strict")
    await factory.submit(house, priority=-100)
    began = await clock.now()
    await clock.advance("1d")
    await many(house, 300)
    assert datetime.fromisoformat((await queue(house))["oldest_at"]) == began


async def test_a_queue_says_what_its_next_job_waits_for(house: asyncpg.Connection) -> None:
    await factory.queue(house, concurrency=1)
    await many(house, 3)
    assert (await queue(house))["waiting_for"] == "no_worker"
    worker = await factory.worker(house, lease="1 day")
    assert (await queue(house))["waiting_for"] is None
    await factory.claim(house, worker)
    assert (await queue(house))["waiting_for"] == "queue_limit"
    await house.execute("select penstock.pause_queue('q', 'moving house')")
    found = await queue(house)
    assert (found["waiting_for"], found["paused_reason"]) == ("paused", "moving house")
    await factory.queue(house, "paced", rate="1/m")
    await many(house, 2, "paced")
    await factory.claim(house, worker, "paced")
    assert (await queue(house, "paced"))["waiting_for"] == "rate_limit"


async def test_a_queue_whose_accounts_are_all_full_says_so(house: asyncpg.Connection) -> None:
    await factory.queue(house)
    await factory.plan(house, concurrency=1)
    worker = await factory.worker(house, lease="1 day")
    await many(house, 3, account="full")
    await factory.claim(house, worker)
    assert (await queue(house))["waiting_for"] == "account_limit"
    await factory.submit(house, account="free")
    assert (await queue(house))["waiting_for"] is None


async def test_a_driven_queue_waits_for_no_worker(house: asyncpg.Connection) -> None:
    await factory.queue(house, drive="http")
    await many(house, 1)
    assert (await queue(house))["waiting_for"] is None


async def test_a_provider_that_is_away_is_told_with_its_next_try(
    house: asyncpg.Connection,
) -> None:
    await factory.queue(house)
    worker = await factory.worker(house, lease="1 day")
    await many(house, 4)
    while (await circuits.circuit(house, "q"))["state"] == "closed":
        started = await factory.claim(house, worker, "q", 2)
        await circuits.end(house, worker, started, "unavailable", delay="0")
    found = await overview(house)
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


async def test_what_has_ended_counts_added_up_or_not(
    house: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(house)
    worker = await factory.worker(house, lease="1 day")
    await run(house, clock, worker, 1)
    await run(house, clock, worker, 2, "failed")
    for adds_up in (False, True):
        if adds_up:
            await clock.advance("10s")
            while await house.fetchval("select penstock.roll_up()"):
                pass
        ended = (await overview(house))["ended"]
        assert [(bar["outcome"], bar["count"]) for bar in ended["bars"]] == [
            ("failed", 1),
            ("succeeded", 1),
        ]
        assert ended["bars"][0]["at"] == "2090-03-01T09:00:00.000000Z"
        assert [(one["class"], one["count"]) for one in ended["failures"]] == [("bug", 1)]
        assert (ended["failed_today"], ended["succeeded"], ended["avg_seconds"]) == (1, 1, 1)
        assert list(ended["queues"].values()) == [{"ended": 2, "failed": 1}]


async def test_the_average_wait_is_of_jobs_that_have_started(
    house: asyncpg.Connection, clock: Clock
) -> None:
    """One that was cancelled while it waited did not wait for nothing at all."""
    await factory.queue(house)
    worker = await factory.worker(house, lease="1 day")
    assert (await overview(house))["wait_seconds"] is None
    dropped, _ = [await factory.submit(house) for _ in range(2)]
    await house.execute("select penstock.cancel_job($1)", dropped)
    assert (await overview(house))["wait_seconds"] is None
    await clock.advance("10s")
    await factory.finish(house, worker, await factory.claim(house, worker))
    assert (await overview(house))["wait_seconds"] == 10


async def test_failed_today_begins_at_midnight(house: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(house)
    worker = await factory.worker(house, lease="10 days")
    await run(house, clock, worker, 1, "failed")
    await clock.freeze(TEN_PAST.replace(day=2, hour=0, minute=5))
    while await house.fetchval("select penstock.roll_up()"):
        pass
    ended = (await overview(house))["ended"]
    assert ended["failed_today"] == 0
    assert [bar["count"] for bar in ended["bars"]] == [1]


@pytest.mark.parametrize(
    ("hours", "step", "bars"),
    [(24, 3_600, 25), (50, 21_600, 10), (168, 21_600, 29), (720, 86_400, 31)],
)
async def test_bars_are_whole_and_the_last_one_is_running(
    house: asyncpg.Connection, hours: int, step: int, bars: int
) -> None:
    found = await overview(house, hours)
    begins = datetime.fromisoformat(found["ended"]["from"])
    assert found["ended"]["step_seconds"] == step
    assert (TEN_PAST - begins) // timedelta(seconds=step) + 1 == bars
    assert begins.timestamp() % step == 0


async def test_hours_that_make_no_sense_are_refused(house: asyncpg.Connection) -> None:
    for hours in (0, -1, 2_161, None):
        with refused(422, "invalid_filter", "hours"):
            await house.fetchval("select penstock.read_overview($1)", hours)


async def test_where_nobody_has_added_up_it_says_until_when_it_knows(
    house: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(house)
    worker = await factory.worker(house, lease="1 day")
    await run(house, clock, worker, 1)
    await clock.advance("11m")
    ended = (await overview(house))["ended"]
    assert (ended["behind"], ended["bars"]) == (True, [])
    while await house.fetchval("select penstock.roll_up()"):
        pass
    ended = (await overview(house))["ended"]
    assert (ended["behind"], len(ended["bars"])) == (False, 1)


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


async def test_workers_are_told_with_what_they_run(house: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(house)
    short, long = (
        await factory.worker(house, "short", lease="15 s"),
        await factory.worker(house, "long", lease="1 day"),
    )
    await many(house, 5)
    await factory.claim(house, short, limit=2)
    await factory.claim(house, long, limit=3)
    await clock.advance("1m")
    told = {one["worker_id"]: one for one in (await overview(house))["workers"]}
    assert (told["short"]["alive"], told["short"]["running"]) == (False, 2)
    assert (told["long"]["alive"], told["long"]["running"]) == (True, 3)


async def test_what_is_stuck_is_counted_as_on_its_own_page(
    house: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(house, stale_after_seconds=60, timeout_seconds=7_200)
    worker = await factory.worker(house, lease="15 s")
    await many(house, 3)
    await factory.claim(house, worker, limit=2)
    await clock.advance("2m")
    found = await overview(house)
    assert (found["stale"], found["recovered"]) == (2, 0)
    await factory.recover(house)
    found = await overview(house)
    assert (found["stale"], found["recovered"]) == (0, 2)
    listed = await house.fetchval("select count(*) from penstock._list_stuck(100)")
    assert listed == 2


async def test_a_receiver_that_takes_nothing_is_told(house: asyncpg.Connection) -> None:
    await house.execute(
        "insert into penstock.delivery (id, job_id, account_id, event, url, trusted, created_at,"
        " tries, next_at, host) select gen_random_uuid(), gen_random_uuid(), 0, 'job.succeeded',"
        " 'https://' || h || '/hook', false, penstock.clock(), t, penstock.clock(), h"
        " from (values ('down.example:443', 5), ('down.example:443', 3), ('slow.example:443', 1))"
        " v (h, t)"
    )
    told = (await overview(house))["failing_hosts"]
    assert [(one["host"], one["count"]) for one in told] == [("down.example:443", 2)]


@pytest.mark.timeout(600)
async def test_the_overview_reads_a_bounded_part_of_a_deep_queue(
    conn: asyncpg.Connection, scale: Scale
) -> None:
    """Of 100,000 jobs that wait (1,000,000): what is counted, and a sample."""
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
    # A thousand pages of the sample, and a few hundred for all else.
    assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 3_000
    [found] = (await overview(conn, counted=1_000))["queues"]
    assert found["about"] == ["queued"]
    assert found["jobs"]["queued"] == pytest.approx(jobs, rel=0.2)
