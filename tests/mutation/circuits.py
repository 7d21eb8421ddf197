"""Guards of circuit.sql and of its effects elsewhere: an outage is not a failure."""

from typing import Any

import asyncpg

from mutation.guards import Edit
from mutation.scene import Scene, catches
from support import factory
from support.circuits import circuit, end, fail, noticed, opened
from support.factory import Row
from support.interleave import Step

# The claim's first check, without a lock, is the same as the second one under the gate's lock.
NO_FIRST_CHECK = Edit("claim_jobs", "or v_state.stopped or", "or")


async def _ready(s: Scene, *, jobs: int = 3, **options: Any) -> int:
    """A queue with jobs in it, and a worker."""
    await factory.queue(s.conn, **options)
    await factory.submit_rows(s.conn, [{"kind": "q"}] * jobs)
    return await s.worker()


async def _state(s: Scene) -> str:
    state: str = (await circuit(s.conn))["state"]
    return state


async def _failures(s: Scene, start: Row) -> int:
    failures: int = (await factory.read(s.conn, start["id"]))["failures"]
    return failures


@catches("_opens: thrice")
async def two_failures_are_not_an_outage(s: Scene) -> None:
    worker = await _ready(s)
    for _ in range(2):
        await fail(s.conn, worker, "interrupted")
    assert await _state(s) == "closed"


@catches("_opens: from two jobs")
async def failures_of_one_job_are_not_an_outage(s: Scene) -> None:
    worker = await _ready(s, jobs=1, attempts=99)
    for _ in range(8):
        await fail(s.conn, worker, "interrupted", delay="0")
    assert await _state(s) == "closed"


@catches("_opens: several accounts")
async def one_job_with_a_wrong_setting_does_not_stop_the_others(s: Scene) -> None:
    worker = await _ready(s, jobs=1)
    for _ in range(2):
        await fail(s.conn, worker, "config", delay="0")
    assert await _state(s) == "closed"


@catches(
    "_circuit_after: of one sort", replace=("penstock._trouble(p_class)", "v_next.row_trouble")
)
async def a_wrong_setting_and_a_busy_provider_are_not_an_outage(s: Scene) -> None:
    worker = await _ready(s)
    await fail(s.conn, worker, "config", delay="1 hour")
    await fail(s.conn, worker, "overloaded", delay="1 hour")
    assert await _state(s) == "closed"


@catches(
    "_circuit_after: of now",
    replace=("p_started_at < v_next.changed_at", "false"),
    beside=["_circuit_after: overtaken"],
)
async def late_failures_of_a_past_outage_are_not_a_new_outage(s: Scene) -> None:
    worker = await _ready(s, jobs=12)
    old = await s.start(worker, limit=9)
    await noticed(s.conn)
    await fail(s.conn, worker, "unavailable")
    await s.clock.advance("1s")
    await factory.finish(s.conn, worker, await s.start(worker))
    await end(s.conn, worker, old, "unavailable")
    assert await _state(s) == "ramping"


@catches("_circuit_after: overtaken", replace=("p_started_at < v_next.answered_start", "false"))
async def hanging_calls_before_answered_ones_are_not_an_outage(s: Scene) -> None:
    """A closed circuit records an answer only every few seconds."""
    worker = await _ready(s, jobs=9, attempts=9)
    hung = await s.start(worker, limit=8)
    await s.clock.advance("6s")
    await factory.finish(s.conn, worker, await s.start(worker))
    await s.clock.advance("6s")
    await end(s.conn, worker, hung, "stalled")
    assert await _state(s) == "closed"


@catches("_opens: by the share")
async def a_provider_that_refuses_half_of_its_calls_keeps_its_circuit_closed(s: Scene) -> None:
    worker = await _ready(s, jobs=40)
    await s.conn.execute("update penstock.circuit set refused = 0.5")
    for _ in range(6):
        await fail(s.conn, worker, "overloaded")
    assert await _state(s) == "closed"


