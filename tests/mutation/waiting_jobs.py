"""Guards of lifecycle.sql: waiting jobs, and attempts that continue outside."""

from typing import Any

from mutation.scene import SIGN, Scene, catches
from support import factory
from support.interleave import Step


@catches("_finish_waiting: waits", beside=["_move_to_finished: expected status"])
async def a_running_job_is_not_finished_as_a_waiting_one(s: Scene) -> None:
    _, row = await s.running()
    await s.conn.fetch(
        "select penstock._finish_waiting($1, 'cancelled', '{}', array[-1])", [row["id"]]
    )
    assert await s.status(row["id"]) == "running"


@catches("_finish_waiting: lane locked", replace=("j.account_id = any (p_accounts)", "true"))
async def without_the_accounts_lock_nothing_in_its_lane_is_finished(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    job = await factory.submit(s.conn, account="a")
    await s.conn.fetch("select penstock._finish_waiting($1, 'cancelled', '{}', '{}')", [job])
    assert await s.status(job) == "queued"


@catches("cancel_job: account locked")
async def an_uncommitted_cancel_keeps_claims_off_its_lane(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    worker = await s.worker()
    job = await factory.submit(s.conn, account="a")
    app, claimer = await s.connect(), await s.connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", job)
        assert await s.does_not_wait(claimer, factory.claim(claimer, worker)) == []


@catches("_request_cancel: still runs")
async def a_cancel_that_meets_the_outcome_of_an_attempt_cancels_the_job(s: Scene) -> None:
    worker, row = await s.running()
    finisher, app = await s.connect(), await s.connect()
    async with finisher.transaction():
        await factory.finish(finisher, worker, [row], "retry")
        cancel = Step(app, app.execute("select penstock.cancel_job($1)", row["id"]))
        assert await cancel.waits(s.conn)
    await cancel
    assert await s.status(row["id"]) == "cancelled"


@catches("stage_due_jobs: scheduled")
async def a_queued_job_is_not_counted_into_its_lane_again(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    await factory.submit(s.conn, account="a")
    assert await s.value("select penstock.stage_due_jobs(queue_id) from penstock.job") == 0


@catches("stage_due_jobs: due")
async def a_job_that_is_not_due_is_not_queued(s: Scene) -> None:
    await factory.queue(s.conn)
    job = await factory.submit(s.conn, delay_seconds=60)
    await s.conn.execute("select penstock.stage_due_jobs(queue_id) from penstock.job")
    assert await s.status(job) == "scheduled"
    await s.clock.advance("1m")
    await s.conn.execute("select penstock.stage_due_jobs(queue_id) from penstock.job")
    assert await s.status(job) == "queued"


@catches("stage_due_jobs: lane held")
@catches("expire_jobs: lane held", replace=("penstock._try_lock_account(j.account_id)", "true"))
@catches("_try_lock_account: locked", replace=("for no key update skip locked", ""))
async def upkeep_skips_a_locked_account_and_serves_the_others(s: Scene) -> None:
    """A pass of one job does not choose the locked one."""
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    number = await s.value("select id from penstock.queue")
    wanted: dict[str, dict[str, Any]] = {
        "expire_jobs": {"expires_seconds": 5},
        "stage_due_jobs": {"delay_seconds": 5},
    }
    jobs = {
        function: [
            await factory.submit(s.conn, account=name, **fields) for name in ("held", "free")
        ]
        for function, fields in wanted.items()
    }
    await s.clock.advance("10s")
    app, upkeep = await s.connect(), await s.connect()
    async with app.transaction():
        await factory.submit(app, account="held")
        for function, (held, free) in jobs.items():
            before = await s.status(held), await s.status(free)
            call = upkeep.fetchval(f"select penstock.{function}($1, 1)", number)
            assert await s.does_not_wait(upkeep, call) == 1
            assert await s.status(held) == before[0]
            assert await s.status(free) != before[1]


@catches("expire_jobs: expired")
async def a_job_with_time_left_does_not_expire(s: Scene) -> None:
    await factory.queue(s.conn)
    job = await factory.submit(s.conn, expires_seconds=60)
    await s.conn.execute("select penstock.expire_jobs(queue_id) from penstock.job")
    assert await s.status(job) == "queued"


@catches("hand_over_jobs: token is long", replace=("t is null or length(t) < 16", "false"))
async def a_token_that_can_be_guessed_is_refused(s: Scene) -> None:
    worker, row = await s.running()
    with factory.refused(422, "invalid_token", "token"):
        await factory.hand_over(s.conn, worker, row, "guess me")


@catches("hand_over_jobs: fence")
async def a_worker_dispatches_only_the_attempt_that_it_names(s: Scene) -> None:
    """The earlier attempt is settled, and the same worker has begun the next one."""
    worker, first = await s.running()
    await factory.finish(s.conn, worker, [first], "retry", delay="0")
    await s.start(worker)
    assert await factory.hand_over(s.conn, worker, first, SIGN) == "stale"
    assert await s.status(first["id"]) == "running"


@catches("hand_over_jobs: owner")
async def a_worker_dispatches_no_job_of_another_worker(s: Scene) -> None:
    _, row = await s.running()
    other = await s.worker()
    assert await factory.hand_over(s.conn, other, row, SIGN) == "stale"
    assert await s.status(row["id"]) == "running"


@catches("hand_over_jobs: locked, fence")
async def an_earlier_attempt_gets_no_locked_verdict(s: Scene) -> None:
    worker, first = await s.running()
    await factory.finish(s.conn, worker, [first], "retry", delay="0")
    await s.start(worker)
    assert await factory.hand_over(s.conn, worker, first, SIGN) == "stale"


@catches("hand_over_jobs: locked, owner")
async def another_worker_gets_no_locked_verdict(s: Scene) -> None:
    worker, row = await s.running()
    other, app = await s.worker(), await s.connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", row["id"])
        assert await factory.hand_over(s.conn, worker, row, SIGN) == "locked"
        assert await factory.hand_over(s.conn, other, row, SIGN) == "stale"
