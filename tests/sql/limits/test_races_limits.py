"""Races around limits: none is exceeded, whatever is counted, changed or introduced meanwhile.

As in test_races.py, each test also runs on a naive variant, where the limit is exceeded.
"""

from typing import Any

import asyncpg

from support import factory
from support.interleave import Step
from support.naive_functions import both, breaches, spoil
from support.shapes import Connect


async def running(conn: asyncpg.Connection) -> int:
    count: int = await conn.fetchval("select count(*) from penstock.job where status = 'running'")
    return count


async def set_plan(conn: asyncpg.Connection, account: str, **options: Any) -> None:
    """Give an account without a plan one with these options."""
    await factory.plan(conn, "limited", default=False, **options)
    await conn.execute("select penstock.set_account_plan($1, 'limited')", account)


@both
async def test_two_claims_at_once_keep_the_limit_of_their_queue(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """M3: count(*) < limit is no limit: neither of two claims sees what the other has started."""
    if naive:
        await spoil(
            conn,
            "claim.sql:_pass_gate",
            ("g.queue_id = p_queue.id for no key update", "g.queue_id = p_queue.id"),
            (
                "p_queue.concurrency - v_gate.running",
                """p_queue.concurrency - (select count(*) from penstock.job j
                   where j.queue_id = p_queue.id and j.status = 'running')::integer""",
            ),
        )
    await factory.queue(conn, concurrency=1)
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    one, other = await connect(), await connect()
    async with one.transaction():
        assert len(await factory.claim(one, worker)) == 1
        second = Step(other, factory.claim(other, worker))
        assert await second.waits(conn) is True  # naive: for the counter, after it has chosen
    assert len(await second) == (1 if naive else 0)
    assert await running(conn) == (2 if naive else 1)


@both
async def test_two_claims_at_once_keep_the_limit_of_an_account(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G6: enforced when jobs start, over all queues."""
    if naive:  # counts instead of locking; the rest is as it was
        await spoil(
            conn,
            "choose.sql:_hold_accounts",
            (
                "f.head, a.running, a.concurrency",
                """f.head, (select count(*) from penstock.job j
                   where j.account_id = a.id and j.status = 'running')::integer as running,
                   a.concurrency""",
            ),
            ("for no key update of a skip locked", ""),
        )
    await factory.queue(conn)
    await factory.queue(conn, "other")
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    for kind in ("q", "other"):
        await factory.submit(conn, kind, account="a")
    one, other = await connect(), await connect()
    async with one.transaction():
        assert len(await factory.claim(one, worker)) == 1
        second = Step(other, factory.claim(other, worker, "other"))
        assert await second.waits(conn) is naive
    assert len(await second) == (1 if naive else 0)
    assert await running(conn) == (2 if naive else 1)


@both
async def test_a_first_limit_of_a_queue_counts_the_claims_under_way(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """M3"""
    if naive:  # does not wait for them, so what they start is never counted
        await spoil(
            conn,
            "declare.sql:_lock_queue_limits",
            ("pg_advisory_xact_lock(1886413171, p_queue)", ""),
        )
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 5)
    claimer, operator = await connect(), await connect()
    async with claimer.transaction():
        started = await factory.claim(claimer, worker, limit=2)
        edit = Step(
            operator, operator.execute("select penstock.edit_queue('q', '{\"concurrency\": 2}')")
        )
        assert await edit.waits(conn) is not naive
    await edit
    assert len(await factory.claim(conn, worker, limit=5)) == (2 if naive else 0)
    assert await conn.fetchval("select running from penstock.gate") == 2
    if not naive:
        await factory.finish(conn, worker, started)
        assert len(await factory.claim(conn, worker, limit=5)) == 2


@both
async def test_a_claim_puts_a_job_submitted_before_its_accounts_limit_into_a_lane(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G6"""
    if naive:  # treats jobs in no lane as free of limits
        await spoil(conn, "claim.sql:claim_jobs", ("exit when v_owners is null", "exit"))
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn, account="a")
    app = await connect()
    async with app.transaction():
        await factory.submit_rows(app, [{"kind": "q", "account": "a"}] * 2)
        await set_plan(conn, "a", concurrency=1)
    assert len(await factory.claim(conn, worker, limit=5)) == (3 if naive else 1)
    assert bool(await breaches(conn)) is naive
    if not naive:
        assert await breaches(conn) == set()


@both
async def test_a_stray_job_of_a_locked_account_blocks_no_other_job(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G6: while an app's transaction holds its account, it can neither start nor join its lane."""
    if naive:  # starts it nevertheless
        await spoil(
            conn,
            "choose.sql:_hold_plain",
            ("and j.account_id <> all (p_strays)", ""),
        )
        await spoil(conn, "claim.sql:claim_jobs", ("v_jobs := null;", ""))
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn, account="a")
    assert len(await factory.claim(conn, worker)) == 1
    app = await connect()
    async with app.transaction():
        stray = await factory.submit(app, account="a")
        await set_plan(conn, "a", concurrency=1)
    behind = await factory.submit(conn)
    async with app.transaction():
        await factory.submit(app, account="a")
        claimed = [row["id"] for row in await factory.claim(conn, worker)]
        assert claimed == [stray if naive else behind]


@both
async def test_a_first_limit_of_an_account_counts_the_claims_under_way(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G6"""
    if naive:  # lets claims go on while it counts
        await spoil(
            conn,
            "accounts.sql:_stop_claims",
            ("perform penstock._lock_queue_limits(q.id)", "perform q.id"),
        )
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn, account="a")
    claimer, operator = await connect(), await connect()
    async with claimer.transaction():
        assert len(await factory.claim(claimer, worker)) == 1
        change = Step(operator, set_plan(operator, "a", concurrency=1))
        assert await change.waits(conn) is not naive
    await change
    await factory.submit(conn, account="a")
    await factory.claim(conn, worker, limit=5)
    assert await running(conn) == (2 if naive else 1)


@both
async def test_a_submit_that_read_its_account_before_the_limit_does_not_open_the_lane(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """G6: it has no lock on that account, so a concurrent finish could leave the lane closed."""
    if naive:
        await spoil(conn, "submit.sql:_submit_jobs", ("if v_strays is not null", "if false"))
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn, account="a")
    await factory.submit(conn, account="held")
    await set_plan(conn, "held", concurrency=1)
    [started] = await factory.claim(conn, worker)
    app, submitter, finisher = [await connect() for _ in range(3)]
    async with finisher.transaction():
        async with app.transaction():
            await factory.submit(app, account="held")
            both_accounts = [{"kind": "q", "account": name} for name in ("a", "held")]
            submit = Step(submitter, factory.submit_rows(submitter, both_accounts))
            assert await submit.waits(conn)  # it has read that "a" has no limit
            await conn.execute("select penstock.set_account_plan('a', 'limited')")
            await factory.finish(finisher, worker, [started])
        job, _ = await submit
    assert bool(await breaches(conn)) is naive
    claimed = {row["id"] for row in await factory.claim(conn, worker, limit=5)}
    assert (job in claimed) is not naive


@both
async def test_an_attempt_older_than_its_accounts_limit_settles_like_any_other(
    conn: asyncpg.Connection, naive: bool
) -> None:
    """Its worker was given no slot, and names none; the limit has counted it since."""
    if naive:
        await spoil(conn, "finish.sql:_settle_jobs", ("if p_accounts is not null", "if false"))
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit(conn, account="a")
    [started] = await factory.claim(conn, worker)
    assert started["slot_account"] is None
    await set_plan(conn, "a", concurrency=1)
    verdict = await conn.fetchval(
        "select verdict from penstock.finish_jobs($1, array[$2::uuid], array[1],"
        " array['succeeded'], p_accounts => '{}')",
        worker,
        started["id"],
    )
    assert verdict == ("locked" if naive else "done")
    assert await conn.fetchval("select running from penstock.account where name = 'a'") == naive