async def _ramp(s: Scene, *, allowed: int = 16, jobs: int = 20) -> int:
    """Return a circuit whose ramp has lasted for some time."""
    worker = await opened(s.conn, jobs=jobs, concurrency=100)
    await s.clock.advance("1s")
    await factory.finish(s.conn, worker, await s.start(worker))
    await s.conn.execute("update penstock.circuit set allowed = $1, refused = 0.5", allowed)
    return worker


@catches("_circuit_after: once a round")
async def the_refusals_of_one_round_lower_a_ramp_once(s: Scene) -> None:
    worker = await _ramp(s)
    await end(s.conn, worker, await s.start(worker, limit=4), "overloaded")
    assert (await circuit(s.conn))["allowed"] == 14


@catches("_is_steady: quiet")
async def a_ramp_with_refused_calls_continues(s: Scene) -> None:
    worker = await _ramp(s)
    await s.clock.advance("50s")
    await fail(s.conn, worker, "overloaded")
    await s.clock.advance("20s")
    await factory.recover(s.conn)
    assert await _state(s) == "ramping"


@catches("_pass_circuit: hangs in a ramp")
async def a_call_that_hangs_does_not_hold_the_ramp(s: Scene) -> None:
    worker = await _ramp(s, allowed=1)
    await s.start(worker)
    await s.clock.advance("11s")
    await s.start(worker)


@catches("_pass_circuit: hangs")
async def a_probe_that_hangs_does_not_hold_the_circuit(s: Scene) -> None:
    worker = await opened(s.conn)
    await s.clock.advance("1s")
    await s.start(worker)
    await s.clock.advance("11s")
    await s.start(worker)


async def _hung_probe(s: Scene) -> list[Row]:
    """Return the next probe after a hanging one of an account whose other job is next to start."""
    worker = await opened(s.conn, jobs=2)
    await s.conn.execute("select penstock.cancel_job(id) from penstock.job")
    for account in ("bad", "bad", "good"):
        await factory.submit(s.conn, account=account)
    await s.clock.advance("1s")
    [first] = await s.start(worker)
    assert first["account"] == "bad"
    await s.clock.advance("11s")
    return await s.start(worker)


@catches("_other_probe: another account")
async def the_next_probe_belongs_to_another_account(s: Scene) -> None:
    [probe] = await _hung_probe(s)
    assert probe["account"] == "good"


@catches("_other_probe: another lane")
async def the_next_probe_belongs_to_another_limited_account(s: Scene) -> None:
    await factory.plan(s.conn, concurrency=5)
    [probe] = await _hung_probe(s)
    assert probe["account"] == "good"


@catches("_apply_outcomes_to_circuits: half up")
async def a_failure_at_a_working_provider_counts(s: Scene) -> None:
    worker = await _ready(s)
    first = await s.start(worker)
    await end(s.conn, worker, first, "interrupted")
    assert await _failures(s, first[0]) == 1


@catches(
    "_apply_outcomes_to_circuits: odd",
    replace=("case when penstock._is_half_up(v_old.refused) then 100 else 10 end", "10"),
)
async def deferrals_at_a_half_available_provider_are_not_counted(s: Scene) -> None:
    worker = await _ready(s, jobs=1)
    await s.conn.execute("update penstock.job set isolated = 50")
    await s.conn.execute("update penstock.circuit set refused = 0.5")
    first = await s.start(worker)
    await end(s.conn, worker, first, "overloaded")
    assert await _failures(s, first[0]) == 0


@catches("_update_circuits: nobody waits", replace=("skip locked", ""))
async def an_answer_does_not_wait_for_a_locked_circuit(s: Scene) -> None:
    worker = await _ready(s)
    first = await s.start(worker)
    other, finisher = await s.connect(), await s.connect()
    async with other.transaction():
        await other.execute("select from penstock.circuit for no key update")
        await s.does_not_wait(finisher, factory.finish(finisher, worker, first))


