"""A handler that blocks its worker's event loop: the jobs beside it lose nothing. D2."""

from typing import Any

import pytest

from support.factory import submit_rows
from support.worker.crew import Crew, Process, count

pytestmark = pytest.mark.alone

BLOCKS_AT = "apps.py:"


async def one_blocks_beside(
    crew: Crew, *, blocks: float, most: float, bystanders: int, naps: float
) -> tuple[Any, list[Any]]:
    """Two workers, one handler that blocks, and others beside it; returns how all finished."""
    await crew.start("a", poll=0.1)
    await crew.start("b", poll=0.1)
    await crew.past_grace()
    rows = [{"kind": "block", "payload": {"seconds": blocks}, "timeout_seconds": most}]
    rows += [
        {"kind": "nap", "payload": {"seconds": naps}, "timeout_seconds": most}
        for _ in range(bystanders)
    ]
    jobs = await submit_rows(crew.conn, rows)
    seconds = 4 * (blocks + most + 15)
    others = await crew.until_finished(jobs[1:], seconds=seconds)
    [blocker] = await crew.until_finished(jobs[:1], seconds=seconds)
    return blocker, others


def unharmed(others: list[Any]) -> None:
    assert count(row["status"] for row in others) == {"succeeded": len(others)}
    assert count(row["failures"] for row in others) == {0: len(others)}
    assert count(row["crashes"] for row in others) == {0: len(others)}


async def named(crew: Crew) -> list[Any]:
    return await crew.conn.fetch(
        "select kind, location, seconds, ended_at from penstock.blocked_loop"
        " where job_id is not null"
    )


def alone_after_its_first(crew: Crew, blocker: Any) -> None:
    """A job that has blocked a loop does not start beside others again."""
    ends = {(line.job, line.attempt): line.at for line in crew.noted("end")}
    starts = crew.noted("start")
    again = [line for line in starts if line.job == blocker["id"] and line.attempt > 1]
    assert again
    for mine in again:
        until = ends.get((mine.job, mine.attempt), float("inf"))
        beside = [
            line
            for line in starts
            if line.pid == mine.pid
            and line.job != mine.job
            and line.at < until
            and ends.get((line.job, line.attempt), 0.0) > mine.at
        ]
        assert beside == []


def reported(process: Process) -> bool:
    return "blocks the event loop" in process.log_text and BLOCKS_AT in process.log_text


@pytest.mark.faults
async def test_forty_bystanders_of_a_blocking_handler(crew: Crew) -> None:
    """D2: two workers, time-out 6 s, a `time.sleep(14)` in an `async def`, 40 jobs beside it."""
    blocker, others = await one_blocks_beside(crew, blocks=14, most=6, bystanders=40, naps=1.5)
    unharmed(others)
    assert blocker["failures"] >= 1
    alone_after_its_first(crew, blocker)
    locations = await named(crew)
    assert {row["kind"] for row in locations} == {"block"}
    assert all(BLOCKS_AT in row["location"] for row in locations)
    assert any(reported(process) for process in crew.started)


async def test_no_failure_counts_for_bystanders_of_a_blocking_handler(crew: Crew) -> None:
    """D2, the short form: the loop stands still for longer than the deadlines that matter."""
    blocker, others = await one_blocks_beside(crew, blocks=8, most=1, bystanders=12, naps=0.5)
    unharmed(others)
    alone_after_its_first(crew, blocker)
    assert {row["kind"] for row in await named(crew)} == {"block"}
    assert any(reported(process) for process in crew.started)
