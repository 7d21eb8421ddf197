"""Guards of claim.sql, choose.sql and lanes.sql: which jobs may start, and their counting."""

from contextlib import suppress

import asyncpg

from mutation.guards import Edit
from mutation.scene import Scene, catches
from support import factory
from support.factory import Row
from support.interleave import Step


@catches("_pass_gate: queue limit")
async def a_queue_starts_no_more_than_its_limit(s: Scene) -> None:
    await factory.queue(s.conn, concurrency=2)
    await factory.submit_rows(s.conn, [{"kind": "q"}] * 5)
    assert len(await factory.claim(s.conn, await s.worker(), limit=5)) == 2


@catches("_pass_gate: rate")
async def a_queue_starts_no_faster_than_its_rate(s: Scene) -> None:
    await factory.queue(s.conn, rate="1/min", burst=2)
    await factory.submit_rows(s.conn, [{"kind": "q"}] * 5)
    assert len(await factory.claim(s.conn, await s.worker(), limit=5)) == 2


@catches(
    "_pass_gate: not negative",
    raises=asyncpg.InvalidRowCountInLimitClauseError,
)
async def a_queue_over_its_lowered_rate_starts_nothing(s: Scene) -> None:
    await factory.queue(s.conn, rate="60/min", burst=5)
    worker = await s.worker()
    await factory.submit_rows(s.conn, [{"kind": "q"}] * 6)
    await s.start(worker, limit=5)
    await s.conn.execute("update penstock.queue set rate_burst = 1")
    assert await factory.claim(s.conn, worker) == []


@catches("_pass_gate: gate locked", replace=("for no key update", ""))
async def two_claims_at_once_keep_the_limit_of_their_queue(s: Scene) -> None:
    await factory.queue(s.conn, concurrency=1)
    worker = await s.worker()
    await factory.submit_rows(s.conn, [{"kind": "q"}] * 2)
    one, other = await s.connect(), await s.connect()
    async with one.transaction():
        await factory.claim(one, worker)
        second = Step(other, factory.claim(other, worker))
        assert await second.waits(s.conn)
    assert await second == []


@catches(
    "_choose: account limit", replace=("coalesce(a.concurrency - a.running, p_limit)", "p_limit")
)
async def an_account_starts_no_more_than_its_limit(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=2)
    await factory.submit_rows(s.conn, [{"kind": "q", "account": "a"}] * 5)
    assert len(await factory.claim(s.conn, await s.worker(), limit=5)) == 2


@catches("_choose: queued", raises=asyncpg.RaiseError, match="chose 2 jobs but started 1")
async def a_running_job_of_a_lane_is_not_chosen_again(s: Scene) -> None:
    """Otherwise the claim would notice that it starts fewer jobs than it chose, and fail."""
    await _claim_beside_one_that_runs(s)


@catches("claim_jobs: queued", beside=["_choose: queued"])
@catches(
    "claim_jobs: all started",
    replace=("v_started <> cardinality(v_jobs)", "false"),
    beside=["_choose: queued"],
)
async def a_running_job_is_not_started_again_even_if_it_was_chosen(s: Scene) -> None:
    with suppress(asyncpg.RaiseError):  # then the whole claim is rolled back
        await _claim_beside_one_that_runs(s)
    assert await s.value("select max(attempt) from penstock.job") == 1
    assert await s.value("select running from penstock.account where name = 'a'") == 1


async def _claim_beside_one_that_runs(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=5)
    await factory.submit_rows(s.conn, [{"kind": "q", "account": "a"}] * 3)
    await s.start(await s.worker())
    await factory.claim(s.conn, await s.worker(), limit=2)
    assert await s.value("select max(attempt) from penstock.job") == 1


@catches("_hold_plain: waits", raises=asyncpg.RaiseError, match="chose 1 jobs but started 0")
async def a_running_job_without_a_lane_is_not_chosen_again(s: Scene) -> None:
    _, running = await s.running()
    await _claim_what_waits(s, running)


async def _what_runs_is_not_chosen_again_among_several_kinds(s: Scene) -> None:
    _, running = await s.running()
    await factory.kind(s.conn, "another")
    await factory.submit(s.conn, "another")
    await _claim_what_waits(s, running)


async def _claim_what_waits(s: Scene, running: Row) -> None:
    """A claim reads only kinds that have queued jobs, so one job waits behind the running one."""
    await factory.submit(s.conn)
    [row] = await factory.claim(s.conn, await s.worker(), limit=1)
    assert row["id"] != running["id"]