@catches("_after_answer: by its probe")
async def a_call_from_before_the_outage_does_not_close_the_circuit(s: Scene) -> None:
    worker = await _ready(s)
    slow = await s.start(worker)
    await noticed(s.conn)
    await fail(s.conn, worker, "unavailable")
    await factory.finish(s.conn, worker, slow)
    assert await _state(s) == "open"


@catches("_apply_outcomes_to_circuits: circuit locked", replace=("for no key update", ""))
async def two_failures_at_once_are_two_in_a_row(s: Scene) -> None:
    worker = await _ready(s)
    first, second = await s.start(worker, limit=2)
    one, other = await s.connect(), await s.connect()
    async with one.transaction():
        await end(one, worker, [first], "overloaded")
        later = Step(other, end(other, worker, [second], "overloaded"))
        assert await later.waits(s.conn)
    await later
    assert await _state(s) == "open"


@catches("_apply_outcomes_to_circuits: an outage")
async def a_queue_that_must_wait_refunds_no_failure(s: Scene) -> None:
    worker = await _ready(s)
    first, second = await s.start(worker, limit=2)
    await end(s.conn, worker, [first], "interrupted")
    await end(s.conn, worker, [second], "rate_limited", after=5)
    assert await _failures(s, first) == 1


@catches("_uncount_failures: of the last minute")
async def an_old_failure_was_not_an_outage(s: Scene) -> None:
    worker = await _ready(s)
    first, second = await s.start(worker, limit=2)
    await end(s.conn, worker, [first], "interrupted")
    await s.clock.advance("61s")
    await end(s.conn, worker, [second], "unavailable")
    assert await _failures(s, first) == 1


@catches("_uncount_failures: three times", "_uncount_failures: these")
async def a_job_that_was_released_three_times_gets_a_failure(s: Scene) -> None:
    """A late failure of another job does not change that."""
    worker = await _ready(s)
    poison, late, other = await s.start(worker, limit=3)
    await s.conn.execute(
        "update penstock.job set withdrawn_failures = 3 where id = $1", poison["id"]
    )
    await end(s.conn, worker, [poison], "interrupted")
    await end(s.conn, worker, [other], "unavailable")
    assert await _failures(s, poison) == 1
    await end(s.conn, worker, [late], "interrupted")
    assert (await _failures(s, poison), await _failures(s, late)) == (1, 0)


@catches("_uncount_failures: a hundred times")
async def a_job_that_was_released_a_hundred_times_gets_a_failure(s: Scene) -> None:
    worker = await _ready(s)
    await s.conn.execute("update penstock.job set uncounted_failures = 100")
    late = await s.start(worker)
    await noticed(s.conn)
    await fail(s.conn, worker, "unavailable")
    await end(s.conn, worker, late, "interrupted")
    assert await _failures(s, late[0]) == 1


@catches("_pass_circuit: one probe")
async def one_job_is_the_probe_of_an_open_circuit(s: Scene) -> None:
    worker = await opened(s.conn)
    await s.clock.advance("1s")
    assert len(await factory.claim(s.conn, worker, limit=3)) == 1
    assert await factory.claim(s.conn, worker, limit=3) == []


@catches("_pass_circuit: not before", replace=("p_now < v_circuit.next_at", "false"))
async def a_claim_that_waited_while_the_probe_failed_gets_no_probe(s: Scene) -> None:
    """It began when a probe was due, and locks the gate when the next one is not due."""
    worker = await opened(s.conn)
    await s.clock.advance("1s")
    one, other = await s.connect(), await s.connect()
    async with one.transaction():
        probe = await factory.claim(one, worker)
        second = Step(other, factory.claim(other, worker))
        assert await second.waits(s.conn)
        await end(one, worker, probe, "unavailable")
    assert await second == []


@catches("_pass_circuit: by hand", beside=[NO_FIRST_CHECK])
async def a_queue_stopped_by_hand_has_no_probes(s: Scene) -> None:
    worker = await _ready(s)
    await s.conn.execute("select penstock.open_circuit('q')")
    await s.clock.advance("2h")
    assert await factory.claim(s.conn, worker) == []


