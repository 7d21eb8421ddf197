"""Lists: newest first over live and finished jobs, by every filter, page by page."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import refused
from support.shapes import Scale

SHORT = {
    "id",
    "kind",
    "queue",
    "account",
    "topic",
    "batch",
    "status",
    "attempt",
    "failures",
    "max_attempts",
    "created_at",
    "run_at",
    "started_at",
    "finished_at",
    "stage",
    "stage_label",
    "error",
    "waiting_for",
    "cancel_requested",
    "credits",
}


async def jobs(conn: asyncpg.Connection, **filters: Any) -> list[dict[str, Any]]:
    named = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(filters, 1))
    rows = await conn.fetch(f"select penstock.list_jobs({named}) as job", *filters.values())
    return [row["job"] for row in rows]


async def ids(conn: asyncpg.Connection, **filters: Any) -> list[UUID]:
    return [UUID(job["id"]) for job in await jobs(conn, **filters)]


async def settle(conn: asyncpg.Connection, queue: str, outcome: str, **report: Any) -> UUID:
    """Submit one job to an empty queue, start it, and settle it with this outcome."""
    worker = await factory.worker(conn)
    job = await factory.submit(conn, queue)
    await factory.finish(conn, worker, await factory.claim(conn, worker, queue), outcome, **report)
    return job


async def test_live_and_finished_jobs_are_one_list_newest_first(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """G15"""
    await factory.queue(conn)
    done: list[UUID] = []
    for outcome in ("succeeded", None, "failed", None):
        await clock.advance(1)
        if outcome is None:
            done.append(await factory.submit(conn, delay_seconds=60))
        else:
            error = {"class": "bug", "message": "why", "retryable": False}
            done.append(
                await settle(conn, "q", outcome, error=error if outcome == "failed" else None)
            )
    listed = await jobs(conn)
    assert [UUID(job["id"]) for job in listed] == done[::-1]
    assert [job["status"] for job in listed] == ["scheduled", "failed", "scheduled", "succeeded"]
    assert all(set(job) == SHORT for job in listed)
    assert listed[1]["error"]["class"] == "bug"
    assert listed[3]["error"] is None
    for short in listed:
        full = await factory.read(conn, UUID(short["id"]))
        assert short == {key: full[key] for key in short}


async def test_each_filter_finds_the_jobs_that_it_names(conn: asyncpg.Connection) -> None:
    await factory.queue(conn, "a")
    await factory.queue(conn, "b")
    await conn.execute("select penstock.declare_kind('other', 'a')")
    worker = await factory.worker(conn)
    plain = await factory.submit(conn, "b", account="u1", topic="t1")
    running, queued = await factory.submit_rows(
        conn, [{"kind": "a", "account": "u2"}, {"kind": "other", "topic": "t2"}]
    )
    assert len(await factory.claim(conn, worker, "a", 1)) == 1
    # Starts `plain`, which was submitted first, and leaves its own job waiting.
    last = await settle(conn, "b", "succeeded")
    assert await ids(conn, status="running") == [running]
    assert await ids(conn, status="queued") == [last, queued]
    assert await ids(conn, status="succeeded") == [plain]
    assert await ids(conn, status="awaiting") == []
    assert await ids(conn, kind="other") == [queued]
    assert await ids(conn, queue="b") == [last, plain]
    assert await ids(conn, account="u1") == [plain]
    assert await ids(conn, account="nobody") == []
    assert await ids(conn, topic="t1") == [plain]
    assert await ids(conn, topic="t2", status="queued", queue="a", kind="other") == [queued]
    assert await ids(conn, topic="t2", status="running") == []


async def test_pages_follow_one_another_without_gap_or_repetition(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    every = await factory.submit_rows(conn, [{"kind": "q"}] * 25)
    await factory.finish(conn, worker, await factory.claim(conn, worker, "q", 11))
    seen: list[UUID] = []
    while page := await ids(conn, limit=4, before=seen[-1] if seen else None):
        assert len(page) <= 4
        seen += page
    assert seen == sorted(every, reverse=True)


@pytest.mark.parametrize(
    ("filters", "status", "code", "field"),
    [
        ({"status": "broken"}, 422, "invalid_filter", "status"),
        ({"limit": 0}, 422, "invalid_filter", "limit"),
        ({"limit": 1001}, 422, "invalid_filter", "limit"),
        ({"limit": None}, 422, "invalid_filter", "limit"),
        ({"queue": "nope"}, 404, "unknown_queue", "queue"),
        ({"kind": "nope"}, 404, "unknown_kind", "kind"),
    ],
)
async def test_an_invalid_filter_is_refused(
    conn: asyncpg.Connection, filters: dict[str, Any], status: int, code: str, field: str
) -> None:
    with refused(status, code, field):
        await jobs(conn, **filters)


FINISHED = """
insert into penstock.finished (id, class, status, account_id, queue_id, kind_id, priority, attempt,
  failures, deferrals, crashes, max_attempts, version, created_at, run_at, started_at, finished_at,
  finished_by_attempt, payload)
select penstock._nth_id(penstock.new_id(penstock.clock()), n), q.succeeded_class, 'succeeded', 0,
  q.id, k.id, 0, 1, 0, 0, 0, 3, 1, penstock.clock(), penstock.clock(), penstock.clock(),
  penstock.clock(), true, '{}'
