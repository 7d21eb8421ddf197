"""Guards of finish.sql and callbacks.sql: who may settle an attempt, once, and what that frees."""

import asyncpg

from mutation.guards import Edit
from mutation.scene import SIGN, Scene, catches
from support import factory

# Two conditions choose and lock jobs that may be released; _requeue_jobs repeats them.
UNPICKED = ("_settle_jobs: theirs", "_settle_jobs: account locked")
# Removes the second pass, which settles under locks the attempts that the first one could not.
NO_SECOND_PASS = Edit(
    "_settle_jobs",
    "p_usages, p_units, v_accounts, v_now, v_locked);",
    "p_usages, p_units, v_accounts, v_now, '{}');",
)


@catches("_move_to_finished: fence")
async def an_earlier_attempt_settles_nothing(s: Scene) -> None:
    worker, first = await s.running()
    await factory.finish(s.conn, worker, [first], "retry", delay="0")
    await s.start(worker)
    [row] = await factory.finish(s.conn, worker, [first])
    assert (row["verdict"], await s.status(first["id"])) == ("stale", "running")


@catches("_requeue_jobs: fence", beside=UNPICKED)
async def an_earlier_attempt_releases_nothing(s: Scene) -> None:
    worker, first = await s.running()
    await factory.finish(s.conn, worker, [first], "retry", delay="0")
    await s.start(worker)
    [row] = await factory.finish(s.conn, worker, [first], "snoozed", delay="1h")
    assert (row["verdict"], await s.status(first["id"])) == ("stale", "running")


