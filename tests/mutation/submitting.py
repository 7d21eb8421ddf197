"""Guards of submit.sql and its helpers: a job is accepted once, and into the right lane."""

from contextlib import suppress

import asyncpg

from mutation.scene import WAKING, Scene, catches
from support import factory
from support.interleave import Step

_SUBMIT_ONCE = "select id from penstock.submit_one('q', $1, p_key => 'once')"


@catches("_submit_jobs: account locked", replace=("for no key update", ""))
async def a_submit_that_meets_a_finish_leaves_its_lane_open(s: Scene) -> None:
    await factory.plan(s.conn, concurrency=1)
    worker, row = await s.running(account="a")
    finisher, submitter = await s.connect(), await s.connect()
    async with finisher.transaction():
        await factory.finish(finisher, worker, [row])
        submit = Step(submitter, factory.submit(submitter, account="a"))
        await submit.waits(s.conn)
    await submit
    assert await s.value("select open from penstock.lane") is True


@catches("_submit_jobs: stray", replace=("v_strays is not null", "false"))
async def a_submit_that_read_before_the_limit_was_set_does_not_choose_the_lane(s: Scene) -> None:
    worker, row = await s.running(account="a")
    await factory.submit(s.conn, account="held")
    await s.unlimited_then("held", concurrency=1)
    app, submitter, finisher = [await s.connect() for _ in range(3)]
    async with finisher.transaction():
        async with app.transaction():
            await factory.submit(app, account="held")
            jobs = [{"kind": "q", "account": name} for name in ("a", "held")]
            submit = Step(submitter, factory.submit_rows(submitter, jobs))
            assert await submit.waits(s.conn)  # it has read that "a" has no limit
            await s.conn.execute("select penstock.set_account_plan('a', 'limited')")
            await factory.finish(finisher, worker, [row])
        await submit


@catches("_insert_jobs: the rest only", raises=asyncpg.UniqueViolationError, match="job_pkey")
async def a_second_round_submits_only_what_the_first_left(s: Scene) -> None:
    """A twin is live when the batch is inserted, and finished when the batch reads it."""
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    await factory.submit(s.conn, account="a")
    worker = await s.worker()
    await s.start(worker)
    twin = await factory.submit(s.conn, dedupe_key="k")
    blocker, submitter = await s.connect(), await s.connect()
    async with blocker.transaction():
        await blocker.execute("select from penstock.lane for update")
        jobs = [{"kind": "q", "account": "a"}, {"kind": "q", "dedupe_key": "k"}]
        submit = Step(submitter, factory.submit_rows(submitter, jobs))
        assert await submit.waits(s.conn)  # inserted, before it updates the lane
        await s.conn.execute("select penstock.cancel_job($1)", twin)
    assert len(set(await submit) - {twin}) == 2
    assert await s.value("select count(*) from penstock.job where status = 'queued'") == 2


@catches("submit_one: same job", replace=("v_record.fingerprint is distinct from v_print", "false"))
async def an_idempotency_key_is_for_one_job(s: Scene) -> None:
    await factory.queue(s.conn)
    await s.conn.execute(_SUBMIT_ONCE, {"n": 1})
    with factory.refused(422, "idempotency_key_reused", "idempotency_key"):
        await s.conn.execute(_SUBMIT_ONCE, {"n": 2})


@catches("_submit_jobs: order locked")
async def the_order_of_a_queue_does_not_change_under_a_submit(s: Scene) -> None:
    """In a fair queue every job waits in a lane; a job submitted before the change is in none."""
    await factory.queue(s.conn)
    app, operator = await s.connect(), await s.connect()
    async with app.transaction():
        await factory.submit(app)
        change = Step(operator, factory.queue(operator, order="fair"))
        await change.waits(s.conn)
    with suppress(asyncpg.PostgresError):  # refused: it has live jobs
        await change


_SUBMIT_ONE = "select id from penstock.submit_one('q', $1, p_priority => $2)"


@catches("_submit_plain: order locked")
async def the_order_of_a_queue_does_not_change_under_a_single_submit(s: Scene) -> None:
    await factory.queue(s.conn)
    app, operator = await s.connect(), await s.connect()
    async with app.transaction():
        await app.fetchval(_SUBMIT_ONE, {}, None)
        change = Step(operator, factory.queue(operator, order="fair"))
        await change.waits(s.conn)
    with suppress(asyncpg.PostgresError):  # refused: it has live jobs
        await change


@catches("_refuse_old_snapshot: as it is now", replace=("for share", ""))
async def a_transaction_with_an_old_snapshot_does_not_use_the_old_order(s: Scene) -> None:
    """In a fair queue every job waits in a lane."""
    await factory.queue(s.conn)
    app = await s.connect()
    with suppress(asyncpg.SerializationError):
        async with app.transaction(isolation="repeatable_read"):
            await app.fetchval("select count(*) from penstock.job")
            await factory.queue(s.conn, order="fair")
            await app.fetchval(_SUBMIT_ONE, {}, None)


