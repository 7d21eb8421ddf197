"""Guards of position.sql, eta.sql, waiting_for.sql, staleness.sql and measure.sql."""

from typing import Any

from mutation.scene import Scene, catches
from support import factory


async def _read(s: Scene, job: Any) -> dict[str, Any]:
    return await factory.read(s.conn, job)


@catches("_jobs_ahead: not itself", replace=("t.id < p_job.id", "true"))
async def a_job_is_not_ahead_of_itself(s: Scene) -> None:
    await factory.queue(s.conn)
    assert (await _read(s, await factory.submit(s.conn)))["position"] == 1


@catches("_count_queued: not itself")
async def a_job_is_not_ahead_of_itself_in_its_lane(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    assert (await _read(s, await factory.submit(s.conn, account="a")))["position"] == 1


async def _closed_lane(s: Scene, **options: Any) -> None:
    """Ten jobs of an account at its limit; the job of another account is next."""
    await factory.queue(s.conn, **options)
    await factory.plan(s.conn, concurrency=1)
    worker = await s.worker()
    await factory.submit_rows(s.conn, [{"kind": "q", "account": "full"}] * 11)
    await s.start(worker)
    job = await factory.submit(s.conn, account="free")
    assert (await _read(s, job))["position"] == 1


@catches("_jobs_ahead: open")
async def a_job_that_cannot_start_is_not_ahead(s: Scene) -> None:
    await _closed_lane(s)


@catches("_fair_ahead: open")
async def a_job_that_cannot_start_is_not_ahead_in_a_fair_queue_either(s: Scene) -> None:
    await _closed_lane(s, order="fair")


@catches("_live_workers: not gone")
async def a_worker_that_has_stopped_starts_nothing(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await s.worker()
    job = await factory.submit(s.conn)
    await s.conn.execute("select penstock.stop_worker($1)", worker)
    assert (await _read(s, job))["waiting_for"] == "no_worker"


@catches("_live_workers: beats")
async def a_worker_that_is_silent_starts_nothing(s: Scene) -> None:
    await factory.queue(s.conn)
    await s.worker(lease="15 seconds")
    job = await factory.submit(s.conn)
    await s.clock.advance("16s")
    assert (await _read(s, job))["waiting_for"] == "no_worker"


@catches("_service: serves")
async def a_worker_of_another_queue_starts_nothing_in_this_one(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.worker(s.conn, queues=["other"])
    job = await factory.submit(s.conn)
    assert (await _read(s, job))["waiting_for"] == "no_worker"


@catches("_backs_off: not by its wish")
async def a_job_that_snoozes_does_not_back_off(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "snoozed", delay="1 minute")
    assert (await _read(s, row["id"]))["waiting_for"] is None


@catches(
    "_waiting: not in an outage",
    replace=("v_facts.stop is null and v_ahead.jobs is not null", "true"),
)
async def a_paused_queue_has_no_eta(s: Scene) -> None:
    await factory.queue(s.conn)
    await s.worker()
    job = await factory.submit(s.conn)
    assert (await _read(s, job))["eta_seconds"] == 0
    await s.conn.execute("select penstock.pause_queue('q', null)")
    assert (await _read(s, job))["eta_seconds"] is None


@catches("_staleness: started")
async def a_job_between_attempts_is_not_stale(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "retry", delay="1 hour")
    await s.clock.advance("4m")
    assert (await _read(s, row["id"]))["staleness"] is None


@catches("_staleness: for long")
async def a_job_that_has_just_begun_is_not_stale(s: Scene) -> None:
    _, row = await s.running()
    assert (await _read(s, row["id"]))["staleness"] is None


@catches("measure_waits: ran to its end")
async def a_cancelled_attempt_does_not_count_as_a_duration(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "cancelled")
    await s.conn.execute("select penstock.measure_waits('0')")
    assert await s.value("select count(*) from penstock.pace") == 0


@catches("measure_waits: not stopped")
async def a_paused_queue_that_runs_empty_does_not_measure_slots(s: Scene) -> None:
    await s.running()
    await factory.submit(s.conn)
    await s.conn.execute("select penstock.pause_queue('q', null)")
    await s.conn.execute("select penstock.measure_waits('0')")
    assert await s.value("select count(*) from penstock.flow") == 0


@catches("measure_waits: not so soon")
async def only_one_of_two_workers_measures(s: Scene) -> None:
    await s.conn.execute("select penstock.measure_waits('0')")
    assert not await s.value("select penstock.measure_waits()")