@catches("_pass_circuit: waited", beside=[NO_FIRST_CHECK])
async def the_retry_delay_of_a_provider_is_observed(s: Scene) -> None:
    worker = await _ready(s)
    await fail(s.conn, worker, "rate_limited", after=5)
    await s.clock.advance("4s")
    assert await factory.claim(s.conn, worker) == []


@catches("_pass_circuit: ramp")
async def a_provider_that_has_just_recovered_gets_one_job(s: Scene) -> None:
    worker = await opened(s.conn, jobs=5)
    await s.clock.advance("1s")
    await factory.finish(s.conn, worker, await s.start(worker))
    assert len(await factory.claim(s.conn, worker, limit=4)) == 1
    assert await factory.claim(s.conn, worker, limit=4) == []


@catches(
    "_is_steady: its minute",
    replace=("p_circuit.changed_at <= p_now - interval '1 minute'", "true"),
)
async def a_ramp_gets_a_minute(s: Scene) -> None:
    worker = await opened(s.conn)
    await s.clock.advance("1s")
    await factory.finish(s.conn, worker, await s.start(worker))
    await s.clock.advance("59s")
    await factory.recover(s.conn)
    assert await _state(s) == "ramping"


@catches("_of_probes: no answer")
async def a_probe_that_was_not_begun_made_no_call(s: Scene) -> None:
    """The function is called directly: a finish calls it only after a timeout."""
    worker = await opened(s.conn)
    await s.clock.advance("1s")
    [probe] = await s.start(worker)
    outcomes = await s.value(
        "select outcomes from penstock._of_probes($1, $2, $3, null, null)",
        [probe["id"]],
        [probe["attempt"]],
        ["released"],
    )
    assert outcomes == ["released"]


@catches("_of_probes: a probe")
async def a_timed_out_call_from_before_the_outage_is_not_a_probe(s: Scene) -> None:
    worker = await _ready(s)
    slow = await s.start(worker)
    await noticed(s.conn)
    await fail(s.conn, worker, "unavailable")
    await factory.finish(s.conn, worker, slow, "timed_out")
    assert await _failures(s, slow[0]) == 1


@catches("_of_probes: this attempt")
async def the_late_outcome_of_an_older_attempt_is_not_the_probes(s: Scene) -> None:
    """The function is called directly: a report of an older attempt is stale in any case."""
    worker = await opened(s.conn)
    await s.clock.advance("1s")
    [probe] = await s.start(worker)
    outcomes = await s.value(
        "select outcomes from penstock._of_probes($1, $2, $3, null, null)",
        [probe["id"]],
        [probe["attempt"] - 1],
        ["timed_out"],
    )
    assert outcomes == ["timed_out"]


@catches("due_checks: once a second")
async def a_provider_is_checked_once_a_second(s: Scene) -> None:
    await opened(s.conn)
    checks = [
        await s.value("select address from penstock.due_checks('{q}')") is not None
        for _ in range(2)
    ]
    assert checks == [True, False]


@catches("report_check: came back")
async def a_provider_that_only_accepts_connections_gets_no_more_probes(s: Scene) -> None:
    worker = await opened(s.conn)
    await s.conn.execute("select penstock.report_check('q', true)")
    await fail(s.conn, worker, "unavailable")
    await s.conn.execute("select penstock.report_check('q', true)")
    assert await factory.claim(s.conn, worker) == []


async def _parked(s: Scene, account: str | None = None) -> Row:
    """Settle the last failure of a job, which may have been the provider's."""
    worker, row = await s.running(account=account, attempts=1)
    await end(s.conn, worker, [row], "interrupted", delay="0")
    assert await s.status(row["id"]) == "scheduled"
    return row


@catches("_requeue_jobs: last failure")
async def only_the_last_failure_waits_for_an_outage(s: Scene) -> None:
    await _parked(s)
    await factory.queue(s.conn, "other")
    job = await factory.submit(s.conn, "other")
    worker = await s.worker()
    await end(s.conn, worker, await s.start(worker, "other"), "interrupted", delay="0")
    assert await s.status(job) == "queued"


