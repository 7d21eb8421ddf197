"""Reports of a running attempt: stage, progress, steps, chunks; fenced, and waiting for no lock."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import Row
from support.shapes import Connect


async def running(conn: asyncpg.Connection, **options: Any) -> tuple[int, Row]:
    await factory.queue(conn, **options)
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit(conn)
    [row] = await factory.claim(conn, worker)
    return worker, row


async def report(
    conn: asyncpg.Connection,
    worker: int,
    row: Row,
    *,
    stage: str | None = None,
    label: str | None = None,
    progress: Any = None,
) -> Row:
    [answer] = await conn.fetch(
        "select * from penstock.report_progress($1, $2, $3, $4, $5, $6)",
        worker,
        [row["id"]],
        [row["attempt"]],
        [stage],
        [label],
        [progress],
    )
    return answer


async def test_the_stage_is_shown_with_its_time(conn: asyncpg.Connection, clock: Clock) -> None:
    """S4"""
    worker, row = await running(conn)
    begun = await clock.freeze()
    await report(conn, worker, row, stage="TIER1", label="Tier 1 scanning")
    await clock.advance("7s")
    await report(conn, worker, row, progress={"done": 1, "total": 4})
    job = await factory.read(conn, row["id"])
    assert (job["stage"], job["stage_label"]) == ("TIER1", "Tier 1 scanning")
    assert job["stage_at"].startswith(begun.strftime("%Y-%m-%dT%H:%M:%S"))
    assert job["progress"] == {"done": 1, "total": 4}
    await report(conn, worker, row, stage="TIER2")
    job = await factory.read(conn, row["id"])
    assert (job["stage"], job["stage_label"]) == ("TIER2", None)
    assert not job["stage_at"].startswith(begun.strftime("%Y-%m-%dT%H:%M:%S"))
    await report(conn, worker, row, stage="")
    job = await factory.read(conn, row["id"])
    assert (job["stage"], job["stage_at"]) == (None, None)


async def test_a_job_with_progress_is_not_stuck(conn: asyncpg.Connection, clock: Clock) -> None:
    """S5, S6"""
    worker, row = await running(conn, stuck_after_seconds=30, timeout_seconds=600)
    for done in range(5):
        await clock.advance("20s")
        assert await factory.recover(conn) == []
        await report(conn, worker, row, progress={"done": done})
    await clock.advance("31s")
    assert [found["outcome"] for found in await factory.recover(conn)] == ["stuck"]


async def test_progress_does_not_postpone_the_timeout(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """E13"""
    worker, row = await running(conn, stuck_after_seconds=30, timeout_seconds=40)
    for _ in range(2):
        await clock.advance("20s")
        await report(conn, worker, row, progress={"done": 1})
    await clock.advance("10s")
    assert [found["outcome"] for found in await factory.recover(conn)] == ["timed_out"]


async def test_a_report_returns_that_cancellation_is_requested(conn: asyncpg.Connection) -> None:
    worker, row = await running(conn)
    assert (await report(conn, worker, row, stage="a"))["cancel"] is False
    await conn.execute("select penstock.cancel_job($1)", row["id"])
    assert (await report(conn, worker, row, stage="b"))["cancel"] is True
    found = await conn.fetch("select * from penstock.read_cancels($1)", worker)
    assert [(one["job_id"], one["attempt"]) for one in found] == [(row["id"], 1)]


async def test_a_report_does_not_wait_for_an_app_that_locks_the_job(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    worker, row = await running(conn)
    app = await connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", row["id"])
        assert (await report(conn, worker, row, stage="a"))["verdict"] == "locked"
        kept = await conn.fetchval(
            "select penstock.keep_step($1, $2, 1, 's', '1')", worker, row["id"]
        )
        assert kept == "locked"
    assert (await report(conn, worker, row, stage="a"))["verdict"] == "done"


async def test_history_has_the_last_stage_and_progress_and_a_new_attempt_has_none(
    conn: asyncpg.Connection,
) -> None:
    worker, row = await running(conn, delay_seconds=0)
    await report(conn, worker, row, stage="A", progress={"done": 3})
    await factory.finish(conn, worker, [row], "retry")
    [again] = await factory.claim(conn, worker)
    job = await factory.read(conn, row["id"])
    assert (job["stage"], job["progress"]) == (None, None)
    await report(conn, worker, again, stage="B", progress={"done": 4})
    await factory.finish(conn, worker, [again])
    job = await factory.read(conn, row["id"])
    assert (job["stage"], job["progress"]) == ("B", {"done": 4})


async def test_a_step_is_kept_once_and_for_later_attempts(conn: asyncpg.Connection) -> None:
    worker, row = await running(conn, delay_seconds=0)
    keep = "select penstock.keep_step($1, $2, $3, 'rubric', $4)"
    assert await conn.fetchval(keep, worker, row["id"], 1, {"n": 1}) == "done"
    await factory.finish(conn, worker, [row], "retry")
    await factory.claim(conn, worker)
    assert await conn.fetchval(keep, worker, row["id"], 2, {"n": 2}) == "done"
    [step] = await conn.fetch("select * from penstock.read_steps($1)", row["id"])
    assert (step["name"], step["result"]) == ("rubric", {"n": 1})


@pytest.mark.parametrize("name", ["", "x" * 201, None])
async def test_a_step_has_a_name(conn: asyncpg.Connection, name: str | None) -> None:
    worker, row = await running(conn)
    with factory.refused(422, "invalid_step", "name"):
        await conn.fetchval(
            "select penstock.keep_step($1, $2, 1, $3, '1')", worker, row["id"], name
        )


async def chunks(conn: asyncpg.Connection, job: UUID, *after: int) -> list[Any]:
    rows = await conn.fetch("select * from penstock.read_chunks($1, $2, $3)", job, *after)
    return [(row["attempt"], row["seq"], row["data"]) for row in rows]


async def test_chunks_can_be_read_again_from_any_position(conn: asyncpg.Connection) -> None:
    worker, row = await running(conn, delay_seconds=0)
    append = "select penstock.append_chunks($1, $2, $3, $4, $5)"
    job = row["id"]
    assert await conn.fetchval(append, worker, [job] * 2, [1, 1], [1, 2], ["a", {"b": 1}]) == 2
    # A chunk that is reported twice is stored once.
    assert await conn.fetchval(append, worker, [job] * 2, [1, 1], [2, 3], ["x", "c"]) == 1
    await factory.finish(conn, worker, [row], "retry")
    await factory.claim(conn, worker)
    assert await conn.fetchval(append, worker, [job], [2], [1], ["again"]) == 1
    everything = [(1, 1, "a"), (1, 2, {"b": 1}), (1, 3, "c"), (2, 1, "again")]
    assert await chunks(conn, job, 0, 0) == everything
    assert await chunks(conn, job, 1, 2) == everything[2:]
    assert await chunks(conn, job, 2, 1) == []


async def test_usage_is_kept_with_its_attempt(conn: asyncpg.Connection) -> None:
    worker, row = await running(conn, delay_seconds=0)
    finish = "select * from penstock.finish_jobs($1, $2, $3, $4, p_usages => $5, p_units => $6)"
    job = row["id"]
    await conn.fetch(finish, worker, [job], [1], ["retry"], [{"tokens": 5}], None)
    await factory.claim(conn, worker)
    await conn.fetch(finish, worker, [job], [2], ["succeeded"], [{"tokens": 7}], [3])
    assert (await factory.read(conn, job))["usage"] == {"tokens": 12}
    assert await conn.fetchval("select usage from penstock.finished") == {"tokens": 7}
    assert await conn.fetchval("select units from penstock.finished") == 3
    assert await conn.fetchval("select usage from penstock.attempt") == {"tokens": 5}
    # A late result does not count, but its cost is kept.
    await conn.fetch(finish, worker, [job], [1], ["succeeded"], [{"tokens": 9}], None)
    assert await conn.fetchval("select usage from penstock.late_result") == {"tokens": 9}