from penstock.queue q, penstock.kind k, generate_series(1, $1::integer) n where q.name = 'q'
"""


async def test_the_first_page_does_not_read_the_history_behind_it(
    conn: asyncpg.Connection, scale: Scale
) -> None:
    """Counted in pages, not in seconds: a page of 8 kB holds dozens of jobs."""
    await factory.queue(conn)
    await conn.execute(FINISHED, scale(60_000, 1_000_000))
    await conn.execute("analyze penstock.finished")
    for filters in ("", "p_queue => 'q'", "p_status => 'succeeded'", "p_kind => 'q'"):
        call = f"select penstock.list_jobs({filters})"
        assert len(await conn.fetch(call)) == 50  # the session has loaded its caches
        [plan] = await conn.fetchval(f"explain (analyze, buffers, format json) {call}")
        read = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
        assert read < 1_000, filters


async def test_queues_are_listed_with_options_in_force_and_waiting_jobs(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn, "a", concurrency=2, rate="10/s", timeout_seconds=90)
    await factory.queue(conn, "b")
    await conn.execute("select penstock.edit_queue('a', $1)", {"concurrency": 5})
    await conn.execute("select penstock.pause_queue('a', 'the bill')")
    await factory.submit_rows(conn, [{"kind": "a"}, {"kind": "a", "delay_seconds": 60}])
    rows = await conn.fetch("select penstock.list_queues() as queue")
    a, b = (row["queue"] for row in rows)
    assert (a["name"], a["concurrency"], a["rate"], a["timeout_seconds"]) == ("a", 5, "10/s", 90)
    assert (a["paused"], a["paused_reason"]) == (True, "the bill")
    assert (a["queued"], a["scheduled"], a["running"]) == (1, 1, 0)
    assert a["overrides"] == {"concurrency": 5}
    assert (b["name"], b["paused"], b["concurrency"], b["rate"]) == ("b", False, None, None)
    [only] = await conn.fetch("select penstock.list_queues('b') as queue")
    assert only["queue"] == b
    with refused(404, "unknown_queue", "queue"):
        await conn.fetch("select penstock.list_queues('nope')")


async def test_workers_are_listed_while_alive_and_a_day_after_they_were_lost(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """E6"""
    await factory.queue(conn)
    lost, silent, left = [await factory.worker(conn, name) for name in ("lost", "silent", "left")]
    await factory.submit(conn)
    await factory.claim(conn, lost)
    await conn.execute("select penstock.stop_worker($1)", left)
    await clock.advance("1m")
    await conn.execute(
        "update penstock.worker set beat_at = penstock.clock() where id = $1", silent
    )
    await factory.recover(conn)
    await factory.worker(conn, "alive")
    await clock.advance("10s")

    async def seen() -> list[tuple[Any, ...]]:
        rows = await conn.fetch("select penstock.list_workers() as w")
        return [(row["w"]["worker_id"], row["w"]["alive"], row["w"]["running"]) for row in rows]

    assert await seen() == [("alive", True, 0), ("silent", True, 0), ("lost", False, 0)]
    await clock.advance("1m")
    assert [(name, alive) for name, alive, _ in await seen()] == [
        ("alive", False),
        ("lost", False),
        ("silent", False),
    ]
    await clock.advance("2d")
    assert "lost" not in [name for name, _, _ in await seen()]


async def test_the_status_counts_and_averages(conn: asyncpg.Connection, clock: Clock) -> None:
    """M15, E11"""
    await factory.queue(conn)
    await factory.queue(conn, "later", attempts=1)
    status = await conn.fetchval("select penstock.read_status()")
    assert (status["pending"], status["processing"], status["failed_today"]) == (0, 0, 0)
    assert status["avg_processing_seconds"] is None
    await settle(conn, "later", "failed", error={"class": "bug", "message": "", "retryable": False})
    await clock.advance("1d")
    await settle(conn, "later", "failed", error={"class": "bug", "message": "", "retryable": False})

    await clock.freeze()
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q"}] * 3 + [{"kind": "q", "delay_seconds": 99}])
    await clock.advance("4s")
    started = await factory.claim(conn, worker, "q", 2)
    await clock.advance("6s")
    await factory.finish(conn, worker, started[:1])
    status = await conn.fetchval("select penstock.read_status()")
    assert (status["pending"], status["scheduled"], status["processing"]) == (1, 1, 1)
    assert status["failed_today"] == 1
    assert status["avg_processing_seconds"] == 6
    assert status["avg_turnaround_seconds"] == 10
    assert [queue["name"] for queue in status["queues"]] == ["later", "q"]
    assert len(status["workers"]) == 3


async def test_partitions_exist_for_the_next_two_weeks(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    # After a migration there is no class of finished jobs until a queue needs one.
    await conn.execute("drop table penstock.finished_1, penstock.finished_2")
    await conn.execute("delete from penstock.retention_class")
    await conn.execute("update penstock.setting set partitions_ahead = default")
    await conn.execute("select penstock.make_partitions()")
    await factory.queue(conn)

    async def ahead() -> float:
        days: float = await conn.fetchval(
            "select extract(epoch from penstock.partitions_ahead()) / 86400.0"
        )
        return float(days)

    assert await ahead() >= 14
    await clock.advance("20d")
    assert await ahead() < 14
    await conn.execute("select penstock.make_partitions()")
    assert await ahead() >= 14
