"""The circuit: what opens it, which jobs are probes, how it closes, and that an outage is free."""

import asyncio
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.circuits import circuit, end, fail, noticed, opened
from support.clock import Clock


async def test_an_unreachable_provider_opens_the_circuit_and_costs_nothing(
    conn: asyncpg.Connection,
) -> None:
    """F5"""
    worker = await opened(conn, jobs=2)
    assert (await circuit(conn))["state"] == "open"
    assert await factory.claim(conn, worker) == []
    job = await conn.fetchrow("select * from penstock.job order by rank limit 1")
    assert job
    assert (job["status"], job["failures"], job["deferrals"]) == ("queued", 0, 1)


@pytest.mark.parametrize(
    ("classes", "state"),
    [
        (["unavailable"], "closed"),
        (["unavailable", "unavailable"], "open"),
        (["overloaded"], "closed"),
        (["overloaded", "overloaded"], "open"),
        (["provider_error", "interrupted"], "closed"),
        (["provider_error", "interrupted", "stalled"], "open"),
        (["rate_limited"], "open"),
        (["auth"], "closed"),
        (["auth", "auth"], "open"),
        (["quota", "quota"], "open"),
        (["auth", "unavailable"], "closed"),
        (["config"], "closed"),
        (["config", "config"], "open"),
    ],
)
async def test_which_failures_open_the_circuit(
    conn: asyncpg.Connection, classes: list[str], state: str
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 5)
    for cls in classes:
        # Delayed, so that each failure is of another job.
        await fail(conn, worker, cls, delay="1 hour")
    assert (await circuit(conn))["state"] == state


@pytest.mark.parametrize(("cls", "state"), [("provider_error", "closed"), ("config", "open")])
async def test_one_job_that_fails_repeatedly_opens_the_circuit_only_for_config(
    conn: asyncpg.Connection, clock: Clock, cls: str, state: str
) -> None:
    """The job may be at fault; but if it is the setting, an operator has to know."""
    await factory.queue(conn, attempts=10)
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit(conn)
    for n in range(4 if state == "closed" else 3):
        assert (await circuit(conn))["state"] == "closed", n
        await fail(conn, worker, cls, delay="1 second")
        await clock.advance("1s")
    assert (await circuit(conn))["state"] == state


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ("succeeded", None),
        ("failed", {"class": "invalid_request", "message": "too odd", "retryable": False}),
    ],
)
async def test_an_answer_between_two_failures_resets_their_count(
    conn: asyncpg.Connection, outcome: str, error: dict[str, object] | None
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 5)
    await fail(conn, worker, "overloaded", delay="1 hour")
    await factory.finish(conn, worker, await factory.claim(conn, worker), outcome, error=error)
    await fail(conn, worker, "overloaded", delay="1 hour")
    assert (await circuit(conn))["state"] == "closed"


async def test_other_queues_go_on(conn: asyncpg.Connection) -> None:
    worker = await opened(conn)
    await factory.queue(conn, "other")
    await factory.submit(conn, "other")
    assert len(await factory.claim(conn, worker, "other")) == 1


