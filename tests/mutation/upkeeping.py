"""Guards of recover.sql, workers.sql and retry.sql: lost workers, and jobs that are retried."""

from mutation.scene import Scene, catches
from support import factory
from support.interleave import Step


@catches("_expire_leases: lease over")
async def a_worker_with_heartbeats_is_not_declared_lost(s: Scene) -> None:
    await s.running()
    assert await factory.recover(s.conn) == []


@catches("_expire_leases: once")
async def a_lost_worker_is_removed_after_a_while(s: Scene) -> None:
    """The time of its loss does not change with every pass."""
    await s.worker(lease="15 seconds")
    for _ in range(3):
        await s.clock.advance("6m")
        await factory.recover(s.conn)
    assert await s.value("select cleared_at from penstock.worker") is not None


async def _die_with(s: Scene, jobs: int, *, passes: int = 0) -> list[str]:
    """Return the outcomes of a worker's jobs; with passes of upkeep after its first job."""
    await factory.queue(s.conn)
    worker = await s.worker(lease="15 seconds")
    await factory.submit_rows(s.conn, [{"kind": "q"}] * jobs)
    await s.start(worker)
    for _ in range(passes):
        await factory.recover(s.conn)
    if jobs > 1:
        await s.start(worker, limit=jobs - 1)
    await s.clock.advance("30s")
    return [row["outcome"] for row in await factory.recover(s.conn)]


@catches("_recoverable: alone", replace=("w.lost_jobs > 1", "false"))
async def which_of_two_jobs_killed_their_worker_is_not_known(s: Scene) -> None:
    assert await _die_with(s, 2) == ["lost_with_others"] * 2


@catches("_expire_leases: gone")
async def the_jobs_of_a_worker_are_counted_only_when_it_is_lost(s: Scene) -> None:
    assert await _die_with(s, 2, passes=1) == ["lost_with_others"] * 2


@catches("_expire_leases: counted once")
async def the_jobs_of_a_lost_worker_are_not_counted_again(s: Scene) -> None:
    """One of its two jobs is released; the other one, locked by an app, is no only suspect."""
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    worker = await s.worker(lease="15 seconds")
    for account in ("a", None):
        await factory.submit(s.conn, account=account)
    await s.start(worker, limit=2)
    await s.clock.advance("30s")
    app = await s.connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        assert [row["outcome"] for row in await factory.recover(s.conn)] == ["lost_with_others"]
    assert [row["outcome"] for row in await factory.recover(s.conn)] == ["lost_with_others"]


@catches("_recoverable: gone")
async def the_jobs_of_a_living_worker_are_not_recovered(s: Scene) -> None:
    await s.running()
    assert await factory.recover(s.conn) == []


@catches(
    "_recoverable: in good order",
    replace=("w.stopped_at is not null then 'released'", "false then ''"),
)
async def a_worker_that_stopped_releases_its_jobs_without_a_failure(s: Scene) -> None:
    worker, row = await s.running()
    await s.conn.execute("select penstock.stop_worker($1)", worker)
    assert [row["outcome"] for row in await factory.recover(s.conn)] == ["released"]
    assert (await factory.read(s.conn, row["id"]))["recovery"]["count"] == 0


@catches("_recoverable: cancel asked")
async def a_dispatched_job_is_not_cancelled_without_a_request(s: Scene) -> None:
    await s.awaiting()
    assert await factory.recover(s.conn) == []


@catches("_recoverable: grace")
async def a_worker_has_time_to_cancel_in_good_order(s: Scene) -> None:
    _, row = await s.running()
    await s.conn.execute("select penstock.cancel_job($1)", row["id"])
    assert await factory.recover(s.conn) == []
    await s.clock.advance("11s")
    assert [row["outcome"] for row in await factory.recover(s.conn)] == ["cancelled"]


@catches("_recoverable: over its deadline")
async def a_job_with_time_left_is_not_timed_out(s: Scene) -> None:
    await s.running()
    await s.clock.advance("1m")
    assert await factory.recover(s.conn) == []


