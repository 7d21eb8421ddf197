"""Guards of finish.sql and callbacks.sql: who may end a start, once, and what it frees."""

import asyncpg

from mutation.guards import Edit
from mutation.scene import SIGN, Scene, catches
from support import factory

# Jobs that may be given back are picked and locked by two conditions that _requeue_jobs repeats.
UNPICKED = ("_settle_jobs: theirs", "_settle_jobs: account locked")
# Takes away the pass that ends, under locks, what could not end at once.
NO_SECOND_PASS = Edit(
    "_settle_jobs",
    "p_usages, p_units, v_accounts, v_now, v_locked);",
    "p_usages, p_units, v_accounts, v_now, '{}');",
)


@catches("_move_to_finished: fence")
async def an_earlier_start_ends_nothing(s: Scene) -> None:
    worker, first = await s.running()
    await factory.finish(s.conn, worker, [first], "retry", delay="0")
    await s.start(worker)
    [row] = await factory.finish(s.conn, worker, [first])
    assert (row["verdict"], await s.status(first["id"])) == ("stale", "running")


@catches("_requeue_jobs: fence", beside=UNPICKED)
async def an_earlier_start_gives_nothing_back(s: Scene) -> None:
    worker, first = await s.running()
    await factory.finish(s.conn, worker, [first], "retry", delay="0")
    await s.start(worker)
    [row] = await factory.finish(s.conn, worker, [first], "snoozed", delay="1h")
    assert (row["verdict"], await s.status(first["id"])) == ("stale", "running")