@catches("_fail_pending: its minute")
async def a_parked_job_gets_a_minute(s: Scene) -> None:
    row = await _parked(s)
    await s.clock.advance("59s")
    await factory.recover(s.conn)
    assert await s.status(row["id"]) == "scheduled"


# As if no job had attempts left: otherwise the finish skips jobs that have.
OUT_OF_ATTEMPTS = Edit("_fail_pending", "'retry'", "'failed'")


@catches("_fail_pending: last failure", beside=[OUT_OF_ATTEMPTS])
async def a_job_that_waits_for_its_next_attempt_is_not_failed(s: Scene) -> None:
    worker, row = await s.running()
    await end(s.conn, worker, [row], "interrupted", delay="30 seconds")
    await s.clock.advance("61s")
    await factory.recover(s.conn)
    assert await s.status(row["id"]) == "scheduled"


@catches("_fail_pending: lane held", replace=("penstock._try_lock_account(j.account_id)", "true"))
async def a_parked_job_of_a_locked_account_is_skipped(s: Scene) -> None:
    await factory.plan(s.conn, concurrency=1)
    row = await _parked(s, account="a")
    await s.clock.advance("61s")
    app, upkeep = await s.connect(), await s.connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        await s.does_not_wait(upkeep, factory.recover(upkeep))
        assert await s.status(row["id"]) == "scheduled"
    await factory.recover(s.conn)
    assert await s.status(row["id"]) == "failed"


@catches(
    "stage_due_jobs: last failure",
    raises=asyncpg.CheckViolationError,
    match="failure_pending_is_scheduled",
)
async def a_parked_job_does_not_start_again(s: Scene) -> None:
    row = await _parked(s)
    await s.clock.advance("61s")
    due = await factory.submit(s.conn, delay_seconds=1)
    await s.clock.advance("1s")
    started = await factory.claim(s.conn, await s.worker(), limit=2)
    assert [start["id"] for start in started] == [due]
    assert await s.status(row["id"]) == "scheduled"


@catches("_update_circuits: fence")
async def the_outcome_of_an_older_attempt_says_nothing_about_the_provider(s: Scene) -> None:
    worker = await _ready(s, jobs=1)
    await noticed(s.conn)
    [old] = await s.start(worker)
    await factory.finish(s.conn, worker, [old], "released")
    [new] = await s.start(worker)
    await s.conn.fetch(
        "select verdict from penstock.finish_jobs($1, $2, $3, $4, null, $5,"
        " p_effects => '{opens, null}')",
        worker,
        [old["id"], new["id"]],
        [old["attempt"], new["attempt"]],
        ["deferred", "succeeded"],
        [{"class": "unavailable", "message": "no"}, None],
    )
    assert await _state(s) == "closed"


@catches("_apply_outcomes_to_circuits: other trouble")
async def an_operator_sees_that_the_recovered_provider_refuses_the_key(s: Scene) -> None:
    worker = await opened(s.conn)
    await s.clock.advance("1s")
    await fail(s.conn, worker, "auth")
    assert await s.value("select class from penstock.alert") == "auth"


@catches("report_check: may be gone")
async def the_retry_delay_of_a_busy_provider_is_observed(s: Scene) -> None:
    worker = await _ready(s)
    for _ in range(2):
        await fail(s.conn, worker, "overloaded", after=30)
    await s.conn.execute("select penstock.report_check('q', true)")
    assert await factory.claim(s.conn, worker) == []


@catches("_count_isolated: ten times", replace=("j.isolated >= p_free", "true"))
async def ten_deferrals_among_answers_are_no_failures(s: Scene) -> None:
    await factory.queue(s.conn)
    worker, job = await s.worker(), await factory.submit(s.conn)
    for _ in range(5):
        assert await fail(s.conn, worker, "overloaded", delay="1 second") == job
        await factory.submit(s.conn)
        await factory.finish(s.conn, worker, await s.start(worker))
        await s.clock.advance("1s")
    assert (await factory.read(s.conn, job))["failures"] == 0
