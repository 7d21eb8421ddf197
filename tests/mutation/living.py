"""Guards of liveness.sql: what waits for a good reason is not reported as stuck."""

from mutation.scene import Scene, catches
from support import factory
from support.circuits import circuit, opened
from support.liveness import RULES, accept, beat, found, passes, standing


async def _quiet(s: Scene, worker: int, seconds: int = 20) -> None:
    """Nothing is found after so much time in which the worker would take a job."""
    await accept(s.conn, s.clock, worker, seconds)
    assert await found(s.conn) == []


@catches("_accepted_kinds: for long")
async def a_worker_that_has_just_got_a_free_slot_may_take_a_moment(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await standing(s.conn, accepting=[])
    job = await factory.submit(s.conn)
    await passes(s.conn, s.clock, 20)
    assert await found(s.conn) == []
    await _quiet(s, worker, 9)
    await accept(s.conn, s.clock, worker, 6)
    assert await found(s.conn) == [(RULES["start"], str(job))]


@catches("_accepted_kinds: beats")
@catches("beat_worker: gap", replace=("then", "or true then"))
async def a_worker_that_was_cut_off_says_nothing(s: Scene) -> None:
    """Frozen, or out of reach, shorter than its lease; afterwards it has as long as any other."""
    await factory.queue(s.conn)
    worker = await standing(s.conn)
    await s.conn.execute("update penstock.worker set lease = '30 seconds'")
    await factory.submit(s.conn)
    await passes(s.conn, s.clock, 16)
    assert await found(s.conn) == []
    await beat(s.conn, worker)
    assert await found(s.conn) == []


@catches("_oldest_startable: in time")
async def a_job_that_is_too_late_is_upkeeps(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await standing(s.conn)
    await factory.submit(s.conn, expires_seconds=15)
    await _quiet(s, worker)


@catches("_oldest_startable: account limit")
async def an_account_at_its_limit_waits(s: Scene) -> None:
    """Another queue's jobs have filled it, so its lane here is still open."""
    await factory.queue(s.conn)
    await factory.queue(s.conn, "other")
    await factory.plan(s.conn, concurrency=1)
    worker = await standing(s.conn)
    await factory.submit_rows(s.conn, [{"kind": kind, "account": "a"} for kind in ("q", "other")])
    await s.start(worker, "other")
    assert await s.value("select bool_and(open) from penstock.lane where waiting > 0")
    await _quiet(s, worker)


@catches("_oldest_startable: waits for long")
async def a_job_may_wait_a_moment(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await standing(s.conn)
    await accept(s.conn, s.clock, worker, 20)
    await factory.submit(s.conn)
    assert await found(s.conn) == []


@catches("_oldest_startable: account locked", "check_liveness: lane locked")
async def an_account_that_an_app_holds_is_passed_over(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    worker = await standing(s.conn)
    await factory.submit(s.conn, account="a")
    await factory.submit(s.conn, account="a", delay_seconds=5)
    app = await s.connect()
    async with app.transaction():
        await app.execute("select from penstock.account where name = 'a' for no key update")
        await _quiet(s, worker)
    assert len(await found(s.conn)) == 2


@catches("_oldest_startable: account moved")
async def an_account_whose_slot_is_free_since_a_moment_may_wait(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.queue(s.conn, "other")
    await factory.plan(s.conn, concurrency=1)
    worker = await standing(s.conn)
    await factory.submit_rows(s.conn, [{"kind": kind, "account": "a"} for kind in ("other", "q")])
    started = await s.start(worker, "other")
    await accept(s.conn, s.clock, worker, 20)
    await factory.finish(s.conn, worker, started)
    assert await found(s.conn) == []


@catches("check_liveness: stopped", "check_liveness: paused")
async def a_paused_queue_waits(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await standing(s.conn)
    await factory.submit(s.conn)
    await factory.submit(s.conn, delay_seconds=5)
    await s.conn.execute("select penstock.pause_queue('q')")
    await _quiet(s, worker)


async def _unavailable_provider(s: Scene) -> int:
    """Start a worker, and a queue whose provider is unavailable."""
    worker = await opened(s.conn)
    await s.conn.execute("update penstock.worker set locks = true")
    return worker


@catches("check_liveness: no probe while paused")
async def a_paused_queue_needs_no_probe(s: Scene) -> None:
    worker = await _unavailable_provider(s)
    await s.conn.execute("select penstock.pause_queue('q')")
    await _quiet(s, worker)


@catches("check_liveness: probe due", "check_liveness: open")
async def waiting_for_an_unavailable_provider_is_no_fault(s: Scene) -> None:
    worker = await _unavailable_provider(s)
    await factory.submit(s.conn, delay_seconds=5)
    await s.conn.execute("update penstock.circuit set next_at = penstock.clock() + '1 minute'")
    await _quiet(s, worker, 30)


@catches("check_liveness: probe runs")
async def waiting_for_a_running_probe_is_no_fault(s: Scene) -> None:
    """It began longer ago than the limit for reports."""
    worker = await _unavailable_provider(s)
    await s.clock.advance("2s")
    [row] = await s.start(worker)
    assert (await circuit(s.conn))["probe_job"] == row["id"]
    await _quiet(s, worker, 30)


@catches("check_liveness: ramp")
async def a_ramp_starts_only_a_few_jobs(s: Scene) -> None:
    worker = await _unavailable_provider(s)
    await s.clock.advance("2s")
    await factory.finish(s.conn, worker, await s.start(worker))
    state = await circuit(s.conn)
    assert state["state"] == "ramping"
    await s.start(worker, limit=state["allowed"])
    await _quiet(s, worker, 30)


@catches("check_liveness: limits")
async def a_full_queue_waits(s: Scene) -> None:
    worker, _ = await s.running(concurrency=1)
    await s.conn.execute("update penstock.worker set locks = true")
    await factory.submit(s.conn)
    await _quiet(s, worker)


@catches("check_liveness: so for long")
async def a_queue_that_was_just_full_or_paused_may_take_a_moment(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await standing(s.conn)
    await factory.submit(s.conn)
    await s.conn.execute("select penstock.edit_queue('q', $1)", {"concurrency": 5})
    await accept(s.conn, s.clock, worker, 20)
    await s.conn.execute("update penstock.gate set rate_next_at = penstock.clock()")
    assert await found(s.conn) == []


@catches("check_liveness: moved")
async def a_busy_queue_starts_every_job_in_its_turn(s: Scene) -> None:
    """One slot, jobs of three seconds each, and many waiting jobs: the slot is often free."""
    await factory.queue(s.conn, concurrency=1)
    worker = await standing(s.conn)
    await factory.submit_rows(s.conn, [{"kind": "q"}] * 9)
    for _ in range(8):
        started = await s.start(worker)
        await accept(s.conn, s.clock, worker, 3)
        await factory.finish(s.conn, worker, started)
        assert await found(s.conn) == []


@catches("check_liveness: stands")
async def a_new_worker_gets_a_moment_for_upkeep(s: Scene) -> None:
    await s.running(timeout_seconds=5)
    await s.conn.execute("update penstock.worker set stopped_at = penstock.clock(), locks = true")
    await passes(s.conn, s.clock, 60)
    await standing(s.conn, "new")
    assert await found(s.conn) == []


@catches("check_liveness: nothing refused")
async def a_ramp_lasts_while_calls_are_refused(s: Scene) -> None:
    worker = await _unavailable_provider(s)
    await passes(s.conn, s.clock, 2)
    await factory.finish(s.conn, worker, await s.start(worker))
    assert (await circuit(s.conn))["state"] == "ramping"
    await passes(s.conn, s.clock, 60)
    await s.conn.execute("update penstock.circuit set eased_at = penstock.clock()")
    await passes(s.conn, s.clock, 30)
    assert await found(s.conn) == []


@catches("check_liveness: others are sent")
async def a_webhook_waits_while_others_are_sent(s: Scene) -> None:
    await factory.queue(s.conn)
    await s.conn.execute(
        "select penstock.declare_kind('q', 'q', $1)", {"webhook": "http://app.example/hook"}
    )
    worker = await standing(s.conn)
    for _ in range(2):
        await factory.submit(s.conn)
        await factory.finish(s.conn, worker, await s.start(worker))
    await s.conn.fetch("select * from penstock.claim_deliveries(1, interval '1 minute')")
    await _quiet(s, worker)


async def _cancelled(s: Scene, kinds: list[str]) -> None:
    """Return a finished job with an on_finish callback, and a worker with these kinds."""
    await factory.queue(s.conn)
    await s.conn.execute("select penstock.declare_kind('q', 'q', $1)", {"has_on_finish": True})
    await standing(s.conn, kinds=kinds)
    job = await factory.submit(s.conn)
    await s.conn.execute("select penstock.cancel_job($1)", job)
    await passes(s.conn, s.clock, 20)


@catches("check_liveness: handler")
async def an_on_finish_callback_waits_for_a_worker_with_its_kind(s: Scene) -> None:
    await _cancelled(s, ["other"])
    assert await found(s.conn) == []


@catches("check_liveness: callback runs")
async def a_long_on_finish_callback_is_not_due(s: Scene) -> None:
    await _cancelled(s, ["q"])
    app = await s.connect()
    async with app.transaction():
        await app.execute("select * from penstock.take_on_finish('{q}')")
        assert await found(s.conn) == []
    # It is done.
    assert await found(s.conn) == []