@catches("_recoverable: passed over", replace=("penstock._try_lock_account(c.account_id)", "true"))
async def a_locked_job_takes_no_slot_in_a_pass(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    worker = await s.worker()
    held = await factory.submit(s.conn, account="a")
    await s.start(worker)
    await s.clock.advance("10s")
    free = await factory.submit(s.conn)
    await s.start(worker)
    await s.clock.advance("10m")
    app = await s.connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        rows = await s.conn.fetch("select job_id from penstock.recover_jobs(1)")
        assert [row["job_id"] for row in rows] == [free]
    assert [row["job_id"] for row in await factory.recover(s.conn)] == [held]


@catches("recover_jobs: after a while")
async def a_claim_that_commits_after_its_worker_was_given_up_is_recovered(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await s.worker(lease="15 seconds")
    job = await factory.submit(s.conn)
    claimer = await s.connect()
    async with claimer.transaction():
        await factory.claim(claimer, worker)
        await s.clock.advance("30s")
        assert await factory.recover(s.conn) == []
    assert [row["job_id"] for row in await factory.recover(s.conn)] == [job]


@catches("recover_jobs: holds nothing")
async def a_lost_worker_is_not_removed_while_it_has_a_job(s: Scene) -> None:
    await factory.queue(s.conn, timeout_seconds=86_400)
    await factory.plan(s.conn, concurrency=1)
    worker = await s.worker(lease="15 seconds")
    job = await factory.submit(s.conn, account="a")
    await s.start(worker)
    app = await s.connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        for _ in range(2):
            await s.clock.advance("11m")
            assert await factory.recover(s.conn) == []
    assert [row["job_id"] for row in await factory.recover(s.conn)] == [job]


@catches("beat_worker: not lost")
async def a_lost_worker_stays_lost(s: Scene) -> None:
    worker = await s.worker(lease="15 seconds")
    await s.clock.advance("30s")
    await factory.recover(s.conn)
    assert await s.value("select penstock.beat_worker($1)", worker) is False


@catches("stop_worker: once")
async def a_worker_stops_once(s: Scene) -> None:
    worker = await s.worker()
    await s.conn.execute("select penstock.stop_worker($1)", worker)
    first = await s.value("select stopped_at from penstock.worker")
    await s.clock.advance("1m")
    await s.conn.execute("select penstock.stop_worker($1)", worker)
    assert await s.value("select stopped_at from penstock.worker") == first


@catches("stop_worker: not lost")
async def a_lost_worker_is_not_redeemed_by_stopping(s: Scene) -> None:
    """An app locks its job while it is declared lost, so that it still has it when it stops."""
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    worker = await s.worker(lease="15 seconds")
    await factory.submit(s.conn, account="a")
    await s.start(worker)
    await s.clock.advance("30s")
    app = await s.connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        await factory.recover(s.conn)
    await s.conn.execute("select penstock.stop_worker($1)", worker)
    assert [row["outcome"] for row in await factory.recover(s.conn)] == ["lost"]


@catches("retry_job: scheduled")
async def a_running_job_is_not_retried_by_hand(s: Scene) -> None:
    _, row = await s.running()
    with factory.refused(409, "job_not_finished", "id"):
        await s.conn.execute("select penstock.retry_job($1)", row["id"])


@catches("retry_job: one click", replace=("for no key update", ""))
async def two_clicks_at_once_make_one_job(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "failed")
    one, other = await s.connect(), await s.connect()
    async with one.transaction():
        await one.execute("select penstock.retry_job($1)", row["id"])
        second = Step(other, other.execute("select penstock.retry_job($1)", row["id"]))
        await second.waits(s.conn)
    await second
    assert await s.value("select count(*) from penstock.job") == 1


@catches(
    "retry_job: once",
    replace=("exists (select from penstock.job j where j.id = v_old.retried_by)", "false"),
)
async def a_second_click_finds_the_job_of_the_first(s: Scene) -> None:
    worker, row = await s.running()
    await factory.finish(s.conn, worker, [row], "failed")
    for _ in range(2):
        await s.conn.execute("select penstock.retry_job($1)", row["id"])
    assert await s.value("select count(*) from penstock.job") == 1


@catches("retry_job: its own", replace=("not v_new.deduplicated", "true"))
async def another_job_with_its_key_is_not_its_retry(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await s.worker()
    old = await factory.submit(s.conn, dedupe_key="k")
    await factory.finish(s.conn, worker, await s.start(worker), "failed")
    twin = await factory.submit(s.conn, dedupe_key="k")
    answer = await s.value("select penstock.retry_job($1)", old)
    assert (answer["id"], answer["deduplicated"]) == (str(twin), True)
    assert (await factory.read(s.conn, old))["retried_by"] is None
