"""A worker starts only kinds that it has a handler for; jobs of other kinds delay nothing."""

import random
from typing import Any

import asyncpg
import pytest

from support import factory
from support.circuits import circuit, opened
from support.clock import Clock
from support.shapes import Connect


async def two_kinds(conn: asyncpg.Connection, **options: Any) -> None:
    await factory.queue(conn, **options)
    await factory.kind(conn, "gone")


async def started(conn: asyncpg.Connection, worker: int, limit: int = 100) -> list[str]:
    return [row["kind"] for row in await factory.claim(conn, worker, limit=limit)]


async def job(conn: asyncpg.Connection, number: Any) -> dict[str, Any]:
    read: dict[str, Any] = await conn.fetchval("select penstock.read_job($1)", number)
    return read


@pytest.mark.parametrize("concurrency", [1, 4, None])
async def test_jobs_of_a_removed_kind_do_not_delay_the_others(
    conn: asyncpg.Connection, concurrency: int | None
) -> None:
    """D1, M3: neither their number nor the queue's limit matters."""
    await two_kinds(conn, **({} if concurrency is None else {"concurrency": concurrency}))
    await factory.submit_rows(conn, [{"kind": "gone"}] * 40)
    known = await factory.submit_rows(conn, [{"kind": "q"}] * 5)
    worker = await factory.worker(conn, kinds=["q", "another"])
    order = []
    while rows := await factory.claim(conn, worker, limit=10):
        order += [row["id"] for row in rows]
        await factory.finish(conn, worker, rows)
    assert order == known
    assert await conn.fetchval("select count(*) from penstock.job where attempt > 0") == 0


@pytest.mark.parametrize("order", ["aging", "fair"])
async def test_lanes_of_a_removed_kind_do_not_delay_the_others(
    conn: asyncpg.Connection, order: str
) -> None:
    """D1, G6: 300 limited accounts, each with an older job that nobody has a handler for."""
    await two_kinds(conn, concurrency=4, order=order)
    await factory.plan(conn, concurrency=1)
    names = [f"a{n}" for n in range(300)]
    await factory.submit_rows(conn, [{"kind": "gone", "account": name} for name in names])
    await factory.submit_rows(conn, [{"kind": "q", "account": name} for name in names])
    worker = await factory.worker(conn, kinds=["q"])
    done = 0
    while rows := await factory.claim(conn, worker, limit=10):
        assert {row["kind"] for row in rows} == {"q"}
        done += len(rows)
        await factory.finish(conn, worker, rows)
    assert done == 300
    # The other jobs start when a worker has the handler again.
    back = await factory.worker(conn, kinds=["gone"])
    assert await started(conn, back, 4) == ["gone"] * 4


@pytest.mark.parametrize("kinds", [2, 10])
@pytest.mark.parametrize("laned", [True, False])
async def test_kinds_of_a_worker_are_started_in_one_order(
    conn: asyncpg.Connection, clock: Clock, kinds: int, laned: bool
) -> None:
    """M2: by rank, whatever the kinds are, in batches of any size; equal ranks included."""
    await clock.freeze()
    await factory.queue(conn)
    names = [await factory.kind(conn, f"k{n}") for n in range(kinds)]
    if laned:
        await factory.plan(conn, concurrency=1000)
    choice = random.Random(kinds)
    await factory.submit_rows(
        conn,
        [
            {"kind": choice.choice(names), "priority": choice.randrange(4)}
            | ({"account": f"a{choice.randrange(3)}"} if laned else {})
            for _ in range(400)
        ],
    )
    # Far more jobs of one kind than of the others, at the end: a claim needs another round.
    await factory.submit_rows(
        conn,
        [{"kind": names[0], "priority": 5} | ({"account": "a0"} if laned else {})] * 200,
    )
    wanted = await conn.fetch("select id, rank from penstock.job order by rank")
    worker = await factory.worker(conn, kinds=names)
    ranks: list[int] = []
    rank = {row["id"]: row["rank"] for row in wanted}
    for limit in (1, 7, 50, 250, 250, 250):
        rows = await factory.claim(conn, worker, limit=limit)
        assert len(rows) == min(limit, len(wanted) - len(ranks))
        batch = sorted(rank[row["id"]] for row in rows)
        ranks += batch
    assert ranks == [row["rank"] for row in wanted]