@catches("_await_queue_lock: not for ever", replace=("3s", "0"), raises=TimeoutError)
async def a_submit_does_not_wait_long_for_a_foreign_lock(s: Scene) -> None:
    await factory.queue(s.conn)
    stranger, app = await s.connect(), await s.connect()
    queue = await s.value("select id from penstock.queue")
    async with stranger.transaction():
        await stranger.execute("select pg_advisory_xact_lock(1886413172, $1)", queue)
        with factory.refused(503, "queue_locked", "queue"):
            await app.fetchval(_SUBMIT_ONE, {}, None, timeout=8)


@catches("_is_plain: no lane")
async def a_single_job_of_a_fair_queue_waits_in_a_lane(s: Scene) -> None:
    """L6"""
    await factory.queue(s.conn, order="fair")
    await s.conn.fetchval(_SUBMIT_ONE, {}, None)
    assert await s.value("select waiting from penstock.lane") == 1


@catches("_submit_plain: in order", match="priority_in_range")
async def a_single_job_is_checked_as_many_are(s: Scene) -> None:
    await factory.queue(s.conn)
    with factory.refused(422, "invalid_job", "priority"):
        await s.conn.fetchval(_SUBMIT_ONE, {}, 1001)


@catches("_submit_plain: an object", replace=("jsonb_typeof(p_job.payload) = 'object'", "true"))
async def a_small_payload_must_be_an_object_too(s: Scene) -> None:
    await factory.queue(s.conn)
    with factory.refused(422, "invalid_payload", "payload"):
        await s.conn.fetchval(_SUBMIT_ONE, [1], None)


@catches(
    "_submit_plain: short",
    replace=("octet_length(p_job.payload::text) <= 2 * v_plain.payload_max_depth", "true"),
)
async def a_small_payload_may_print_long(s: Scene) -> None:
    await factory.queue(s.conn)
    with factory.refused(422, "invalid_payload", "payload"):
        await s.conn.fetchval("select id from penstock.submit_one('q', '{\"n\": 1e100000}')")


_ACCEPT = "select ordinal from penstock.accept_jobs('q', '{q}', $1, p_priorities => $2)"


@catches("accept_jobs: order locked")
async def the_order_of_a_queue_does_not_change_under_coalesced_submits(s: Scene) -> None:
    await factory.queue(s.conn)
    app, operator = await s.connect(), await s.connect()
    async with app.transaction():
        await app.fetchval(_ACCEPT, [{}], None)
        change = Step(operator, factory.queue(operator, order="fair"))
        await change.waits(s.conn)
    with suppress(asyncpg.PostgresError):  # refused: it has live jobs
        await change


@catches("_insert_jobs: plain")
async def submits_to_a_fair_queue_are_not_coalesced(s: Scene) -> None:
    """L6"""
    await factory.queue(s.conn, order="fair")
    assert await s.conn.fetch(_ACCEPT, [{}], None) == []


@catches(
    "accept_jobs: in order",
    replace=("v_todo", "null"),
    raises=asyncpg.CheckViolationError,
    match="priority_in_range",
)
async def coalesced_submits_are_checked_like_a_batch(s: Scene) -> None:
    await factory.queue(s.conn)
    assert await s.conn.fetch(_ACCEPT, [{}], [1001]) == []


@catches("_lock_plan: locked", replace=("for share", ""))
async def an_account_created_while_its_plan_changes_follows_the_plan(s: Scene) -> None:
    await factory.plan(s.conn)
    app, operator = await s.connect(), await s.connect()
    async with app.transaction():
        await app.execute("select penstock.create_account('a')")
        change = Step(
            operator, operator.execute("select penstock.edit_plan('free', '{\"concurrency\": 1}')")
        )
        await change.waits(s.conn)
    await change


@catches("submit_waking: answered when safe")
async def a_submit_that_wakes_workers_returns_after_the_job_is_on_disk(s: Scene) -> None:
    await factory.queue(s.conn)
    await s.all_reach_the_disk(lambda _: s.conn.execute(WAKING))


@catches("_await_disk: on disk")
async def a_repeated_submit_returns_after_the_job_is_on_disk(s: Scene) -> None:
    await factory.queue(s.conn)
    first = await s.connect()
    await first.execute("set synchronous_commit = off")

    async def repeated(n: int) -> None:
        for conn in (first, s.conn):
            await conn.execute(f"select from penstock.submit_one('q', '{{}}', p_key => 'k{n}')")

    await s.all_reach_the_disk(repeated)