for guard, beside in (("waits", "queued"), ("queued", "waits")):
    catches(
        f"_hold_plain: merged {guard}",
        beside=[f"_hold_plain: merged {beside}"],
        raises=asyncpg.RaiseError,
        match="chose 1 jobs but started 0",
    )(_what_runs_is_not_chosen_again_among_several_kinds)


@catches("claim_jobs: has a handler")
async def a_worker_starts_only_kinds_with_a_handler(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.submit(s.conn)
    worker = await factory.worker(s.conn, kinds=["another"])
    assert await factory.claim(s.conn, worker) == []


@catches("_hold_accounts: locked", replace=("for no key update of a skip locked", ""))
async def two_claims_at_once_keep_the_limit_of_an_account(s: Scene) -> None:
    """In two queues, so that they lock no common gate and no common job."""
    await factory.plan(s.conn, concurrency=1)
    for kind in ("q", "other", "single"):
        await factory.queue(s.conn, kind)
        await factory.submit(s.conn, kind, account="a")
    await factory.kind(s.conn, "second", "other")
    worker, one, other = await s.worker(), await s.connect(), await s.connect()
    async with one.transaction():
        await factory.claim(one, worker)
        assert await s.does_not_wait(other, factory.claim(other, worker, "single")) == []
        assert await s.does_not_wait(other, factory.claim(other, worker, "other")) == []


@catches("_choose: limit", replace=("<= p_limit", "> 0"))
async def a_worker_gets_no_more_than_it_asked_for(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=3)
    await factory.submit_rows(
        s.conn, [{"kind": "q", "account": account} for account in ("a", "a", "b", "b", None)]
    )
    assert len(await factory.claim(s.conn, await s.worker(), limit=2)) == 2


@catches("_choose: full")
async def a_full_account_does_not_block_other_accounts(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.queue(s.conn, "other")
    await factory.plan(s.conn, concurrency=1)
    worker = await s.worker()
    for kind in ("other", "q"):
        await factory.submit(s.conn, kind, account="full")
    behind = await factory.submit(s.conn, account="free")
    await s.start(worker, "other")
    assert [row["id"] for row in await factory.claim(s.conn, worker)] == [behind]


@catches("_choose: closes", replace=("t.running + t.total < t.concurrency", "true"))
async def a_lane_closes_with_the_last_slot_of_its_account(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    await factory.submit_rows(s.conn, [{"kind": "q", "account": "a"}] * 2)
    await s.start(await s.worker())
    assert await s.value("select open from penstock.lane") is False


@catches(
    "claim_jobs: limits locked",
    replace=("penstock._share_queue_lock(1886413171, q.id)::text", "null"),
)
async def a_limit_does_not_change_under_a_claim(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await s.worker()
    await factory.submit_rows(s.conn, [{"kind": "q"}] * 3)
    claimer, operator = await s.connect(), await s.connect()
    async with claimer.transaction():
        await factory.claim(claimer, worker, limit=2)
        edit = Step(
            operator, operator.execute("select penstock.edit_queue('q', '{\"concurrency\": 2}')")
        )
        await edit.waits(s.conn)
    await edit
    assert await factory.claim(s.conn, worker) == []


@catches("claim_jobs: paused", replace=("v_state.paused", "false"))
async def a_paused_queue_starts_nothing(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.submit(s.conn)
    await s.conn.execute("select penstock.pause_queue('q')")
    assert await factory.claim(s.conn, await s.worker()) == []


@catches("claim_jobs: worker lives")
async def a_lost_worker_gets_no_jobs(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await s.worker(lease="15 seconds")
    await s.clock.advance("1m")
    await factory.recover(s.conn)
    await factory.submit(s.conn)
    with factory.refused(409, "worker_lost", "worker"):
        await factory.claim(s.conn, worker)


@catches("claim_jobs: expired", replace=("v_state.expired", "false"))
async def an_expired_job_is_not_started(s: Scene) -> None:
    await factory.queue(s.conn)
    job = await factory.submit(s.conn, expires_seconds=5)
    await s.clock.advance("10s")
    assert await factory.claim(s.conn, await s.worker()) == []
    assert await s.status(job) == "failed"


@catches(
    "claim_jobs: all expired",
    # A pass of one, so that two are too many for it.
    beside=[
        "_hold_plain: in time",
        Edit("claim_jobs", "expire_jobs(v_id, 1000) = 1000", "expire_jobs(v_id, 1) = 1"),
    ],
)
async def an_expired_job_is_not_started_when_one_pass_cannot_take_all(
    s: Scene,
) -> None:
    await factory.queue(s.conn)
    await factory.submit_rows(s.conn, [{"kind": "q", "expires_seconds": 5}] * 2)
    await s.clock.advance("10s")
    assert await factory.claim(s.conn, await s.worker()) == []


@catches("_hold_plain: stray")
async def a_job_older_than_its_accounts_limit_waits_while_the_account_is_locked(s: Scene) -> None:
    """It can neither start nor join its lane, and blocks no other job."""
    worker, _ = await s.running(account="a")
    app, claimer = await s.connect(), await s.connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        await s.unlimited_then("a", concurrency=1)
    behind = await factory.submit(s.conn)
    async with app.transaction():
        await factory.submit(app, account="a")
        rows = await s.does_not_wait(claimer, factory.claim(claimer, worker, limit=2))
        assert [row["id"] for row in rows] == [behind]


@catches("_hold_plain: merged stray")
async def such_a_job_waits_in_a_claim_of_several_kinds_too(s: Scene) -> None:
    worker, _ = await s.running(account="a")
    await factory.kind(s.conn, "another")
    app, claimer = await s.connect(), await s.connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        await s.unlimited_then("a", concurrency=1)
    behind = await factory.submit(s.conn, "another")
    async with app.transaction():
        await factory.submit(app, account="a")
        rows = await s.does_not_wait(claimer, factory.claim(claimer, worker, limit=2))
        assert [row["id"] for row in rows] == [behind]


@catches("_enlane_strays: account held")
async def no_job_joins_the_lane_of_a_locked_account(s: Scene) -> None:
    worker, _ = await s.running(account="a")
    app, claimer = await s.connect(), await s.connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        await s.unlimited_then("a", concurrency=1)
    async with app.transaction():
        await factory.submit(app, account="a")
        assert await s.does_not_wait(claimer, factory.claim(claimer, worker)) == []


@catches("_join_lanes: slot free", replace=("coalesce(a.running < a.concurrency, true)", "true"))
async def the_lane_of_a_full_account_begins_closed(s: Scene) -> None:
    await factory.plan(s.conn, concurrency=1)
    await s.running(account="a")
    await factory.submit(s.conn, account="a")
    assert await s.value("select open from penstock.lane") is False


@catches("_open_lanes: slot free")
async def a_limit_raised_too_little_opens_no_lane(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=3)
    await factory.submit_rows(s.conn, [{"kind": "q", "account": "a"}] * 4)
    await s.start(await s.worker(), limit=3)
    for limit in (1, 2):
        await s.conn.execute(
            "select penstock.edit_plan('free', jsonb_build_object('concurrency', $1::integer))",
            limit,
        )
    assert await s.value("select open from penstock.lane") is False


@catches("_enlane_jobs: queued", "_enlane_jobs: in no lane")
async def a_job_that_runs_or_is_in_a_lane_joins_no_lane(s: Scene) -> None:
    _, started = await s.running(account="a")
    waiting = await factory.submit(s.conn, account="a")
    await s.unlimited_then("a", concurrency=1)
    other = await factory.submit(s.conn, account="b")
    [row] = await s.start(await s.worker())
    assert row["id"] == other
    await s.conn.execute("select penstock._enlane_jobs($1)", [started["id"], waiting, other])


@catches("_count_running: runs", raises=asyncpg.CheckViolationError, match="waiting_has_no_slots")
async def a_waiting_job_takes_no_slot_when_a_limit_is_set(s: Scene) -> None:
    await s.running(account="a")
    await factory.submit(s.conn, account="a")
    await s.unlimited_then("a", concurrency=2)


@catches("_count_running: once")
async def a_job_with_a_slot_takes_no_second_one_when_a_limit_returns(s: Scene) -> None:
    await factory.plan(s.conn, "open", default=False)
    await s.running(account="a")
    await s.unlimited_then("a", concurrency=1)
    for plan in ("open", "limited"):
        await s.conn.execute("select penstock.set_account_plan('a', $1)", plan)
    assert await s.value("select running from penstock.account where name = 'a'") == 1
