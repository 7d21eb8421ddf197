"""The position of a job equals the order of claims, near the head and deep in the queue."""

import asyncio
import random
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.shapes import Connect

LONG_LEASE = "100 days"


async def position(conn: asyncpg.Connection, job: UUID) -> int | None:
    found: int | None = (await factory.read(conn, job))["position"]
    return found


async def positions(conn: asyncpg.Connection) -> dict[UUID, int]:
    rows = await conn.fetch(
        "select id, (penstock.read_job(id) ->> 'position')::integer as position from penstock.job"
        " where status = 'queued'"
    )
    return {row["id"]: row["position"] for row in rows}


async def counted(conn: asyncpg.Connection, job: UUID) -> int:
    """Count the jobs ahead of it by the definition of the contract, plus one."""
    n: int = await conn.fetchval(
        "select count(*) + 1 from penstock.job j, penstock.job me"
        " where me.id = $1 and j.queue_id = me.queue_id and j.status = 'queued'"
        " and (j.rank < me.rank or (j.rank = me.rank and j.id < me.id))"
        " and (j.lane in (-1, me.lane) or exists (select from penstock.lane o"
        "   where o.queue_id = j.queue_id and o.account_id = j.lane and o.open))",
        job,
    )
    return n


async def fill(conn: asyncpg.Connection, many: int, *accounts: str, kind: str = "q") -> None:
    """Submit that many jobs, of these accounts in turn."""
    names = [accounts[n % len(accounts)] for n in range(many)] if accounts else None
    await conn.execute(
        "select count(*) from penstock.submit_many($1, $2, $3)", [kind] * many, [{}] * many, names
    )


async def some(conn: asyncpg.Connection, many: int = 12) -> list[UUID]:
    rows = await conn.fetch(
        "select id from penstock.job where status = 'queued' order by random() limit $1", many
    )
    return [row["id"] for row in rows]


async def measure(conn: asyncpg.Connection) -> bool:
    measured: bool = await conn.fetchval("select penstock.measure_waits('0')")
    return measured


@pytest.mark.parametrize("order", ["aging", "strict"])
async def test_jobs_start_in_the_order_of_their_positions(
    conn: asyncpg.Connection, order: str
) -> None:
    """F2"""
    chance = random.Random(7)
    await factory.queue(conn, order=order)
    await factory.plan(conn, concurrency=100)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    for n in range(40):
        account = chance.choice([None, "a", "b", "c"])
        await factory.submit(conn, account=account, priority=chance.choice([0, 0, 5, -3, n]))
    expected = await positions(conn)
    assert sorted(expected.values()) == list(range(1, 41))
    started = [(await factory.claim(conn, worker))[0]["id"] for _ in range(40)]
    assert started == sorted(expected, key=lambda job: expected[job])


async def test_in_a_fair_queue_expecteddepend_on_lanes_and_weights(
    conn: asyncpg.Connection,
) -> None:
    """F2: jobs of a tenant with many jobs are behind those of one with few, and weights count."""
    await factory.queue(conn, order="fair")
    await factory.plan(conn, weight=1)
    await factory.plan(conn, "heavy", weight=3, default=False)
    await conn.execute("select penstock.create_account('h', 'heavy')")
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await fill(conn, 30, "big")
    await fill(conn, 5, "small")
    await fill(conn, 12, "h")
    await factory.submit(conn, account="small", priority=-5)
    for left in range(48, 0, -1):
        expected = await positions(conn)
        # Two lanes with the same virtual time are both next, and the claim takes either.
        assert len(expected) == left
        assert all(abs(n - at) <= 2 for n, at in enumerate(sorted(expected.values()), start=1))
        [row] = await factory.claim(conn, worker)
        assert expected[row["id"]] <= 3, sorted(expected.values())