@catches("_move_to_finished: expected status")
async def upkeep_ends_no_start_that_has_ended(s: Scene) -> None:
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
async def upkeep_gives_no_start_back_twice(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.settle(row["id"], 1, "lost") == "stale"
    assert (await factory.read(s.conn, row["id"]))["recovery"]["count"] == 0


@catches("_move_to_finished: owner", "_settle_jobs: locked, owner")
async def another_worker_ends_nothing_and_is_not_told_to_try_again(s: Scene) -> None:
    _, row = await s.running()
    [told] = await factory.finish(s.conn, await s.worker(), [row])
    assert (told["verdict"], await s.status(row["id"])) == ("stale", "running")


@catches("_requeue_jobs: owner")
async def another_worker_gives_nothing_back(s: Scene) -> None:
    _, row = await s.running()
    [told] = await factory.finish(s.conn, await s.worker(), [row], "retry")
    assert (told["verdict"], await s.status(row["id"])) == ("stale", "running")


@catches("_move_to_finished: token", "_settle_jobs: locked, token")
async def a_wrong_token_ends_nothing_and_is_not_told_to_try_again(s: Scene) -> None:
    _, row = await s.awaiting()
    assert await factory.call_back(s.conn, row["id"], 1, "another one") == "invalid"
    assert await s.status(row["id"]) == "awaiting"


@catches("_requeue_jobs: token")
async def a_wrong_token_gives_nothing_back(s: Scene) -> None:
    _, row = await s.awaiting()
    assert await factory.call_back(s.conn, row["id"], 1, "another one", "retry") == "invalid"
    assert await s.status(row["id"]) == "awaiting"


@catches("resolve_callbacks: token given")
async def no_token_is_no_key(s: Scene) -> None:
    """Where there is none to compare with, upkeep would be taken to call."""
    _, row = await s.awaiting()
    assert await factory.call_back(s.conn, row["id"], 1, None) == "invalid"
    assert await s.status(row["id"]) == "awaiting"


@catches("resolve_callbacks: outcome known")
async def a_function_outside_may_not_say_what_only_upkeep_says(s: Scene) -> None:
    _, row = await s.awaiting()
    told = await factory.call_back(s.conn, row["id"], 1, SIGN, "cancelled")
    assert (told, await s.status(row["id"])) == ("invalid", "awaiting")


@catches("finish_jobs: worker named", replace=("p_worker is null", "false"))
async def a_report_without_a_worker_is_refused(s: Scene) -> None:
    """Upkeep gives none, and so ends anybody's start."""
    _, row = await s.running()
    with factory.refused(422, "invalid_finish", "worker"):
        await s.conn.execute(
            "select from penstock.finish_jobs(null, $1, array[1], array['failed'])", [row["id"]]
        )


async def _with_its_account_held(s: Scene, outcome: str) -> None:
    """An app has submitted for the account and not committed: locked, and nobody waits."""
    await factory.plan(s.conn, concurrency=1)
    worker, row = await s.running(account="a")
    app, finisher = await s.connect(), await s.connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        call = factory.finish(finisher, worker, [row], outcome)
        [told] = await s.does_not_wait(finisher, call)
        assert told["verdict"] == "locked"
    [told] = await factory.finish(s.conn, worker, [row], outcome)
    assert told["verdict"] == "done"


@catches("_move_to_finished: account locked", replace=("j.account_id = any (p_accounts)", "true"))
async def what_ends_does_not_wait_for_its_account(s: Scene) -> None:
    await _with_its_account_held(s, "succeeded")


@catches("_requeue_jobs: account locked", beside=UNPICKED)
async def what_goes_on_does_not_wait_for_its_account(s: Scene) -> None:
    await _with_its_account_held(s, "retry")


@catches("_lock_slots: locked", replace=("for no key update skip locked", ""))
async def who_frees_a_slot_has_the_account_first(s: Scene) -> None:
    """Or it would wait for it in the end, with its jobs in hand."""
    await _with_its_account_held(s, "succeeded")


@catches("_settle_jobs: account locked", replace=("j.account_id = any (v_accounts)", "true"))
async def a_job_whose_account_is_held_is_not_held_either(s: Scene) -> None:
    """A claim that has the account may come to want the job, and we the claim's gate."""
    await factory.plan(s.conn, concurrency=1)
    worker, row = await s.running(account="a")
    app, finisher = await s.connect(), await s.connect()
    async with app.transaction(), finisher.transaction():
        await factory.submit(app, account="a")
        await s.does_not_wait(finisher, factory.finish(finisher, worker, [row], "retry"))
        assert not await s.is_held(row["id"])


@catches("_settle_jobs: theirs")
async def a_stale_report_holds_nobodys_job(s: Scene) -> None:
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
        [told] = await s.does_not_wait(finisher, factory.finish(finisher, worker, [row]))
        assert told["verdict"] == "locked"


@catches("_move_to_finished: final", raises=asyncpg.NotNullViolationError, match="status")
async def what_goes_on_is_not_moved_to_history(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.status(row["id"]) == "scheduled"


@catches(
    "_requeue_jobs: goes on",
    beside=[NO_SECOND_PASS],
    raises=asyncpg.CheckViolationError,
    match="attempts_are_left",
)
async def what_has_no_attempts_left_is_not_given_back(s: Scene) -> None:
    """If it could not be ended either (an app held it a moment ago), it is left as it is."""
    worker, row = await s.running(attempts=1)
    await s.conn.fetch("select from penstock.job for update")  # leaves its mark in xmax
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.status(row["id"]) == "running"


@catches("_settle_jobs: locked, fence")
async def an_earlier_start_is_not_told_to_try_again(s: Scene) -> None:
    """It is upkeep's: told by a worker, the owner would say so too."""
    worker, first = await s.running()
    await factory.finish(s.conn, worker, [first], "retry", delay="0")
    await s.start(worker)
    assert await s.settle(first["id"], 1, "lost") == "stale"


@catches("_settle_jobs: locked, started")
async def a_start_that_has_ended_is_not_told_to_try_again(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.settle(row["id"], 1, "lost") == "stale"


@catches("_settle_jobs: done, fence")
async def two_starts_of_one_job_in_one_report_are_two(s: Scene) -> None:
    """Its worker hung in the first, began the second, and tells of both: one counts."""
    worker, first = await s.running()
    await s.settle(first["id"], 1, "timed_out")
    await s.conn.execute("select penstock.retry_job($1)", first["id"])
    [second] = await s.start(worker)
    told = await factory.finish(s.conn, worker, [first, second])
    assert sorted(row["verdict"] for row in told) == ["done", "stale"]
    assert await s.value("select array_agg(attempt) from penstock.late_result") == [1]


@catches("_settle_jobs: a result")
async def only_results_are_kept_aside(s: Scene) -> None:
    worker, row = await s.running()
    await s.settle(row["id"], 1, "timed_out")
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.value("select count(*) from penstock.late_result") == 0


@catches("_settle_jobs: otherwise")
async def what_was_told_twice_or_made_up_is_not_kept_aside(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row])
    await factory.finish(s.conn, worker, [row])
    unknown = await s.value("select gen_random_uuid()")
    assert await factory.call_back(s.conn, unknown, 1, SIGN) == "unknown"
    assert await s.value("select count(*) from penstock.late_result") == 0


@catches("_settle_jobs: once")
async def a_late_result_is_kept_aside_once(s: Scene) -> None:
    worker, row = await s.running()
    await s.settle(row["id"], 1, "timed_out")
    for _ in range(3):
        await factory.finish(s.conn, worker, [row])
    assert await s.value("select count(*) from penstock.late_result") == 1


@catches("_final_status: cancel asked")
async def what_was_asked_to_end_is_not_tried_again(s: Scene) -> None:
    worker, row = await s.running()
    await s.conn.execute("select penstock.cancel_job($1)", row["id"])
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.status(row["id"]) == "cancelled"


@catches("_final_status: the rest is free")
async def a_providers_fault_costs_no_attempt(s: Scene) -> None:
    worker, row = await s.running(attempts=1)
    await factory.finish(s.conn, worker, [row], "deferred", delay="1m")
    assert await s.status(row["id"]) == "scheduled"


@catches("_final_status: no crash is free")
async def a_worker_that_leaves_costs_no_recovery(s: Scene) -> None:
    worker, row = await s.running(recovery=0)
    await factory.finish(s.conn, worker, [row], "released")
    assert await s.status(row["id"]) == "queued"


@catches(
    "_final_status: attempts left",
    replace=("p_failures + 1 >= p_max_attempts", "false"),
    raises=asyncpg.CheckViolationError,
    match="attempts_are_left",
)
async def the_last_failure_ends_the_job(s: Scene) -> None:
    worker, row = await s.running(attempts=1)
    await factory.finish(s.conn, worker, [row], "retry")
    assert await s.status(row["id"]) == "failed"


@catches("_final_status: recoveries left", replace=("p_crashes >= p_recovery", "false"))
async def a_job_that_kills_its_workers_ends(s: Scene) -> None:
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
