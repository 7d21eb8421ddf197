"""Guards of blocked_loop.sql, and of what recover.sql does about blocked event loops."""

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
    """A worker that runs so many jobs; they may take a minute."""
    await factory.queue(s.conn, timeout_seconds=60)
    worker = await s.worker()
    await factory.submit_rows(s.conn, [{"kind": "q"}] * jobs)
    return worker, await s.start(worker, limit=jobs)


async def recovered(s: Scene) -> dict[Any, str]:
    return {row["job_id"]: row["outcome"] for row in await factory.recover(s.conn)}


@catches(
    "_recoverable: blocker known", replace=("l.blocker = 'known' then 'released'", "false then ''")
)
async def who_could_not_end_is_released_and_who_blocks_is_over_its_time(s: Scene) -> None:
    """D2"""
    worker, [blocker, other] = await blocked(s)
    await s.clock.advance("70s")
    await report(s, worker, 20, by=blocker)
    assert await recovered(s) == {blocker["id"]: "timed_out", other["id"]: "released"}
    shown = await factory.read(s.conn, other["id"])
    assert (shown["status"], shown["failures"], shown["recovery"]["count"]) == ("queued", 0, 0)


@catches("_recoverable: alone in loop", replace=("and not j.only_suspect", ""))
async def what_blocks_unseen_is_charged_when_it_runs_alone(s: Scene) -> None:
    worker, [row] = await blocked(s, jobs=1)
    await s.conn.execute("select penstock.mark_only_suspect($1, $2, 1)", worker, row["id"])
    await s.clock.advance("70s")
    await report(s, worker, 20)
    assert await recovered(s) == {row["id"]: "stuck"}


@catches("_recoverable: loop stands for long")
async def what_has_time_left_is_not_taken_from_a_loop_that_stands_for_a_moment(s: Scene) -> None:
    worker, [blocker, _] = await blocked(s)
    await s.clock.advance("40s")
    await report(s, worker, 20, by=blocker)
    assert await recovered(s) == {}


@catches("_recoverable: not the blocker")
async def what_blocks_for_long_is_not_released_before_its_time_is_over(s: Scene) -> None:
    worker, [blocker, other] = await blocked(s)
    await s.clock.advance("40s")
    await report(s, worker, 31, by=blocker)
    assert await recovered(s) == {other["id"]: "released"}


@catches("_blocked_loops: not over")
async def a_loop_that_goes_on_holds_its_jobs_to_their_time(s: Scene) -> None:
    worker, rows = await blocked(s)
    await report(s, worker, 0.5, over=True)
    await s.clock.advance("70s")
    assert await recovered(s) == {row["id"]: "timed_out" for row in rows}


@catches("_blocked_loops: renewed")
async def a_report_that_nobody_renewed_counts_no_more(s: Scene) -> None:
    """Its worker beats, so the report would have come."""
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
async def a_report_that_comes_late_does_not_open_what_is_over(s: Scene) -> None:
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
async def the_lost_time_is_returned_but_not_to_who_took_it(s: Scene) -> None:
    worker, [blocker, other] = await blocked(s)
    await s.clock.advance("20s")
    owns = await report(s, worker, 14, over=True, by=blocker)
    assert {row["job_id"] for row in owns} == {blocker["id"], other["id"]}
    assert 53 < await _time_left(s, other["id"]) < 55
    assert 39 < await _time_left(s, blocker["id"]) < 41


@catches("report_blocked_loop: its own")
async def others_have_lost_no_time(s: Scene) -> None:
    worker, _ = await blocked(s)
    await factory.submit(s.conn)
    [other] = await s.start(await s.worker())
    await s.clock.advance("20s")
    await report(s, worker, 14, over=True)
    assert 39 < await _time_left(s, other["id"]) < 41


async def _losses(s: Scene, row: Row) -> int:
    """What the next worker is told of a job that was released."""
    await s.conn.execute("select penstock.stop_worker(worker_id) from penstock.job")
    await factory.recover(s.conn)
    [again] = await s.start(await s.worker())
    assert again["id"] == row["id"]
    losses: int = again["losses"]
    return losses


@catches("_mark_blocker: for long")
async def a_moment_marks_nobody(s: Scene) -> None:
    worker, [row] = await blocked(s, jobs=1)
    await report(s, worker, 3, over=True, by=row)
    assert await _losses(s, row) == 0


@catches("_mark_blocker: fence")
async def an_attempt_of_another_time_marks_nobody(s: Scene) -> None:
    worker, [row] = await blocked(s, jobs=1)
    await factory.finish(s.conn, worker, [row], "released")
    [again] = await s.start(worker)
    await report(s, worker, 20, over=True, by=row)
    assert await _losses(s, again) == 0
