"""Offers: a worker that runs nothing gets the next job from its submit, and nobody is overtaken."""

import json
from typing import Any

import asyncpg
import pytest

import factory
from clock import Clock
from interleave import Step
from shapes import Connect

WORD = "w" * 9_000


@pytest.fixture
async def worker(conn: asyncpg.Connection, connect: Connect) -> int:
    """One that lives, and offers to start jobs of a queue."""
    await factory.queue(conn)
    number = await factory.worker(conn, lease="1 day")
    await (await connect()).execute("select penstock.lock_worker($1)", number)
    await factory.offer(conn, number)
    return number


async def row(conn: asyncpg.Connection, job: Any) -> dict[str, Any]:
    [found] = await conn.fetch("select * from penstock.job where id = $1", job)
    return dict(found)


async def test_it_starts_as_a_claim_would_have_started_it(
    conn: asyncpg.Connection, worker: int
) -> None:
    """What counts and what ends it is the same: attempt, worker, deadline, version."""
    fields = {"topic": "t", "priority": 7, "max_attempts": 9, "metadata": {"a": 1}}
    given = await factory.submit_to_offers(conn, {"n": 1}, **fields)
    assert (given["status"], given["place"], given["eta_seconds"]) == ("running", 1, 0)
    queued = await factory.submit_to_offers(conn, {"n": 1}, **fields)
    assert queued["status"] == "queued"
    await factory.claim(conn, worker)
    ours, claimed = [await row(conn, one["id"]) for one in (given, queued)]
    began, lasted = {}, {}
    for one in (ours, claimed):
        for name in ("id", "rank", "created_at", "run_at"):
            one.pop(name)
        began[one["started_at"]] = one.pop("updated_at")
        started = one.pop("started_at")
        lasted[started] = one.pop("timeout_at") - started, one.pop("deadline_at") - started
    assert ours == claimed
    assert all(begun == updated for begun, updated in began.items())
    assert len(set(lasted.values())) == 1
    [started] = await conn.fetch("select id, attempt from penstock.job where id = $1", given["id"])
    [ended] = await factory.finish(conn, worker, [started])
    assert ended["verdict"] == "done"


async def test_the_worker_hears_of_it_and_nobody_else(
    conn: asyncpg.Connection, connect: Connect, worker: int
) -> None:
    heard: dict[str, list[str]] = {"ours": [], "penstock_job": []}
    ear = await connect()
    for channel in heard:
        await ear.add_listener(channel, lambda _c, _p, name, told: heard[name].append(told))
    job = await factory.submit_to_offers(conn, {"ratio": 0.1, "big": 12345678901234567890})
    await ear.execute("select 1")
    [told] = heard["ours"]
    start = json.loads(told)
    assert heard["penstock_job"] == []
    assert start["payload"] == {"ratio": 0.1, "big": 12345678901234567890}
    assert (start["worker"], start["id"], start["attempt"]) == (worker, str(job["id"]), 1)
    # Told again instead of a new offer, while it runs: it may not have been heard.
    assert [await factory.offer(conn, worker) for _ in range(2)] == [start, start]
    await factory.finish(conn, worker, await conn.fetch("select id, attempt from penstock.job"))
    assert await factory.offer(conn, worker) is None


async def test_what_is_too_long_to_be_told_is_asked_for(
    conn: asyncpg.Connection, connect: Connect, worker: int
) -> None:
    heard: list[str] = []
    ear = await connect()
    await ear.add_listener("ours", lambda *told: heard.append(told[-1]))
    await factory.submit_to_offers(conn, {"word": WORD})
    await ear.execute("select 1")
    assert heard == [""]
    assert (await factory.offer(conn, worker))["payload"] == {"word": WORD}


async def test_an_offer_can_be_taken_back(conn: asyncpg.Connection, worker: int) -> None:
    assert await factory.offer(conn, worker, channel=None) is None
    assert (await factory.submit_to_offers(conn))["status"] == "queued"


async def test_what_came_before_it_was_taken_back_is_told(
    conn: asyncpg.Connection, worker: int
) -> None:
    job = await factory.submit_to_offers(conn)
    assert (await factory.offer(conn, worker, channel=None))["id"] == str(job["id"])
    assert (await factory.submit_to_offers(conn))["status"] == "queued"


async def test_of_two_submits_at_once_one_takes_it_and_neither_waits(
    conn: asyncpg.Connection, connect: Connect, worker: int
) -> None:
    first, second = await connect(), await connect()
    async with first.transaction():
        assert (await factory.submit_to_offers(first))["status"] == "running"
        other = Step(second, factory.submit_to_offers(second))
        assert not await other.waits(conn)
        assert (await other)["status"] == "queued"
        # Nor does the worker, who may not know whether it is being taken.
        renewal = Step(conn, factory.offer(conn, worker))
        assert await renewal is False
        back = Step(conn, factory.offer(conn, worker, channel=None))
        assert await back is False


