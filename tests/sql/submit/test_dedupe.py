"""One live job per dedupe key, and one answer per idempotency key, however many callers race."""

import asyncio
import random
import time
from collections import Counter
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.factory import Row, refused
from support.interleave import Step
from support.naive_functions import both, spoil
from support.shapes import Connect

CALLERS = 200
REPEATERS = 100
KEYS = [f"k{n:02}" for n in range(20)]


async def open_many(connect: Connect, n: int) -> list[asyncpg.Connection]:
    return list(await asyncio.gather(*(connect() for _ in range(n))))


async def accept(conn: asyncpg.Connection, jobs: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """(id, deduplicated) of each job, in order."""
    rows = await conn.fetch(
        "select job from penstock.submit_jobs($1) with ordinality s (job, n) order by n",
        [{"kind": "q", "payload": {}} | job for job in jobs],
    )
    return [(row["job"]["id"], row["job"]["deduplicated"]) for row in rows]


def keyed(keys: list[str]) -> list[dict[str, Any]]:
    return [{"dedupe_key": key} for key in keys]


@pytest.mark.parametrize("account", [None, "limited"])
async def test_of_200_submits_with_one_key_half_rolled_back_one_live_job_is_left(
    conn: asyncpg.Connection, connect: Connect, account: str | None
) -> None:
    """M9: every caller that committed has its id, even if the transaction that won rolled back."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    commits = [True, False] * (CALLERS // 2)
    chance.shuffle(commits)
    commits[0] = False  # the first waits until the others have arrived, and rolls back
    callers = await open_many(connect, CALLERS)

    async def call(caller: asyncpg.Connection, commit: bool) -> str | None:
        transaction = caller.transaction()
        await transaction.start()
        [(job, _)] = await accept(caller, [{"dedupe_key": "k", "account": account}])
        await (transaction.commit() if commit else transaction.rollback())
        return job if commit else None

    first = callers[0].transaction()
    await first.start()
    await accept(callers[0], [{"dedupe_key": "k", "account": account}])
    calls = [
        Step(caller, call(caller, commit))
        for caller, commit in zip(callers[1:], commits[1:], strict=True)
    ]
    assert await calls[-1].waits(conn)
    await first.rollback()
    returned = {job for job in [await step for step in calls] if job is not None}
    live = [str(row["id"]) for row in await conn.fetch("select id from penstock.job")]
    assert len(live) == 1
    assert returned == set(live)


@both
async def test_two_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """M9"""
    if naive:  # inserts in the order of the batch
        await spoil(
            conn,
            "insert.sql:_insert_jobs",
            (
                "order by k.kind_id, coalesce(x.account_id, 0), x.dedupe_key, x.ordinal",
                "order by x.ordinal",
            ),
        )
    await factory.queue(conn)
    app, one, other = await open_many(connect, 3)
    middle = app.transaction()
    await middle.start()
    await accept(app, keyed([KEYS[10]]))
    steps = [
        Step(one, accept(one, keyed(KEYS))),
        Step(other, accept(other, keyed(KEYS[::-1]))),
    ]
    assert [await step.waits(conn) for step in steps] == [True, True]
    await middle.rollback()
    if naive:
        with pytest.raises(asyncpg.DeadlockDetectedError):
            await asyncio.gather(*steps)
    else:
        forward, backward = await asyncio.gather(*steps)
        assert forward == [(job, not twin) for job, twin in backward[::-1]]


async def test_twins_inside_a_batch_and_outside_of_it_become_one_job(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """M9"""
    await factory.queue(conn)
    live = str(await factory.submit(conn, dedupe_key="live"))
    app, other = await open_many(connect, 2)
    batch = [*keyed(["twice", "live", "open"]), {}, *keyed(["twice", "open"]), {}]
    async with app.transaction():
        [(outside, _)] = await accept(app, keyed(["open"]))
        submit = Step(other, accept(other, batch))
        assert await submit.waits(conn)
    answers = await submit
    twice = answers[0][0]
    assert [twin for _, twin in answers] == [False, True, True, False, True, True, False]
    assert [answers[n][0] for n in (1, 2, 4, 5)] == [live, outside, twice, outside]
    assert len({job for job, _ in answers}) == 5


@pytest.mark.parametrize("commits", [True, False])
async def test_a_submit_waits_for_a_twin_that_is_about_to_finish(
    conn: asyncpg.Connection, connect: Connect, commits: bool
) -> None:
    """M9: it gets that job if it stays live, and a new one if not."""
    await factory.queue(conn)
    worker = await factory.worker(conn)
    twin = await factory.submit(conn, dedupe_key="k")
    started = await factory.claim(conn, worker)
    finisher, submitter = await open_many(connect, 2)
    finishing = finisher.transaction()
    await finishing.start()
    await factory.finish(finisher, worker, started)
    submit = Step(submitter, accept(submitter, keyed(["k"])))
    assert await submit.waits(conn)
    await (finishing.commit() if commits else finishing.rollback())
    [(job, deduplicated)] = await submit
    assert (job == str(twin), deduplicated) == (not commits, not commits)


@both
async def test_a_twin_that_finishes_between_insert_and_read_leaves_room_for_a_new_job(
    conn: asyncpg.Connection, connect: Connect, naive: bool
) -> None:
    """M9"""
    if naive:  # tries once
        await spoil(
            conn, "submit.sql:_submit_jobs", ("for v_round in 1 .. 10", "for v_round in 1 .. 1")
        )
    await factory.queue(conn)
    worker = await factory.worker(conn)
    twin = await factory.submit(conn, dedupe_key="k1")
    started = await factory.claim(conn, worker)
    app, submitter = await open_many(connect, 2)
    holding = app.transaction()
    await holding.start()
    await accept(app, keyed(["k2"]))
    submit = Step(submitter, accept(submitter, keyed(["k1", "k2"])))
    assert await submit.waits(conn)  # it has met the twin of k1, and waits for the twin of k2
    await factory.finish(conn, worker, started)
    await holding.rollback()
    if naive:
        with refused(409, "dedupe_contended", "dedupe_key"):
            await submit
    else:
        answers = await submit
        assert [twin for _, twin in answers] == [False, False]
        assert answers[0][0] != str(twin)


async def test_a_dedupe_key_is_unique_per_kind_and_account(conn: asyncpg.Connection) -> None:
    """M9"""
    await factory.queue(conn)
    await factory.queue(conn, "other")
    jobs = [
        {"kind": kind, "account": account, "dedupe_key": "k"}
        for kind in ("q", "other")
        for account in (None, "a", "b")
    ]
    first, again = await accept(conn, jobs), await accept(conn, jobs[::-1])
    assert [twin for _, twin in first] == [False] * 6
    assert again == [(job, True) for job, _ in first[::-1]]


async def submit_one(conn: asyncpg.Connection, key: str, **payload: Any) -> Row:
    row = await conn.fetchrow(
        "select id, status, deduplicated, replayed from penstock.submit_one("
        "'q', $1, p_account => 'a', p_key => $2)",
        payload,
        key,
    )
    assert row
    return row


async def test_100_submits_with_one_idempotency_key_make_one_job_which_all_get(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await factory.queue(conn)
    callers = await open_many(connect, REPEATERS)
    answers = await asyncio.gather(*(submit_one(caller, "k", n=1) for caller in callers))
    live: UUID = await conn.fetchval("select id from penstock.job")
    assert {answer["id"] for answer in answers} == {live}
    assert Counter(answer["replayed"] for answer in answers) == {False: 1, True: REPEATERS - 1}
    for caller in callers[:3]:
        with refused(422, "idempotency_key_reused", "idempotency_key"):
            await submit_one(caller, "k", n=2)
    assert await conn.fetchval("select count(*) from penstock.idempotency") == 1


async def test_twins_of_an_uncommitted_first_wait_five_seconds_and_are_asked_to_repeat(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """Each waits only for its own first, and not behind another twin."""
    await factory.queue(conn)
    app, *twins = await open_many(connect, 9)
    async with app.transaction():
        firsts = [await submit_one(app, f"k{n}") for n in range(4)]
        began = time.monotonic()
        calls = [Step(twin, submit_one(twin, f"k{n % 4}")) for n, twin in enumerate(twins)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        waited = time.monotonic() - began
    assert [getattr(error, "sqlstate", None) for error in errors] == ["PS409"] * 8
    assert {'"idempotency_in_progress"' in str(getattr(e, "detail", "")) for e in errors} == {True}
    assert 4.9 <= waited < 15
    # Repeating, as the hint asks, works.
    for n, twin in enumerate(twins):
        answer = await submit_one(twin, f"k{n % 4}")
        assert (answer["id"], answer["replayed"]) == (firsts[n % 4]["id"], True)


async def test_if_the_first_rolls_back_one_of_the_waiting_twins_makes_the_job(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await factory.queue(conn)
    app, *twins = await open_many(connect, 9)
    first = app.transaction()
    await first.start()
    gone = await submit_one(app, "k")
    calls = [Step(twin, submit_one(twin, "k")) for twin in twins]
    assert [await call.waits(conn) for call in calls] == [True] * 8
    await first.rollback()
    answers = [await call for call in calls]
    assert Counter(answer["replayed"] for answer in answers) == {False: 1, True: 7}
    [job] = {answer["id"] for answer in answers}
    assert job != gone["id"]
    assert await conn.fetchval("select array_agg(id) from penstock.job") == [job]


async def test_a_refused_submit_leaves_no_record_of_its_key(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """Nor does it block a twin that waits for it."""
    await factory.queue(conn)
    with refused(404, "unknown_kind", "kind"):
        await conn.execute("select penstock.submit_one('none', '{}', p_key => 'k')")
    assert await conn.fetchval("select count(*) from penstock.idempotency") == 0
    app, twin = await open_many(connect, 2)
    async with app.transaction():
        point = app.transaction()  # the app continues after the refusal
        await point.start()
        with refused(404, "unknown_kind", "kind"):
            await app.execute("select penstock.submit_one('none', '{}', p_key => 'k')")
        await point.rollback()
        assert (await submit_one(twin, "k"))["replayed"] is False


async def test_a_kind_with_a_fixed_dedupe_key_has_one_live_job(conn: asyncpg.Connection) -> None:
    """M9"""
    await factory.queue(conn)
    await conn.execute("select penstock.declare_kind('report', 'q', $1)", {"dedupe": "nightly"})
    first = await factory.submit(conn, "report")
    assert await factory.submit(conn, "report") == first
    assert await conn.fetchval("select id from penstock.submit_one('report', '{}')") == first
    await conn.execute("select penstock.cancel_job($1)", first)
    assert await factory.submit(conn, "report") != first