async def test_equal_ranks_of_several_kinds_are_all_started(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """Jobs that are due at the same time, submitted one by one, have the same rank."""
    await clock.freeze()
    await factory.queue(conn)
    names = [await factory.kind(conn, f"k{n}") for n in range(8)]
    for n in range(64):
        await factory.submit(conn, names[0 if n < 50 else n % 8])
    assert await conn.fetchval("select count(distinct rank) from penstock.job") == 1
    worker = await factory.worker(conn, kinds=names)
    assert len(await factory.claim(conn, worker, limit=60)) == 60
    assert len(await factory.claim(conn, worker, limit=60)) == 4


async def test_jobs_that_another_claim_has_locked_are_skipped_in_every_kind(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """M4: two claims that merge kinds start each job once, and both get the full number."""
    await factory.queue(conn)
    names = [await factory.kind(conn, f"k{n}") for n in range(3)]
    await factory.submit_rows(conn, [{"kind": names[n % 3]} for n in range(40)])
    first, second = [await factory.worker(conn, name, kinds=names) for name in ("1", "2")]
    one, other = await connect(), await connect()
    async with one.transaction():
        mine = await factory.claim(one, first, limit=15)
        theirs = await factory.claim(other, second, limit=15)
    assert len(mine) == len(theirs) == 15
    assert not {row["id"] for row in mine} & {row["id"] for row in theirs}
    rest = await factory.claim(conn, first, limit=15)
    assert len(rest) == 10


async def test_accounts_that_an_app_has_locked_are_skipped_in_every_kind(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G6: an open transaction locks more accounts than the claim asks for."""
    await factory.queue(conn)
    await factory.kind(conn, "k")
    await factory.plan(conn, concurrency=1)
    held = [f"held{n}" for n in range(9)]
    await factory.submit_rows(conn, [{"kind": "k", "account": name} for name in held])
    free = await factory.submit(conn, account="free")
    worker = await factory.worker(conn, kinds=["q", "k"])
    app = await connect()
    async with app.transaction():
        await app.execute("select from penstock.account where name like 'held%' for update")
        assert [row["id"] for row in await factory.claim(conn, worker, limit=2)] == [free]


async def test_a_claim_is_full_although_an_app_has_locked_some_of_the_first_accounts(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """G6: the claim reads beyond the locked accounts until it has the requested number."""
    await factory.queue(conn)
    await factory.kind(conn, "k")
    await factory.plan(conn, concurrency=1)
    accounts = ["locked", "a", "b", "c"]
    _, *free = [await factory.submit(conn, account=name) for name in accounts]
    worker = await factory.worker(conn, kinds=["q", "k"])
    app = await connect()
    async with app.transaction():
        await app.execute("select from penstock.account where name = 'locked' for update")
        assert [row["id"] for row in await factory.claim(conn, worker, limit=3)] == free


async def test_lanes_of_one_account_share_its_limit_and_its_virtual_time(
    conn: asyncpg.Connection,
) -> None:
    """G6: one limit over all kinds; a fair queue counts every attempt of the account."""
    await factory.queue(conn, order="fair")
    await factory.kind(conn, "k")
    await factory.plan(conn, concurrency=2)
    await factory.submit_rows(
        conn, [{"kind": kind, "account": "a"} for kind in ("q", "k") for _ in range(4)]
    )
    await factory.submit_rows(conn, [{"kind": "q", "account": "b"}] * 4)
    worker = await factory.worker(conn)
    for _ in range(2):
        rows = await factory.claim(conn, worker, limit=10)
        assert sorted(row["account"] for row in rows) == ["a", "a", "b", "b"]
        assert await conn.fetchval("select bool_or(open) from penstock.lane where waiting > 0") in (
            False,
            None,
        )
        await factory.finish(conn, worker, rows)
    heads = await conn.fetch(
        "select distinct head from penstock.lane l join penstock.account a on a.id = l.account_id"
        " where a.name = 'a' and waiting > 0"
    )
    assert len(heads) == 1


async def test_a_kind_that_moved_to_another_queue_is_still_started_in_the_old_one(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    await factory.queue(conn, "new")
    before = await factory.submit(conn)
    await conn.execute("select penstock.declare_kind('q', 'new')")
    after = await factory.submit(conn)
    worker = await factory.worker(conn, kinds=["q"])
    assert [row["id"] for row in await factory.claim(conn, worker)] == [before]
    assert [row["id"] for row in await factory.claim(conn, worker, "new")] == [after]


async def test_a_job_without_a_handler_waits_for_no_handler(conn: asyncpg.Connection) -> None:
    """D1: it has no ETA, and does not count in the positions of others."""
    await two_kinds(conn)
    gone = await factory.submit(conn, "gone")
    mine = await factory.submit(conn)
    assert (await job(conn, gone))["waiting_for"] == "no_worker"
    assert (await job(conn, mine))["position"] == 2
    worker = await factory.worker(conn, queues=["q"], kinds=["q"])
    shown = await job(conn, gone)
    assert (shown["waiting_for"], shown["eta_seconds"]) == ("no_handler", None)
    shown = await job(conn, mine)
    assert (shown["waiting_for"], shown["position"]) == (None, 1)
    submitted = await conn.fetchval("select penstock.submit_job('gone', '{}')")
    assert (submitted["waiting_for"], submitted["position"]) == ("no_handler", 3)
    [row] = [
        row["unhandled"] for row in await conn.fetch("select penstock.list_unhandled() unhandled")
    ]
    assert (row["queue"], row["kind"], row["jobs"]) == ("q", "gone", 2)
    # `paused` comes first: an operator did it.
    await conn.execute("select penstock.pause_queue('q')")
    assert (await job(conn, gone))["waiting_for"] == "paused"
    await conn.execute("select penstock.resume_queue('q')")
    # A worker for another queue does not serve this one, whatever kinds it has.
    await factory.worker(conn, queues=["other"], kinds=["gone"])
    assert (await job(conn, gone))["waiting_for"] == "no_handler"
    await conn.execute("select penstock.stop_worker($1)", worker)
    assert (await job(conn, gone))["waiting_for"] == "no_worker"
    await factory.worker(conn, queues=["q"], kinds=["gone"])
    assert (await job(conn, gone))["waiting_for"] is None


async def test_a_queue_with_only_unhandled_jobs_waits_for_no_handler(
    conn: asyncpg.Connection,
) -> None:
    await two_kinds(conn)
    await factory.submit(conn, "gone")
    await factory.worker(conn, queues=["q"], kinds=["q"])
    overview = await conn.fetchval("select penstock.read_overview()")
    assert [queue["waiting_for"] for queue in overview["queues"]] == ["no_handler"]
    [row] = overview["unhandled"]
    assert (row["queue"], row["kind"], row["jobs"], row["about"]) == ("q", "gone", 1, False)
    await factory.submit(conn)
    overview = await conn.fetchval("select penstock.read_overview()")
    assert [queue["waiting_for"] for queue in overview["queues"]] == [None]
    assert len(overview["unhandled"]) == 1


async def test_a_probe_is_a_job_whose_kind_the_worker_handles(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """F3: otherwise a circuit would stay open while the oldest jobs are of a removed kind."""
    stopped = await opened(conn, jobs=2)
    await factory.kind(conn, "gone")
    await factory.submit_rows(conn, [{"kind": "gone", "priority": -5}] * 3)
    await conn.execute("select penstock.stop_worker($1)", stopped)
    await clock.advance("2s")
    worker = await factory.worker(conn, kinds=["q"])
    [probe] = await factory.claim(conn, worker, limit=5)
    assert probe["kind"] == "q"
    assert (await circuit(conn))["probe_job"] == probe["id"]
