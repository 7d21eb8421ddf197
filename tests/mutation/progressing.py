"""Guards of progress.sql, on_finish.sql, and of one job claimed by its id."""

from typing import Any
from uuid import UUID

import asyncpg

from mutation.scene import Scene, catches
from support import factory
from support.factory import Row
from support.interleave import Step


async def _report(s: Scene, worker: int, job: UUID, attempt: int) -> str:
    verdict: str = await s.value(
        "select verdict from penstock.report_progress($1, array[$2::uuid], array[$3::int],"
        " array['STAGE'], null, null)",
        worker,
        job,
        attempt,
    )
    return verdict


async def _stage(s: Scene, job: UUID) -> str | None:
    stage: str | None = await s.value("select stage from penstock.job where id = $1", job)
    return stage


async def _append(s: Scene, worker: int, job: UUID, attempt: int) -> int:
    added: int = await s.value(
        "select penstock.append_chunks($1, array[$2::uuid], array[$3::int], array[1],"
        " array['\"word\"'::jsonb])",
        worker,
        job,
        attempt,
    )
    return added


async def _started_again(s: Scene, worker: int, row: Row) -> Row:
    """Start the second attempt of a job, by the same worker."""
    await factory.finish(s.conn, worker, [row], "released")
    [again] = await s.start(worker)
    return again


@catches("report_progress: fence")
async def an_older_attempt_reports_nothing_about_a_later_one(s: Scene) -> None:
    """L3"""
    worker, row = await s.running()
    await _started_again(s, worker, row)
    assert await _report(s, worker, row["id"], row["attempt"]) == "stale"
    assert await _stage(s, row["id"]) is None


@catches("report_progress: owner", replace=("j.worker_id = p_worker", "true"))
async def a_worker_reports_nothing_about_another_workers_attempt(s: Scene) -> None:
    """L3"""
    _, row = await s.running()
    stranger = await s.worker()
    assert await _report(s, stranger, row["id"], row["attempt"]) == "stale"
    assert await _stage(s, row["id"]) is None


@catches("keep_step: owner", replace=("v_verdict = 'done'", "true"))
async def a_step_of_a_settled_attempt_is_not_kept(s: Scene) -> None:
    """L3: otherwise the later attempt would use the result of an outdated one."""
    worker, row = await s.running()
    await _started_again(s, worker, row)
    verdict = await s.value(
        "select penstock.keep_step($1, $2, $3, 'rubric', '7')", worker, row["id"], row["attempt"]
    )
    assert verdict == "stale"
    assert await s.value("select count(*) from penstock.step") == 0


@catches("append_chunks: fence")
async def an_older_attempt_emits_nothing(s: Scene) -> None:
    worker, row = await s.running()
    await _started_again(s, worker, row)
    assert await _append(s, worker, row["id"], row["attempt"]) == 0


@catches("append_chunks: owner")
async def a_worker_emits_nothing_for_another_workers_attempt(s: Scene) -> None:
    _, row = await s.running()
    stranger = await s.worker()
    assert await _append(s, stranger, row["id"], row["attempt"]) == 0


async def _alone(conn: asyncpg.Connection, worker: int, row: Row, attempt: int = 1) -> Any:
    return await conn.fetchval(
        "select penstock.mark_only_suspect($1, $2, $3)", worker, row["id"], attempt
    )


@catches("mark_only_suspect: only one")
async def a_worker_runs_one_suspect_at_a_time(s: Scene) -> None:
    worker, row = await s.running()
    await factory.submit(s.conn)
    [other] = await s.start(worker)
    assert await _alone(s.conn, worker, row)
    assert not await _alone(s.conn, worker, other)


@catches("mark_only_suspect: one by one", replace=("v_worker_is_locked", "false"))
async def a_worker_runs_one_suspect_even_if_two_ask_at_once(s: Scene) -> None:
    worker, row = await s.running()
    await factory.submit(s.conn)
    [other] = await s.start(worker)
    first, second = await s.connect(), await s.connect()
    async with first.transaction():
        assert await _alone(first, worker, row)
        step: Step[Any] = Step(second, _alone(second, worker, other))
        await step.waits(s.conn)
    assert not await step