async def test_only_one_job_at_a_time_runs_as_the_probe(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await opened(conn)
    await clock.advance("1s")
    probe = await factory.claim(conn, worker, limit=10)
    assert len(probe) == 1
    assert await factory.claim(conn, worker, limit=10) == []
    await factory.finish(conn, worker, probe)
    assert (await circuit(conn))["state"] == "ramping"


async def test_two_claimers_never_both_get_a_probe(
    conn: asyncpg.Connection, clock: Clock, database: str
) -> None:
    """With real connections: the second waits for the first one's gate, and finds a probe."""
    worker = await opened(conn)
    await clock.advance("1s")
    other = await asyncpg.connect(database)
    async with conn.transaction():
        assert len(await factory.claim(conn, worker)) == 1
        second = asyncio.create_task(factory.claim(other, worker))
    assert await second == []
    await other.close()


async def test_after_the_probe_of_a_lost_worker_another_may_start(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await opened(conn)
    mortal = await factory.worker(conn)
    await clock.advance("1s")
    assert len(await factory.claim(conn, mortal)) == 1
    await clock.advance("30s")
    await factory.recover(conn)
    assert len(await factory.claim(conn, worker)) == 1


async def test_probes_come_after_1_2_4_and_at_most_60_seconds(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await opened(conn)
    waits = []
    for _ in range(8):
        seconds = 0
        while not (probe := await factory.claim(conn, worker)):
            await clock.advance("1s")
            seconds += 1
        waits.append(seconds)
        await end(conn, worker, probe, "unavailable")
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert await conn.fetchval("select sum(failures) from penstock.job") == 0
    assert await conn.fetchval("select sum(deferrals) from penstock.job") == 10


async def test_after_the_probe_one_more_may_run_with_each_success(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await opened(conn, jobs=20, concurrency=4)
    await clock.advance("1s")
    running = await factory.claim(conn, worker, limit=10)
    counts = []
    while (await circuit(conn))["state"] != "closed":
        await factory.finish(conn, worker, running)
        running = await factory.claim(conn, worker, limit=10)
        counts.append(len(running))
    assert counts == [1, 2, 4]


async def test_a_failure_while_it_ramps_up_opens_it_again(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await opened(conn, jobs=9)
    await clock.advance("1s")
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    for _ in range(4):
        await fail(conn, worker, "overloaded")
        assert (await circuit(conn))["state"] == "ramping", "it has refused calls before"
    await fail(conn, worker, "overloaded")
    assert (await circuit(conn))["state"] == "open"


async def test_a_call_that_was_under_way_does_not_close_it(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 3)
    slow = await factory.claim(conn, worker)
    await noticed(conn)
    await fail(conn, worker, "unavailable")
    await factory.finish(conn, worker, slow)
    assert (await circuit(conn))["state"] == "open"


async def test_failures_of_the_last_minute_are_uncounted_when_it_opens(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """F5: they may have been the outage."""
    await factory.queue(conn)
    worker = await factory.worker(conn, lease="100 days")
    old, young, late = await factory.submit_rows(conn, [{"kind": "q"}] * 3)
    await fail(conn, worker, "interrupted")
    await clock.advance("61s")
    await fail(conn, worker, "interrupted")
    await noticed(conn)
    await fail(conn, worker, "unavailable")
    assert (await factory.read(conn, old))["failures"] == 1
    uncounted = await factory.read(conn, young)
    assert (uncounted["failures"], uncounted["deferrals"]) == (0, 1)
    assert (await factory.read(conn, late))["failures"] == 0
    await clock.advance("1s")
    [probe] = await factory.claim(conn, worker)
    assert probe["id"] == young, "due at once, and first again"


async def test_a_provisional_failure_reported_after_it_opened_does_not_count(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    slow, _ = await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    started = await factory.claim(conn, worker)
    await noticed(conn)
    await fail(conn, worker, "unavailable")
    await end(conn, worker, started, "interrupted")
    assert (await factory.read(conn, slow))["failures"] == 0


async def test_the_last_provisional_failure_is_parked_for_a_minute_and_final_then(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn, attempts=1)
    worker = await factory.worker(conn, lease="100 days")
    job = await factory.submit(conn)
    await fail(conn, worker, "interrupted")
    assert await factory.status(conn, job) == "scheduled"
    await clock.advance("59s")
    await factory.recover(conn)
    assert await factory.claim(conn, worker) == []
    assert await factory.status(conn, job) == "scheduled"
    await clock.advance("2s")
    assert await factory.claim(conn, worker) == []
    await factory.recover(conn)
    finished = await factory.read(conn, job)
    assert (finished["status"], finished["failures"]) == ("failed", 1)
    assert finished["error"]["reason"] == "attempts_exhausted"
    assert finished["error"]["class"] == "interrupted"


async def test_a_parked_failure_does_not_count_when_the_circuit_opens(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn, attempts=1)
    worker = await factory.worker(conn, lease="100 days")
    job, _ = await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    await fail(conn, worker, "interrupted")
    await noticed(conn)
    await fail(conn, worker, "unavailable")
    await clock.advance("2m")
    await factory.recover(conn)
    [probe] = await factory.claim(conn, worker)
    assert probe["id"] == job
    await factory.finish(conn, worker, [probe])
    assert (await factory.read(conn, job))["failures"] == 0


@pytest.mark.one_version
async def test_a_prompt_that_crashes_the_model_fails_while_others_go_on(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """Each of its attempts looks like an outage: the next call finds no provider."""
    await factory.queue(conn, concurrency=1, attempts=3)
    worker = await factory.worker(conn, lease="100 days")
    poison, *others = await factory.submit_rows(conn, [{"kind": "q"}] * 40)
    down = False
    for _ in range(3_000):
        await factory.recover(conn)
        if await factory.status(conn, poison) == "failed":
            break
        for row in await factory.claim(conn, worker):
            if row["id"] == poison:
                await end(conn, worker, [row], "interrupted")
                down = True
            elif down:
                await end(conn, worker, [row], "unavailable")
                down = False
            else:
                await factory.finish(conn, worker, [row])
        await clock.advance("1s")
    finished = await factory.read(conn, poison)
    assert (finished["status"], finished["failures"]) == ("failed", 3)
    assert finished["attempt"] <= 8
    for other in others:
        assert (await factory.read(conn, other))["failures"] == 0
    assert await conn.fetchval("select count(*) from penstock.finished") >= 30


async def test_retry_after_pauses_the_queue_for_everyone(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit(conn)
    await fail(conn, worker, "rate_limited", after=7.5)
    other = await factory.worker(conn, "other", lease="100 days")
    await clock.advance("7s")
    assert await factory.claim(conn, other) == []
    assert await conn.fetchval(
        "select penstock._stopped_by(queue_id, now()) from penstock.job"
    ) == ("rate_limit")
    await clock.advance("1s")
    assert len(await factory.claim(conn, other)) == 1


async def test_the_longest_retry_after_counts(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    first, second = await factory.claim(conn, worker, limit=2)
    await end(conn, worker, [first], "rate_limited", after=5)
    await end(conn, worker, [second], "rate_limited", after=20)
    await clock.advance("19s")
    assert await factory.claim(conn, worker) == []
    await clock.advance("1s")
    assert len(await factory.claim(conn, worker)) == 1


@pytest.mark.parametrize("cls", ["auth", "quota"])
async def test_a_failure_that_an_operator_must_correct_pauses_the_queue_and_says_how(
    conn: asyncpg.Connection, clock: Clock, cls: str
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    await noticed(conn, cls)
    await fail(conn, worker, cls)
    assert await conn.fetchval(
        "select penstock._stopped_by(queue_id, now()) from penstock.job"
    ) == ("paused")
    alert = await conn.fetchrow("select * from penstock.alert")
    assert alert
    assert alert["class"] == cls
    assert "`penstock resume q`" in alert["message"]
    await clock.advance("14m")
    assert await factory.claim(conn, worker) == []
    await conn.execute("select penstock.resume_queue('q')")
    assert len(await factory.claim(conn, worker, limit=2)) == 2
    assert await conn.fetchval("select cleared_at from penstock.alert") is not None


async def test_without_an_operator_a_probe_starts_every_quarter_of_an_hour(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """A quota is renewed on the first of the month, when no operator is present."""
    await factory.queue(conn)
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    await noticed(conn, "quota")
    await fail(conn, worker, "quota")
    await clock.advance("15m")
    await fail(conn, worker, "quota")
    await clock.advance("14m")
    assert await factory.claim(conn, worker) == []
    await clock.advance("1m")
    assert len(await factory.claim(conn, worker)) == 1
    assert await conn.fetchval("select count(*) from penstock.alert") == 1


async def test_opened_by_hand_it_stays_so_until_closed_by_hand(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit_rows(conn, [{"kind": "q"}] * 3)
    running = await factory.claim(conn, worker)
    await conn.execute("select penstock.open_circuit('q', 'the model is moved')")
    await clock.advance("2h")
    assert await factory.claim(conn, worker) == []
    await factory.finish(conn, worker, running)
    assert (await circuit(conn))["state"] == "open"
    await conn.execute("select penstock.close_circuit('q')")
    assert len(await factory.claim(conn, worker, limit=5)) == 2


async def test_a_provider_that_accepts_connections_again_is_probed_at_once_and_only_once(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await opened(conn)
    for _ in range(5):
        await conn.execute("update penstock.circuit set tries = 6, next_at = penstock.clock()")
        await fail(conn, worker, "unavailable", address="10.0.0.1:80")
    check = "select address from penstock.due_checks('{q}')"
    assert await conn.fetchval(check) == "10.0.0.1:80"
    assert await conn.fetchval(check) is None, "once a second"
    await conn.execute("select penstock.report_check('q', true)")
    await fail(conn, worker, "unavailable")
    for _ in range(30):
        await clock.advance("1s")
        await conn.execute("select penstock.report_check('q', true)")
        assert await factory.claim(conn, worker) == []
    await conn.execute("select penstock.report_check('q', false)")
    await conn.execute("select penstock.report_check('q', true)")
    assert len(await factory.claim(conn, worker)) == 1


@pytest.mark.one_version
async def test_six_hours_of_outage_fail_nothing_charge_nothing_and_keep_the_order(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """F5: with the clock moved and 10,000 queued jobs; about one probe a minute."""
    await factory.queue(conn, concurrency=10)
    worker = await factory.worker(conn, lease="100 days")
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 10_000)
    running = await factory.claim(conn, worker, limit=10)
    await end(conn, worker, running[:5], "interrupted")
    await end(conn, worker, running[5:], "unavailable")
    probes = 0
    for _ in range(6 * 60 * 6):
        await clock.advance("10s")
        started = await factory.claim(conn, worker, limit=10)
        probes += len(started)
        if started:
            await end(conn, worker, started, "unavailable")
    await factory.recover(conn)
    assert 300 <= probes <= 6 * 60 + 10
    assert await conn.fetchval("select count(*) from penstock.finished") == 0
    served: list[UUID] = []
    for _ in range(12_000):
        started = await factory.claim(conn, worker, limit=10)
        if not started:
            await clock.advance("1s")
            if len(served) == len(jobs):
                break
            continue
        await factory.finish(conn, worker, started)
        served += [row["id"] for row in started]
    assert sorted(served) == sorted(jobs)
    assert await conn.fetchval("select count(*) from penstock.finished where failures > 0") == 0
    position = {job: n for n, job in enumerate(jobs)}
    # Ten may run at once, and the jobs of one claim have no order; one more: the last probe.
    assert len([n for n, job in enumerate(served) if abs(position[job] - n) > 10]) <= 1


@pytest.mark.one_version
async def test_one_job_that_the_provider_never_answers_delays_no_other_and_fails(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """A dead address in its payload, or a prompt longer than some proxy waits."""
    await factory.queue(conn, concurrency=1, attempts=3)
    worker = await factory.worker(conn, lease="100 days")
    odd, *_ = await factory.submit_rows(conn, [{"kind": "q"}] * 900)
    for second in range(900):
        await factory.recover(conn)
        for row in await factory.claim(conn, worker):
            if row["id"] == odd:
                await end(conn, worker, [row], "unavailable")
            else:
                await factory.finish(conn, worker, [row])
        await clock.advance("1s")
        if await factory.status(conn, odd) == "failed":
            break
        served = await conn.fetchval("select count(*) from penstock.finished")
        assert served >= 0.8 * second - 3, "the others go on"
    finished = await factory.read(conn, odd)
    assert (finished["status"], finished["failures"]) == ("failed", 3)
    assert finished["attempt"] <= 14


async def test_a_job_whose_key_alone_is_refused_does_not_keep_the_circuit_open(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """It is next to start, and would be every probe."""
    await factory.queue(conn)
    worker = await factory.worker(conn, lease="100 days")
    odd, *others = await factory.submit_rows(conn, [{"kind": "q"}] * 4)
    for _ in range(8):
        for row in await factory.claim(conn, worker, limit=5):
            if row["id"] == odd:
                await end(conn, worker, [row], "auth")
            else:
                await factory.finish(conn, worker, [row])
        await clock.advance("16m")
    for other in others:
        assert await factory.status(conn, other) == "succeeded"


@pytest.mark.one_version
async def test_most_of_a_steady_capacity_of_the_provider_is_used(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """It accepts 10 calls at once, of 2 s each, and asks to wait a second if there are more."""
    await factory.queue(conn, concurrency=40)
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit_rows(conn, [{"kind": "q"}] * 2_000)
    inside: list[factory.Row] = []
    served = 0
    for second in range(240):
        started = await factory.claim(conn, worker, limit=40)
        accepted, refused = started[: 10 - len(inside)], started[10 - len(inside) :]
        if refused:
            await end(conn, worker, refused, "rate_limited", after=1)
        inside += accepted
        if second % 2:
            await factory.finish(conn, worker, inside)
            served, inside = served + len(inside), []
        await clock.advance("1s")
    await factory.finish(conn, worker, inside)
    assert served >= 0.5 * 10 * 240 / 2


async def test_failures_of_calls_from_before_the_ramp_do_not_end_it(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn, concurrency=40)
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit_rows(conn, [{"kind": "q"}] * 60)
    old = await factory.claim(conn, worker, limit=39)
    await noticed(conn)
    await fail(conn, worker, "unavailable")
    await clock.advance("1s")
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    assert (await circuit(conn))["state"] == "ramping"
    assert len(await factory.claim(conn, worker, limit=40)) == 1
    await end(conn, worker, old[:5], "stalled")
    assert (await circuit(conn))["state"] == "ramping"


async def test_a_probe_that_times_out_has_failed_but_does_not_count_yet_for_the_job(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    worker = await opened(conn, attempts=1)
    await clock.advance("1s")
    probe = await factory.claim(conn, worker)
    before = (await circuit(conn))["next_at"]
    await factory.finish(conn, worker, probe, "timed_out")
    row = await circuit(conn)
    assert (row["state"], row["tries"]) == ("open", 1)
    assert row["next_at"] > before
    shown = await factory.read(conn, probe[0]["id"])
    assert (shown["status"], shown["failures"]) == ("scheduled", 0)


async def test_upkeep_closes_a_ramp_without_jobs(conn: asyncpg.Connection, clock: Clock) -> None:
    worker = await opened(conn, jobs=2, concurrency=40)
    await clock.advance("1s")
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    assert await conn.fetch("select * from penstock.list_alerts()") == []
    await clock.advance("61s")
    await factory.recover(conn)
    assert (await circuit(conn))["state"] == "closed"


async def test_alerts_are_kept_for_ninety_days(conn: asyncpg.Connection, clock: Clock) -> None:
    await opened(conn)
    await conn.execute("select penstock.close_circuit('q')")
    for days, kept in (("89d", 1), ("2d", 0)):
        await clock.advance(days)
        await factory.prune(conn)
        assert await conn.fetchval("select count(*) from penstock.alert") == kept


async def test_jobs_of_a_stopped_queue_expire(conn: asyncpg.Connection, clock: Clock) -> None:
    await factory.queue(conn)
    await conn.execute("select penstock.open_circuit('q')")
    job = await factory.submit(conn, expires_seconds=5)
    await clock.advance("6s")
    await factory.recover(conn)
    assert (await factory.read(conn, job))["error"]["reason"] == "expired"


@pytest.mark.one_version
async def test_a_provider_that_interrupts_its_calls_for_hours_fails_no_job_either(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """F5: it accepts the calls and dies in the middle of each."""
    worker = await opened(conn, jobs=5, attempts=2)
    probes = 0
    for _ in range(6 * 60):
        await clock.advance("1m")
        await factory.recover(conn)
        started = await factory.claim(conn, worker)
        probes += len(started)
        await end(conn, worker, started, "interrupted")
    assert probes > 100
    assert await conn.fetchval("select count(*) from penstock.job where failures = 0") == 5