@catches("_move_to_finished: expected status")
async def upkeep_settles_no_settled_attempt(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.settle(row["id"], 1, "failed") == "stale"
    assert await s.status(row["id"]) == "scheduled"


@catches(
    "_requeue_jobs: started",
    beside=UNPICKED,
    raises=asyncpg.UniqueViolationError,
    match="attempt_.*_pkey",
)
async def upkeep_releases_no_attempt_twice(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.settle(row["id"], 1, "lost") == "stale"
    assert (await factory.read(s.conn, row["id"]))["recovery"]["count"] == 0


@catches("_move_to_finished: owner", "_settle_jobs: locked, owner")
async def another_worker_settles_nothing_and_gets_no_locked_verdict(s: Scene) -> None:
    _, row = await s.running()
    [answer] = await factory.finish(s.conn, await s.worker(), [row])
    assert (answer["verdict"], await s.status(row["id"])) == ("stale", "running")


@catches("_requeue_jobs: owner")
async def another_worker_releases_nothing(s: Scene) -> None:
    _, row = await s.running()
    [answer] = await factory.finish(s.conn, await s.worker(), [row], "retry")
    assert (answer["verdict"], await s.status(row["id"])) == ("stale", "running")


@catches("_move_to_finished: token", "_settle_jobs: locked, token")
async def a_wrong_token_settles_nothing_and_gets_no_locked_verdict(s: Scene) -> None:
    _, row = await s.awaiting()
    assert await factory.call_back(s.conn, row["id"], 1, "another one") == "invalid"
    assert await s.status(row["id"]) == "awaiting"


@catches("_requeue_jobs: token")
async def a_wrong_token_releases_nothing(s: Scene) -> None:
    _, row = await s.awaiting()
    assert await factory.call_back(s.conn, row["id"], 1, "another one", "retry") == "invalid"
    assert await s.status(row["id"]) == "awaiting"


@catches("resolve_callbacks: token given")
async def a_missing_token_is_refused(s: Scene) -> None:
    """Without a token to compare, the caller would be taken for upkeep."""
    _, row = await s.awaiting()
    assert await factory.call_back(s.conn, row["id"], 1, None) == "invalid"
    assert await s.status(row["id"]) == "awaiting"


@catches("resolve_callbacks: outcome known")
async def an_outside_function_may_not_report_an_outcome_of_upkeep(s: Scene) -> None:
    _, row = await s.awaiting()
    verdict = await factory.call_back(s.conn, row["id"], 1, SIGN, "cancelled")
    assert (verdict, await s.status(row["id"])) == ("invalid", "awaiting")


@catches("finish_jobs: worker named", replace=("p_worker is null", "false"))
async def a_report_without_a_worker_is_refused(s: Scene) -> None:
    """Upkeep passes none, and so may settle the attempt of any worker."""
    _, row = await s.running()
    with factory.refused(422, "invalid_finish", "worker"):
        await s.conn.execute(
            "select from penstock.finish_jobs(null, $1, array[1], array['failed'])", [row["id"]]
        )


async def _with_its_account_held(s: Scene, outcome: str) -> None:
    """An app has an uncommitted submit for the account: the verdict is locked, without a wait."""
    await factory.plan(s.conn, concurrency=1)
    worker, row = await s.running(account="a")
    app, finisher = await s.connect(), await s.connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        call = factory.finish(finisher, worker, [row], outcome)
        [answer] = await s.does_not_wait(finisher, call)
        assert answer["verdict"] == "locked"
    [answer] = await factory.finish(s.conn, worker, [row], outcome)
    assert answer["verdict"] == "done"


@catches("_move_to_finished: account locked", replace=("j.account_id = any (p_accounts)", "true"))
async def finishing_a_job_does_not_wait_for_its_account(s: Scene) -> None:
    await _with_its_account_held(s, "succeeded")


@catches("_requeue_jobs: account locked", beside=UNPICKED)
async def retrying_a_job_does_not_wait_for_its_account(s: Scene) -> None:
    await _with_its_account_held(s, "retry")


@catches("_lock_slots: locked", replace=("for no key update skip locked", ""))
async def freeing_a_slot_locks_the_account_first(s: Scene) -> None:
    """Otherwise it would wait for the account while it holds the locks of its jobs."""
    await _with_its_account_held(s, "succeeded")


@catches("_settle_jobs: account locked", replace=("j.account_id = any (v_accounts)", "true"))
async def a_job_whose_account_is_locked_is_not_locked_either(s: Scene) -> None:
    """A claim with the account's lock may need the job, and the finish the claim's gate."""
    await factory.plan(s.conn, concurrency=1)
    worker, row = await s.running(account="a")
    app, finisher = await s.connect(), await s.connect()
    async with app.transaction(), finisher.transaction():
        await factory.submit(app, account="a")
        await s.does_not_wait(finisher, factory.finish(finisher, worker, [row], "retry"))
        assert not await s.is_held(row["id"])


@catches("_settle_jobs: theirs")
async def a_stale_report_locks_no_job(s: Scene) -> None:
    worker, first = await s.running()
    await factory.finish(s.conn, worker, [first], "retry", delay="0")
    await s.start(worker)
    late = await s.connect()
    async with late.transaction():
        await factory.finish(late, worker, [first], "retry")
        assert not await s.is_held(first["id"])


@catches("_move_to_finished: job not locked")
async def a_finish_does_not_wait_for_an_app_that_asks_to_cancel(s: Scene) -> None:
    worker, row = await s.running()
    app, finisher = await s.connect(), await s.connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", row["id"])
        [answer] = await s.does_not_wait(finisher, factory.finish(finisher, worker, [row]))
        assert answer["verdict"] == "locked"


@catches("_move_to_finished: final", raises=asyncpg.NotNullViolationError, match="status")
async def an_unfinished_job_is_not_moved_to_history(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.status(row["id"]) == "scheduled"


@catches(
    "_requeue_jobs: goes on",
    beside=[NO_SECOND_PASS],
    raises=asyncpg.CheckViolationError,
    match="attempts_are_left",
)
async def a_job_without_attempts_left_is_not_released(s: Scene) -> None:
    """If it cannot be failed either (an app had locked it), it stays unchanged."""
    worker, row = await s.running(attempts=1)
    await s.conn.fetch("select from penstock.job for update")  # leaves its mark in xmax
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.status(row["id"]) == "running"


@catches("_settle_jobs: locked, fence")
async def an_earlier_attempt_gets_no_locked_verdict(s: Scene) -> None:
    """It was settled by upkeep; a report of the worker would get the same verdict."""
    worker, first = await s.running()
    await factory.finish(s.conn, worker, [first], "retry", delay="0")
    await s.start(worker)
    assert await s.settle(first["id"], 1, "lost") == "stale"


@catches("_settle_jobs: locked, started")
async def a_settled_attempt_gets_no_locked_verdict(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.settle(row["id"], 1, "lost") == "stale"


@catches("_settle_jobs: done, fence")
async def two_attempts_of_one_job_in_one_report_get_two_verdicts(s: Scene) -> None:
    """Its worker hung in the first, began the second, and reports both: one counts."""
    worker, first = await s.running()
    await s.settle(first["id"], 1, "timed_out")
    await s.conn.execute("select penstock.retry_job($1)", first["id"])
    [second] = await s.start(worker)
    answers = await factory.finish(s.conn, worker, [first, second])
    assert sorted(row["verdict"] for row in answers) == ["done", "stale"]
    assert await s.value("select array_agg(attempt) from penstock.late_result") == [1]


@catches("_settle_jobs: a result")
async def only_results_are_kept_as_late_results(s: Scene) -> None:
    worker, row = await s.running()
    await s.settle(row["id"], 1, "timed_out")
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.value("select count(*) from penstock.late_result") == 0


@catches("_settle_jobs: otherwise")
async def a_repeated_or_invented_result_is_not_kept_as_a_late_result(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row])
    await factory.finish(s.conn, worker, [row])
    unknown = await s.value("select gen_random_uuid()")
    assert await factory.call_back(s.conn, unknown, 1, SIGN) == "unknown"
    assert await s.value("select count(*) from penstock.late_result") == 0


@catches("_settle_jobs: once")
async def a_late_result_is_kept_once(s: Scene) -> None:
    worker, row = await s.running()
    await s.settle(row["id"], 1, "timed_out")
    for _ in range(3):
        await factory.finish(s.conn, worker, [row])
    assert await s.value("select count(*) from penstock.late_result") == 1


@catches("_final_status: cancel asked")
async def a_job_with_a_cancel_request_is_not_retried(s: Scene) -> None:
    worker, row = await s.running()
    await s.conn.execute("select penstock.cancel_job($1)", row["id"])
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.status(row["id"]) == "cancelled"


@catches("_final_status: the rest is free")
async def an_outage_of_the_provider_counts_as_no_failure(s: Scene) -> None:
    worker, row = await s.running(attempts=1)
    await factory.finish(s.conn, worker, [row], "deferred", delay="1m")
    assert await s.status(row["id"]) == "scheduled"


@catches("_final_status: no crash is free")
async def a_worker_that_stops_causes_no_recovery(s: Scene) -> None:
    worker, row = await s.running(recovery=0)
    await factory.finish(s.conn, worker, [row], "released")
    assert await s.status(row["id"]) == "queued"


@catches(
    "_final_status: attempts left",
    replace=("p_failures + 1 >= p_max_attempts", "false"),
    raises=asyncpg.CheckViolationError,
    match="attempts_are_left",
)
async def the_last_failure_fails_the_job(s: Scene) -> None:
    worker, row = await s.running(attempts=1)
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.status(row["id"]) == "failed"


@catches("_final_status: recoveries left", replace=("p_crashes >= p_recovery", "false"))
async def a_job_that_kills_its_workers_fails(s: Scene) -> None:
    _, row = await s.running(recovery=0)
    await s.settle(row["id"], 1, "lost")
    assert await s.status(row["id"]) == "failed"


@catches("_free_slots: slot free")
async def a_slot_freed_above_a_lowered_limit_opens_no_lane(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=2)
    worker = await s.worker()
    for _ in range(3):
        await factory.submit(s.conn, account="a")
    started = await s.start(worker, limit=2)
    await s.conn.execute("select penstock.edit_plan('free', '{\"concurrency\": 1}')")
    await factory.finish(s.conn, worker, started[:1])
    assert await s.value("select open from penstock.lane") is False
