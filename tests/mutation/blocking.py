"""Guards of blocked_loop.sql, and of the parts of recover.sql about blocked event loops."""

from typing import Any

from mutation.scene import Scene, catches
from support import factory
from support.factory import Row


async def report(
    s: Scene, worker: int, seconds: float, *, over: bool = False, by: Row | None = None, n: int = 1
) -> list[Row]:
    rows: list[Row] = await s.conn.fetch(
        "select * from penstock.report_blocked_loop($1, $2, $3, $4, $5, $6, $7, $8)",
        worker,
        n,
        seconds,
        over,
        by and by["id"],
        by and by["attempt"],
        by and "q",
        by and "handlers.py:7",
    )
    return rows


async def blocked(s: Scene, *, jobs: int = 2) -> tuple[int, list[Row]]:
    """Start a worker that runs so many jobs with a timeout of a minute."""
    await factory.queue(s.conn, timeout_seconds=60)
    worker = await s.worker()
    await factory.submit_rows(s.conn, [{"kind": "q"}] * jobs)
    return worker, await s.start(worker, limit=jobs)


async def recovered(s: Scene) -> dict[Any, str]:
    return {row["job_id"]: row["outcome"] for row in await factory.recover(s.conn)}


@catches(
    "_recoverable: blocker known", replace=("l.blocker = 'known' then 'released'", "false then ''")
)
async def blocked_attempts_are_released_and_the_blocking_one_times_out(s: Scene) -> None:
    """D2"""
    worker, [blocker, other] = await blocked(s)
    await s.clock.advance("70s")
    await report(s, worker, 20, by=blocker)
    assert await recovered(s) == {blocker["id"]: "timed_out", other["id"]: "released"}
    shown = await factory.read(s.conn, other["id"])
    assert (shown["status"], shown["failures"], shown["recovery"]["count"]) == ("queued", 0, 0)


@catches("_recoverable: alone in loop", replace=("and not j.only_suspect", ""))
async def an_unreported_block_counts_as_a_failure_of_a_job_that_runs_alone(s: Scene) -> None:
    worker, [row] = await blocked(s, jobs=1)
    await s.conn.execute("select penstock.mark_only_suspect($1, $2, 1)", worker, row["id"])
    await s.clock.advance("70s")
    await report(s, worker, 20)
    assert await recovered(s) == {row["id"]: "stuck"}


@catches("_recoverable: loop stands for long")
async def a_job_with_time_left_is_not_recovered_from_a_briefly_blocked_loop(s: Scene) -> None:
    worker, [blocker, _] = await blocked(s)
    await s.clock.advance("40s")
    await report(s, worker, 20, by=blocker)
    assert await recovered(s) == {}


@catches("_recoverable: not the blocker")
async def a_long_blocking_job_is_not_released_before_its_timeout(s: Scene) -> None:
    worker, [blocker, other] = await blocked(s)
    await s.clock.advance("40s")
    await report(s, worker, 31, by=blocker)
    assert await recovered(s) == {other["id"]: "released"}


@catches("_blocked_loops: not over")
async def a_running_loop_enforces_the_timeouts_of_its_jobs(s: Scene) -> None:
    worker, rows = await blocked(s)
    await report(s, worker, 0.5, over=True)
    await s.clock.advance("70s")
    assert await recovered(s) == {row["id"]: "timed_out" for row in rows}


@catches("_blocked_loops: renewed")
async def an_outdated_report_does_not_count(s: Scene) -> None:
    """Its worker sends heartbeats, so a new report would have come."""
    await factory.queue(s.conn, timeout_seconds=60)
    worker = await s.worker(lease="30 seconds")
    await factory.submit(s.conn)
    [row] = await s.start(worker)
    await report(s, worker, 2)
    for _ in range(4):
        await s.clock.advance("20s")
        await s.conn.execute("select penstock.beat_worker($1)", worker)
    assert await recovered(s) == {row["id"]: "timed_out"}


@catches("report_blocked_loop: once")
async def a_late_report_does_not_reopen_an_attempt_that_timed_out(s: Scene) -> None:
    worker, [blocker, _] = await blocked(s)
    await report(s, worker, 20, over=True, by=blocker)
    await report(s, worker, 20, over=True, by=blocker)
    await report(s, worker, 3, by=blocker)
    [row] = await s.conn.fetch("select ended_at is null as now, seconds from penstock.blocked_loop")
    assert (row["now"], row["seconds"]) == (False, 20)
    [total] = await s.conn.fetch("select * from penstock.blocked_loop_total")
    assert tuple(total) == ("q", 1, 20)


async def _time_left(s: Scene, job: Any) -> float:
    left: float = await s.value(
        "select date_part('epoch', timeout_at - penstock.clock()) from penstock.job where id = $1",
        job,
    )
    return left


@catches("report_blocked_loop: innocent")
async def lost_time_is_returned_but_not_to_the_job_that_blocked(s: Scene) -> None:
    worker, [blocker, other] = await blocked(s)
    await s.clock.advance("20s")
    owns = await report(s, worker, 14, over=True, by=blocker)
    assert {row["job_id"] for row in owns} == {blocker["id"], other["id"]}
    assert 53 < await _time_left(s, other["id"]) < 55
    assert 39 < await _time_left(s, blocker["id"]) < 41


@catches("report_blocked_loop: its own")
async def other_workers_have_lost_no_time(s: Scene) -> None:
    worker, _ = await blocked(s)
    await factory.submit(s.conn)
    [other] = await s.start(await s.worker())
    await s.clock.advance("20s")
    await report(s, worker, 14, over=True)
    assert 39 < await _time_left(s, other["id"]) < 41


async def _losses(s: Scene, row: Row) -> int:
    """Return the next worker's row of a job that was released."""
    await s.conn.execute("select penstock.stop_worker(worker_id) from penstock.job")
    await factory.recover(s.conn)
    [again] = await s.start(await s.worker())
    assert again["id"] == row["id"]
    losses: int = again["losses"]
    return losses


@catches("_mark_blocker: for long")
async def a_short_block_marks_no_job(s: Scene) -> None:
    worker, [row] = await blocked(s, jobs=1)
    await report(s, worker, 3, over=True, by=row)
    assert await _losses(s, row) == 0


@catches("_mark_blocker: fence")
async def an_attempt_of_another_period_marks_no_job(s: Scene) -> None:
    worker, [row] = await blocked(s, jobs=1)
    await factory.finish(s.conn, worker, [row], "released")
    [again] = await s.start(worker)
    await report(s, worker, 20, over=True, by=row)
    assert await _losses(s, again) == 0