async def test_in_a_fair_queue_expectedpredict_the_whole_order(conn: asyncpg.Connection) -> None:
    """F2"""
    await factory.queue(conn, order="fair")
    await factory.plan(conn, weight=1)
    await factory.plan(conn, "heavy", weight=7, default=False)
    await conn.execute("select penstock.create_account('h', 'heavy')")
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await fill(conn, 60, "big", "h", "small")
    expected = await positions(conn)
    lanes = 3
    for at in range(1, 61):
        [row] = await factory.claim(conn, worker)
        assert abs(expected[row["id"]] - at) < lanes


async def test_of_jobs_in_closed_lanes_only_those_of_the_own_account_are_ahead(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await fill(conn, 10, "big")
    await factory.claim(conn, worker)  # its only slot: the lane is closed
    mine = await factory.submit(conn, account="small")
    without_account = await factory.submit(conn)
    last_of_big = await factory.submit(conn, account="big")
    assert await position(conn, mine) == 1
    assert await position(conn, without_account) == 2
    assert await position(conn, last_of_big) == 12


async def test_in_a_fair_queue_jobs_of_a_closed_lane_are_not_ahead_either(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn, order="fair")
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await fill(conn, 10, "big")
    await factory.claim(conn, worker)
    first = await factory.submit(conn, account="small")
    second = await factory.submit(conn, account="small")
    last_of_big = await factory.submit(conn, account="big")
    assert [await position(conn, job) for job in (first, second)] == [1, 2]
    assert await position(conn, last_of_big) == 12


async def test_equal_ranks_are_ordered_by_id(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 5)
    await conn.execute("update penstock.job set rank = 7")
    assert [await position(conn, job) for job in sorted(jobs)] == [1, 2, 3, 4, 5]


async def test_only_waiting_jobs_have_a_position(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await factory.submit(conn)
    delayed = await factory.submit(conn, delay_seconds=60)
    assert await position(conn, delayed) is None, "its caller delayed it"
    [row] = await factory.claim(conn, worker)
    assert await position(conn, row["id"]) is None, "it runs"
    await factory.finish(conn, worker, [row], "snoozed", delay="1 minute")
    assert await position(conn, row["id"]) is None, "its handler asked for the delay"
    await clock.advance("2m")
    rows = await factory.claim(conn, worker, limit=2)
    await factory.finish(conn, worker, rows)
    assert [await position(conn, row["id"]) for row in rows] == [None, None], "they are finished"


async def test_a_job_that_backs_off_keeps_its_position(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """F12: with its old rank, as if it were queued; the positions of others do not count it."""
    await factory.queue(conn)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 4)
    started = await factory.claim(conn, worker, limit=2)
    await factory.finish(conn, worker, started, "retry", delay="5 minutes")
    assert [await position(conn, job) for job in jobs] == [1, 1, 1, 2]
    await clock.advance("6m")
    await conn.execute("select penstock.stage_due_jobs(id) from penstock.queue")
    assert [await position(conn, job) for job in jobs] == [1, 2, 3, 4]


async def test_positions_never_rise_while_fifty_jobs_are_served_in_order(connect: Connect) -> None:
    """F2, F12: read during concurrent claims and finishes; never an error, never 0."""
    conn = await connect()
    await factory.queue(conn, concurrency=1)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    submitters = await asyncio.gather(*(connect() for _ in range(10)))
    jobs: list[UUID] = []
    over, reads = asyncio.Event(), asyncio.Semaphore(0)

    async def submit(on: asyncpg.Connection) -> None:
        jobs.extend([await factory.submit(on) for _ in range(5)])

    async def serve() -> None:
        on = await connect()
        while started := await factory.claim(on, worker):
            for _ in range(10):  # meanwhile the readers continue
                await reads.acquire()
            await factory.finish(on, worker, started)
        over.set()

    async def watch(seen: dict[UUID, list[int]]) -> None:
        on = await connect()
        while not over.is_set():
            for job in jobs:
                at = await position(on, job)
                reads.release()
                if at is not None:
                    seen.setdefault(job, []).append(at)

    await asyncio.gather(*map(submit, submitters))
    seen: list[dict[UUID, list[int]]] = [{}, {}]
    watching = [asyncio.create_task(watch(one)) for one in seen]
    await asyncio.gather(serve(), *watching)
    series = [values for one in seen for values in one.values()]
    assert sum(map(len, series)) > 100
    for row in series:
        assert row == sorted(row, reverse=True)
        assert row[-1] >= 1


async def test_readers_beside_claims_finishes_and_submits_see_valid_values(
    connect: Connect,
) -> None:
    conn = await connect()
    await factory.queue(conn, concurrency=4)
    await factory.plan(conn, concurrency=2)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await fill(conn, 3_000, "a", "b", "c", "d")
    over = asyncio.Event()

    async def work() -> None:
        on = await connect()
        for _ in range(150):
            started = await factory.claim(on, worker, limit=4)
            await factory.finish(on, worker, started, "succeeded")
            await fill(on, 2, "a", "e")
        over.set()

    async def read_all() -> int:
        on, n = await connect(), 0
        while not over.is_set():
            for job in await some(on, 5):
                shown = await factory.read(on, job)
                assert (shown["position"] or 1) >= 1
                assert (shown["eta_seconds"] or 0) >= 0
                n += 1
            await measure(on)
        return n

    _, *read = await asyncio.gather(work(), read_all(), read_all())
    assert sum(read) > 20


@pytest.mark.parametrize("accounts", [[], ["a", "b", "c"]])
async def test_deep_in_a_queue_the_position_comes_from_the_snapshot(
    conn: asyncpg.Connection, clock: Clock, accounts: list[str]
) -> None:
    """F2: exact if no jobs were added or left between the slices."""
    await factory.queue(conn)
    await factory.plan(conn, concurrency=10_000)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await fill(conn, 6_500, *accounts)
    assert await measure(conn)
    assert await conn.fetchval("select cardinality(ranks) from penstock.snapshot where lane = -2")
    for job in await some(conn):
        assert await position(conn, job) == await counted(conn, job)
    # Jobs that were claimed since, and jobs that were submitted since, in front and at the end.
    for _ in range(3):
        await factory.claim(conn, worker, limit=450)
    await clock.advance("1s", beats=True)
    await factory.submit_rows(conn, [{"kind": "q", "priority": -900}] * 20)
    await fill(conn, 700, *accounts)
    for job in await some(conn, 20):
        at, truly = await position(conn, job), await counted(conn, job)
        assert at is not None
        # New jobs in front hide how many were claimed, until the next snapshot.
        assert truly <= at <= truly + 1_350
    await factory.claim(conn, worker, limit=20)
    for job in await some(conn, 20):
        assert await position(conn, job) == await counted(conn, job)


async def test_deep_positions_are_right_without_measurements(conn: asyncpg.Connection) -> None:
    """No worker has run yet."""
    await factory.queue(conn)
    await fill(conn, 3_000)
    for job in await some(conn, 6):
        assert await position(conn, job) == await counted(conn, job)


async def test_the_snapshot_is_used_for_deep_positions(
    conn: asyncpg.Connection,
) -> None:
    """To show that: jobs that are deleted between two slices are still counted."""
    await factory.queue(conn)
    await fill(conn, 5_500)
    await measure(conn)
    last = await conn.fetchval("select id from penstock.job order by rank desc limit 1")
    gone = await conn.execute(
        "delete from penstock.job where id in"
        " (select id from penstock.job order by rank offset 2500 limit 50)"
    )
    assert gone == "DELETE 50"
    assert await position(conn, last) == 5_500
    await measure(conn)
    assert await position(conn, last) == 5_500, "a snapshot is taken every two seconds at most"
    await conn.execute("update penstock.flow set snapshot_due_at = '-infinity'")
    await measure(conn)
    assert await position(conn, last) == 5_450


async def test_jobs_submitted_at_the_end_are_added_to_the_snapshot(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    await fill(conn, 3_100)
    await measure(conn)
    due = await conn.fetchval("select snapshot_due_at from penstock.flow")
    await fill(conn, 2_150)
    await measure(conn)
    assert await conn.fetchval("select snapshot_due_at from penstock.flow") == due
    assert await conn.fetchval("select cardinality(ranks) from penstock.snapshot") == 5_250 // 250
    for job in await some(conn, 20):
        assert await position(conn, job) == await counted(conn, job)


async def test_a_deep_closed_lane_has_a_snapshot_of_its_own(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await fill(conn, 4_500, "big")
    await factory.claim(conn, worker)
    await fill(conn, 3_100, "small", "tiny")
    await clock.advance("1s", beats=True)
    last = await factory.submit(conn, account="big")
    await measure(conn)
    assert await position(conn, last) == await counted(conn, last) == 4_499 + 3_100 + 1
    for job in await some(conn, 20):
        assert await position(conn, job) == await counted(conn, job)


async def test_a_deep_lane_of_a_fair_queue_has_a_snapshot_too(conn: asyncpg.Connection) -> None:
    await factory.queue(conn, order="fair")
    await factory.plan(conn, weight=1)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await fill(conn, 4_500, "big")
    await fill(conn, 10, "small")
    await measure(conn)
    await factory.claim(conn, worker, limit=300)
    deep = await conn.fetchval(
        "select id from penstock.job where status = 'queued' and lane ="
        " (select id from penstock.account where name = 'big') order by rank desc limit 1"
    )
    assert await position(conn, deep) == await conn.fetchval(
        "select count(*) from penstock.job where status = 'queued'"
    )


async def test_among_hundreds_of_lanes_a_deep_position_is_exact_to_a_slice(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=3)
    worker = await factory.worker(conn, lease=LONG_LEASE)
    await fill(conn, 9_000, *(f"a{n}" for n in range(300)))
    await measure(conn)
    await factory.claim(conn, worker, limit=200)
    for job in await some(conn):
        at, truly = await position(conn, job), await counted(conn, job)
        assert at is not None
        assert abs(at - truly) <= 250, (at, truly)


async def test_a_queue_that_is_no_longer_deep_has_no_snapshot(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await fill(conn, 3_000)
    await measure(conn)
    assert await conn.fetchval("select count(*) from penstock.snapshot") == 1
    await conn.execute(
        "delete from penstock.job where id in (select id from penstock.job limit 2960)"
    )
    await measure(conn)
    assert await conn.fetchval("select count(*) from penstock.snapshot") == 0


async def test_a_submit_returns_the_position_if_that_is_cheap(conn: asyncpg.Connection) -> None:
    """G9: exact near the head, by the snapshot deep in the queue, and not at all without one."""
    await factory.queue(conn)

    async def submitted_position() -> Any:
        return await conn.fetchval("select penstock.submit_job('q', '{}') -> 'position'")

    assert [await submitted_position() for _ in range(3)] == [1, 2, 3]
    await fill(conn, 40)
    assert await submitted_position() == 44
    await fill(conn, 156)
    assert await submitted_position() is None
    await measure(conn)
    assert await submitted_position() == 202
    await fill(conn, 3_000)
    await measure(conn)
    assert await submitted_position() == 3_203
    await fill(conn, 30_000)
    await measure(conn)
    assert abs(await submitted_position() - 33_204) <= 332


async def test_a_submit_of_many_jobs_returns_no_positions(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    rows = await conn.fetch(
        "select penstock.submit_jobs($1) as job", [{"kind": "q", "payload": {}}]
    )
    assert rows[0]["job"]["position"] is None


async def test_only_one_of_many_workers_measures(connect: Connect, clock: Clock) -> None:
    one, other = await connect(), await connect()
    ask = "select penstock.measure_waits()"
    assert [await one.fetchval(ask), await other.fetchval(ask)] == [True, False]
    await clock.advance("3s")
    async with one.transaction():
        assert await one.fetchval(ask)
        assert not await other.fetchval("select penstock.measure_waits('0')"), (
            "another one is measuring"
        )