@pytest.mark.usefixtures("worker")
async def test_a_submit_that_is_rolled_back_leaves_it(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    other = await connect()
    change = other.transaction()
    await change.start()
    assert (await factory.submit_to_offers(other))["status"] == "running"
    await change.rollback()
    assert (await factory.submit_to_offers(conn))["status"] == "running"


async def test_a_claim_does_not_wait_for_a_submit_that_takes_the_offer(
    conn: asyncpg.Connection, connect: Connect, worker: int
) -> None:
    other = await connect()
    async with other.transaction():
        await factory.submit_to_offers(other)
        await factory.submit(conn)
        claim = Step(
            conn,
            conn.fetch("select from penstock.claim_jobs($1, 'q', 1, p_offered => true)", worker),
        )
        assert len(await claim) == 1
    assert (await factory.offer(conn, worker))["kind"] == "q", "the one that was given is told"


@pytest.mark.usefixtures("worker")
async def test_a_repeated_submit_gets_the_job_that_was_given(conn: asyncpg.Connection) -> None:
    first = await factory.submit_to_offers(conn, key="k")
    again = await factory.submit_to_offers(conn, key="k")
    assert (again["id"], again["status"], again["replayed"]) == (first["id"], "running", True)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    "fields",
    [{"account": "a"}, {"dedupe_key": "d"}, {"delay": "1h"}],
    ids=lambda said: next(iter(said)),
)
async def test_what_is_not_plain_or_not_due_waits(
    conn: asyncpg.Connection, fields: dict[str, Any]
) -> None:
    """Whoever has a limit, a twin or a later moment goes the way that looks at it."""
    if "delay" in fields:
        status = await conn.fetchval(
            "select status::text from penstock.submit_one('q', '{}', p_delay => interval '1 hour',"
            " p_offers => true)"
        )
        assert status == "scheduled"
    else:
        assert (await factory.submit_to_offers(conn, **fields))["status"] == "queued"


async def test_only_who_serves_the_queue_gets_its_job(
    conn: asyncpg.Connection, worker: int
) -> None:
    await factory.queue(conn, "other")
    await factory.offer(conn, worker, channel=None)
    await factory.offer(conn, worker, ["other"])
    assert (await factory.submit_to_offers(conn))["status"] == "queued"


@pytest.mark.usefixtures("worker")
async def test_without_being_asked_a_submit_takes_no_offer(conn: asyncpg.Connection) -> None:
    """As in a transaction of the caller's: it may take its time, and the start's would run."""
    await conn.execute("select penstock.submit_one('q', '{}', p_wake => 'q')")
    assert await conn.fetchval("select status::text from penstock.job") == "queued"


@pytest.mark.usefixtures("worker")
async def test_a_dead_workers_job_is_not_charged_for_it(conn: asyncpg.Connection) -> None:
    """Given in the moment in which it died, the job runs elsewhere."""
    job = (await factory.submit_to_offers(conn))["id"]
    await conn.execute("update penstock.worker set lost_at = penstock.clock()")
    await factory.recover(conn)
    other = await factory.worker(conn)
    [again] = await factory.claim(conn, other)
    assert (again["id"], again["attempt"], again["failures"]) == (job, 2, 0)


@pytest.mark.usefixtures("worker")
async def test_old_offers_are_swept_away(conn: asyncpg.Connection, clock: Clock) -> None:
    await clock.advance("2h")
    await factory.prune(conn)
    assert await conn.fetchval("select count(*) from penstock.offer") == 0


@pytest.mark.usefixtures("worker")
async def test_that_nobody_waits_is_seen_without_reading_all_who_wait_elsewhere(
    conn: asyncpg.Connection,
) -> None:
    """In a fresh session and with fresh statistics, where reading everything seems cheap."""
    await factory.queue(conn, "deep")
    await factory.submit_rows(conn, [{"kind": "deep"}] * 5_000)
    await factory.submit_rows(conn, [{"kind": "deep", "delay_seconds": 3_600}] * 5_000)
    await conn.execute("vacuum analyze penstock.job")
    before = await _whole_reads(conn)
    for _ in range(10):
        await conn.execute("update penstock.offer set job_id = null, offered_at = penstock.clock()")
        assert (await factory.submit_to_offers(conn))["status"] == "running"
    assert await _whole_reads(conn) == before


async def _whole_reads(conn: asyncpg.Connection) -> int:
    await conn.execute("select pg_stat_force_next_flush()")
    await conn.execute("select pg_stat_clear_snapshot()")
    reads: int = await conn.fetchval(
        "select seq_scan from pg_stat_all_tables where relid = 'penstock.job'::regclass"
    )
    return reads


@pytest.mark.usefixtures("worker")
async def test_a_submit_that_waits_for_an_account_keeps_nobody_from_a_limit(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """In a fair queue everybody has a lane, nobody too; an app's open transaction may hold it."""
    await factory.queue(conn, "fair", order="fair")
    app, other = await connect(), await connect()
    async with app.transaction():
        await app.execute("select penstock.submit_one('fair', '{}')")
        waits = Step(
            other, other.execute("select penstock.submit_one('fair', '{}', p_offers => true)")
        )
        assert await waits.waits(conn)
        await conn.execute("select penstock.edit_queue('fair', '{\"concurrency\": 2}')")
    await waits
