"""Settling attempts: what each outcome changes, and whether it counts as a failure."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import Row, refused

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
OOPS = {"class": "unavailable", "message": "no answer", "retryable": True}


async def started(conn: asyncpg.Connection, **job: Any) -> tuple[int, UUID, list[Row]]:
    """Start one job on a new worker."""
    worker = await factory.worker(conn)
    number = await factory.submit(conn, **job)
    return worker, number, await factory.claim(conn, worker)


async def slots(conn: asyncpg.Connection) -> tuple[int, int]:
    """Return the counts of running jobs of the queue and of the account."""
    row = await conn.fetchrow(
        "select (select running from penstock.gate) as gate,"
        " (select running from penstock.account where name = 'u1') as account"
    )
    assert row
    return row["gate"], row["account"]


@pytest.mark.parametrize(
    ("outcome", "status", "failures", "deferrals", "recorded"),
    [
        ("succeeded", "succeeded", 0, 0, "succeeded"),
        ("failed", "failed", 1, 0, "failed"),
        ("cancelled", "cancelled", 0, 0, "cancelled"),
        ("retry", "scheduled", 1, 0, "retried"),
        ("deferred", "scheduled", 0, 1, "deferred"),
        ("snoozed", "queued", 0, 0, "snoozed"),
        ("released", "queued", 0, 0, "released"),
    ],
)
async def test_an_outcome_moves_the_job_frees_its_slots_and_is_recorded(
    conn: asyncpg.Connection,
    *,
    outcome: str,
    status: str,
    failures: int,
    deferrals: int,
    recorded: str,
) -> None:
    """M2"""
    await factory.queue(conn, concurrency=1)
    await factory.plan(conn, concurrency=1)
    worker, job, start = await started(conn, account="u1", payload={"n": 1})
    assert await slots(conn) == (1, 1)
    [verdict] = await factory.finish(conn, worker, start, outcome, result={"r": 1}, error=OOPS)
    assert dict(verdict) == {"job_id": job, "verdict": "done", "status": status}
    assert await slots(conn) == (0, 0)
    shown = await factory.read(conn, job)
    assert (shown["status"], shown["attempt"]) == (status, 1)
    assert (shown["failures"], shown["deferrals"]) == (failures, deferrals)
    assert [a["outcome"] for a in shown["attempts"]] == [recorded]


async def test_a_success_keeps_its_result_and_its_times(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """E7, M2, F9"""
    await clock.freeze(NOON)
    await factory.queue(conn)
    worker, job, start = await started(conn, payload={"n": 1}, topic="t", metadata={"m": 1})
    await clock.advance("90s")
    await factory.finish(conn, worker, start, result={"score": 7})
    shown = await factory.read(conn, job)
    assert shown["result"] == {"score": 7}
    assert (shown["topic"], shown["metadata"], shown["error"]) == ("t", {"m": 1}, None)
    assert shown["started_at"] == "2030-01-01T12:00:00.000000Z"
    assert shown["finished_at"] == "2030-01-01T12:01:30.000000Z"
    assert await conn.fetchval("select payload from penstock.finished") == {"n": 1}
    assert await conn.fetchval("select count(*) from penstock.job") == 0


async def test_three_attempts_five_and_ten_minutes_apart_then_failed(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """M10, F3: attempt x 5 minutes, at most 3 attempts, the error kept."""
    await clock.freeze()
    await factory.queue(conn)  # the defaults
    worker = await factory.worker(conn, lease="1 day")
    job = await factory.submit(conn)
    for wait in (300, 600):
        [verdict] = await factory.finish(
            conn, worker, await factory.claim(conn, worker), "retry", error=OOPS
        )
        assert verdict["status"] == "scheduled"
        assert (await factory.read(conn, job))["error"]["class"] == "unavailable"
        await clock.advance(wait - 1)
        assert await factory.claim(conn, worker) == []
        await clock.advance(1)
    last = await factory.claim(conn, worker)
    assert last[0]["attempt"] == 3
    [verdict] = await factory.finish(conn, worker, last, "retry", error=OOPS)
    assert verdict["status"] == "failed"
    shown = await factory.read(conn, job)
    assert shown["error"] == OOPS | {"reason": "attempts_exhausted"}
    assert (shown["failures"], shown["attempt"]) == (3, 3)
    assert [a["outcome"] for a in shown["attempts"]] == ["retried", "retried", "failed"]
    assert {a["error_class"] for a in shown["attempts"]} == {"unavailable"}


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        ({"backoff": "constant", "delay_seconds": 7}, [7, 7, 7, 7]),
        ({"backoff": "linear", "delay_seconds": 7}, [7, 14, 21, 28]),
        ({"backoff": "exponential", "delay_seconds": 7}, [7, 14, 28, 56]),
        (
            {"backoff": "exponential", "delay_seconds": 7, "backoff_max_seconds": 20},
            [7, 14, 20, 20],
        ),
        ({"backoff": "linear", "delay_seconds": 0}, [0, 0, 0, 0]),
    ],
)
async def test_each_backoff_policy_has_its_delays(
    conn: asyncpg.Connection, clock: Clock, policy: dict[str, Any], waits: list[int]
) -> None:
    """F3: policies are configurable."""
    await clock.freeze()
    await factory.queue(conn, attempts=5, **policy)
    worker = await factory.worker(conn, lease="1 day")
    await factory.submit(conn)
    seen = []
    for _ in waits:
        await factory.finish(conn, worker, await factory.claim(conn, worker), "retry")
        wait = await conn.fetchval("select run_at - penstock.clock() from penstock.job")
        seen.append(wait.total_seconds())
        await clock.advance(wait)
    assert seen == waits


async def test_a_final_failure_leaves_no_attempts(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker, job, start = await started(conn)
    await factory.finish(conn, worker, start, "failed", error={"class": "refused", "message": "no"})
    shown = await factory.read(conn, job)
    assert shown["status"] == "failed"
    assert (shown["error"]["class"], shown["error"]["reason"]) == ("refused", None)
    other_worker, other, start = await started(conn)
    await factory.finish(conn, other_worker, start, "failed")
    assert (await factory.read(conn, other))["error"][
        "class"
    ] == "bug"  # a failed job has the reason


@pytest.mark.parametrize("outcome", ["snoozed", "deferred", "released"])
async def test_releases_without_a_failure_have_no_bound(
    conn: asyncpg.Connection, outcome: str
) -> None:
    await factory.queue(conn, attempts=1)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    for attempt in range(1, 30):
        [start] = await factory.claim(conn, worker)
        assert start["attempt"] == attempt
        await factory.finish(conn, worker, [start], outcome, delay="0")
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    shown = await factory.read(conn, job)
    assert (shown["status"], shown["failures"], shown["attempt"]) == ("succeeded", 0, 30)
    assert shown["deferrals"] == (29 if outcome == "deferred" else 0)
    assert [a["attempt"] for a in shown["attempts"]] == list(range(11, 31))  # the last 20


@pytest.mark.parametrize("outcome", ["retry", "snoozed", "deferred", "released"])
async def test_a_reported_delay_replaces_the_policy(
    conn: asyncpg.Connection, clock: Clock, outcome: str
) -> None:
    await clock.freeze()
    await factory.queue(conn)
    worker, job, start = await started(conn)
    [verdict] = await factory.finish(conn, worker, start, outcome, delay="30s")
    assert verdict["status"] == "scheduled"
    await clock.advance(29)
    assert await factory.claim(conn, worker) == []
    await clock.advance(1)
    [again] = await factory.claim(conn, worker)
    assert (again["id"], again["attempt"]) == (job, 2)


async def test_outcomes_of_one_report_have_separate_verdicts(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    jobs = await factory.submit_rows(conn, [{"kind": "q"}] * 4)
    by_id = {row["id"]: row for row in await factory.claim(conn, worker, limit=4)}
    unknown = UUID(int=7)
    rows = await conn.fetch(
        "select * from penstock.finish_jobs($1, $2, $3, $4, $5)",
        worker,
        [*jobs, unknown],
        [*(by_id[job]["attempt"] for job in jobs[:3]), 9, 1],
        ["succeeded", "failed", "snoozed", "succeeded", "retry"],
        [{"n": 1}, None, None, {"n": 4}, None],
    )
    verdicts = {row["job_id"]: (row["verdict"], row["status"]) for row in rows}
    assert verdicts == {
        jobs[0]: ("done", "succeeded"),
        jobs[1]: ("done", "failed"),
        jobs[2]: ("done", "queued"),
        jobs[3]: ("stale", "running"),  # not the attempt that is running
        unknown: ("stale", None),
    }


@pytest.mark.parametrize(
    ("outcome", "field", "delay"),
    [
        ("done", "outcome", None),
        (None, "outcome", None),
        ("lost", "outcome", None),
        ("snoozed", "delay_seconds", "-1s"),
        ("retry", "delay_seconds", "4000 days"),
    ],
)
async def test_an_invalid_report_is_refused_and_settles_nothing(
    conn: asyncpg.Connection, outcome: str, field: str, delay: str | None
) -> None:
    await factory.queue(conn)
    worker, job, start = await started(conn)
    before = await factory.contents(conn)
    with refused(422, "invalid_finish", field):
        await factory.finish(conn, worker, start, outcome, delay=delay)
    assert await factory.contents(conn) == before
    assert await factory.status(conn, job) == "running"