@catches("mark_only_suspect: fence")
async def an_older_attempt_is_no_suspect(s: Scene) -> None:
    worker, row = await s.running()
    await _started_again(s, worker, row)
    assert not await _alone(s.conn, worker, row)


@catches("mark_only_suspect: owner")
async def another_workers_attempt_is_not_this_workers_suspect(s: Scene) -> None:
    _, row = await s.running()
    assert not await _alone(s.conn, await s.worker(), row)


@catches("_recoverable: suspect", replace=("and not j.only_suspect", ""))
async def a_suspect_gets_a_failure_although_others_died_with_it(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await s.worker(lease="15 seconds")
    await factory.submit_rows(s.conn, [{"kind": "q"}] * 2)
    [suspect, other] = await s.start(worker, limit=2)
    assert await _alone(s.conn, worker, suspect)
    await s.clock.advance("30s")
    found = {row["job_id"]: row["outcome"] for row in await factory.recover(s.conn)}
    assert found == {suspect["id"]: "lost", other["id"]: "lost_with_others"}


@catches(
    "recover_jobs: grace",
    replace=("(p_grace > interval '0' and penstock._session_age() < p_grace)", "false"),
)
async def a_new_session_expires_no_leases(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await s.worker(lease="15 seconds")
    await factory.submit(s.conn)
    await s.start(worker)
    await s.clock.advance("30s")
    young = await s.connect()
    assert await young.fetch("select * from penstock.recover_jobs(500, '1 hour')") == []


@catches("lock_worker: not lost")
async def a_lost_worker_gets_no_valid_lock(s: Scene) -> None:
    worker = await s.worker(lease="15 seconds")
    await s.clock.advance("30s")
    await factory.recover(s.conn)
    assert not await s.value("select penstock.lock_worker($1)", worker)


async def _hooked(s: Scene) -> None:
    await factory.queue(s.conn)
    await s.conn.execute("select penstock.declare_kind('q', 'q', $1)", {"has_on_finish": True})


@catches("_move_to_finished: callback wanted")
async def only_kinds_with_an_on_finish_callback_get_one(s: Scene) -> None:
    await _hooked(s)
    await s.conn.execute("select penstock.declare_kind('other', 'q')")
    job = await factory.submit(s.conn, "other")
    await s.conn.execute("select penstock.cancel_job($1)", job)
    assert await s.value("select count(*) from penstock.pending_on_finish") == 0


async def _hold(s: Scene, worker: int, row: Row, outcome: str = "succeeded") -> list[Row]:
    rows: list[Row] = await s.conn.fetch(
        "select * from penstock.preview_finish($1, $2, $3, $4, '7', null)",
        worker,
        row["id"],
        row["attempt"],
        outcome,
    )
    return rows


@catches("preview_finish: fence")
async def an_older_attempt_locks_no_finished_job(s: Scene) -> None:
    """L3: otherwise the app would write a result that does not count."""
    worker, row = await s.running()
    await _started_again(s, worker, row)
    assert await _hold(s, worker, row) == []


@catches("preview_finish: owner")
async def a_worker_locks_no_finished_job_of_another_workers_attempt(s: Scene) -> None:
    """L3"""
    _, row = await s.running()
    assert await _hold(s, await s.worker(), row) == []


@catches("preview_finish: ends")
async def an_unfinished_job_has_no_on_finish_to_lock(s: Scene) -> None:
    worker, row = await s.running()
    assert await _hold(s, worker, row, "retry") == []
    [held] = await _hold(s, worker, row)
    assert (held["status"], held["result"]) == ("succeeded", 7)


@catches("read_running_attempts: older")
async def a_job_claimed_a_moment_ago_is_not_missing(s: Scene) -> None:
    worker, row = await s.running()
    sql = "select job_id from penstock.read_running_attempts($1, '5 seconds')"
    assert await s.conn.fetch(sql, worker) == []
    await s.clock.advance("6s")
    assert [found["job_id"] for found in await s.conn.fetch(sql, worker)] == [row["id"]]


@catches("take_on_finish: due")
async def a_postponed_on_finish_callback_runs_later(s: Scene) -> None:
    await _hooked(s)
    job = await factory.submit(s.conn)
    await s.conn.execute("select penstock.cancel_job($1)", job)
    await s.conn.execute("select penstock.postpone_on_finish($1)", job)
    assert await s.conn.fetch("select * from penstock.take_on_finish(array['q'])") == []
    await s.clock.advance("2s")
    assert len(await s.conn.fetch("select * from penstock.take_on_finish(array['q'])")) == 1


@catches("take_on_finish: taken once", replace=("for update of o skip locked", ""))
async def only_one_of_two_workers_runs_on_finish(s: Scene) -> None:
    """The other one does not wait for it."""
    await _hooked(s)
    job = await factory.submit(s.conn)
    await s.conn.execute("select penstock.cancel_job($1)", job)
    first, second = await s.connect(), await s.connect()
    async with first.transaction():
        assert len(await first.fetch("select * from penstock.take_on_finish(array['q'])")) == 1
        call = second.fetch("select * from penstock.take_on_finish(array['q'])")
        assert await s.does_not_wait(second, call) == []


async def _claim_one(conn: asyncpg.Connection, worker: int, job: UUID) -> list[Row]:
    rows: list[Row] = await conn.fetch(
        "select * from penstock.claim_jobs($1, 'q', 1, false, $2)", worker, job
    )
    return rows


@catches("_choose_one: account limit")
async def a_job_claimed_by_id_respects_its_accounts_limit(s: Scene) -> None:
    """L5"""
    await factory.queue(s.conn)
    await factory.plan(s.conn, concurrency=1)
    worker = await s.worker()
    jobs = [await factory.submit(s.conn, account="a") for _ in range(2)]
    assert len(await _claim_one(s.conn, worker, jobs[1])) == 1
    assert await _claim_one(s.conn, worker, jobs[0]) == []


@catches(
    "_choose_one: waits",
    raises=asyncpg.RaiseError,
    match="chose 1 jobs but started 0",
)
async def a_job_claimed_by_id_is_not_started_twice(s: Scene) -> None:
    """L3"""
    await factory.queue(s.conn)
    worker = await s.worker()
    job = await factory.submit(s.conn)
    assert len(await _claim_one(s.conn, worker, job)) == 1
    assert await _claim_one(s.conn, worker, job) == []


@catches("_choose_one: in time")
async def a_job_claimed_by_id_does_not_start_after_its_expiry(s: Scene) -> None:
    """An app has locked its account, so that upkeep cannot expire it now."""
    await factory.queue(s.conn)
    worker = await s.worker()
    await s.conn.execute("select penstock.grant_credits('a', 9)")
    job = await factory.submit(s.conn, account="a", price=1, expires_seconds=5)
    app = await s.connect()
    async with app.transaction():
        await app.execute("select from penstock.account where name = 'a' for no key update")
        await s.clock.advance("10s")
        assert await _claim_one(s.conn, worker, job) == []


@catches("_choose_one: stray", replace=("v_stray and v_lane = -1", "false"))
async def a_job_older_than_its_accounts_limit_waits_for_a_lane(s: Scene) -> None:
    """L5: an app has locked its account, so it cannot be put into a lane now."""
    await factory.queue(s.conn)
    worker = await s.worker()
    job = await factory.submit(s.conn, account="a")
    await s.conn.execute(
        "insert into penstock.plan (name, concurrency, created_at) values ('p', 1, now());"
        "update penstock.account set concurrency = 1, plan = 'p' where name = 'a'"
    )
    app = await s.connect()
    async with app.transaction():
        await app.execute("select from penstock.account where name = 'a' for no key update")
        assert await _claim_one(s.conn, worker, job) == []
    [row] = await _claim_one(s.conn, worker, job)
    assert row["slot_account"] is not None
