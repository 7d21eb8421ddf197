"""Operators' routes: liveness, readiness, status, hourly figures."""

from typing import Any

import asyncpg
import pytest

from penstock import Fail, Job, Retry
from support import factory
from support.http.site import Site, problem


async def test_a_process_is_alive_without_the_database(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise AssertionError("it queried the database")

    await site.start()
    monkeypatch.setattr("penstock.db.connections.pool.Pool.fetch", broken)
    monkeypatch.setattr("penstock.db.connections.pool.Pool.acquire", broken)
    answer = await site.anonymous.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_it_is_ready_while_the_database_has_our_schema(
    site: Site, conn: asyncpg.Connection
) -> None:
    assert (await site.anonymous.get("/readyz")).json() == {"status": "ok"}
    kept = await conn.fetchval("select functions_checksum from penstock.schema_info")
    change = "update penstock.schema_info set functions_checksum = $1"
    await conn.execute(change, "of another version")
    refusal = problem(await site.anonymous.get("/readyz"), 503, "not_ready")
    assert "penstock migrate up" in refusal["detail"]
    await conn.execute(change, kept)
    assert (await site.anonymous.get("/readyz")).status_code == 200


async def test_it_is_not_ready_while_the_database_is_unavailable(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start()
    site.api.state.backend.engine.renew()

    async def unavailable(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("asyncpg.connect", unavailable)
    refusal = problem(await site.anonymous.get("/readyz"), 503, "not_ready")
    assert "database" in refusal["detail"]
    problem(await site.admin.get("/v1/admin/status"), 503, "unavailable")


async def test_status_has_the_form_of_the_contract_e11_m15(
    site: Site,
) -> None:
    """E11, M15: totals, averages, queues, workers."""
    queue = site.penstock.queue("model", concurrency=1)

    @site.penstock.job(queue=queue)
    async def mark(ok: bool) -> int:
        if not ok:
            raise Fail("no")
        return 7

    await mark.submit(ok=True)
    await mark.submit(ok=False)
    await site.work()
    await mark.submit(ok=True)
    found = (await site.admin.get("/v1/admin/status")).json()
    assert found.keys() >= {
        *("pending", "processing", "failed_today", "avg_processing_seconds"),
        *("avg_turnaround_seconds", "queues", "stuck", "workers"),
    }
    assert (found["pending"], found["processing"], found["failed_today"]) == (1, 0, 1)
    assert found["avg_processing_seconds"] >= 0
    assert [one["name"] for one in found["queues"]] == ["model"]
    assert found["stuck"] == []


async def test_stuck_jobs_are_listed_with_stage_class_and_since_s11(
    site: Site, conn: asyncpg.Connection
) -> None:
    """S11: running without progress; then recovered, and waiting."""
    await factory.queue(
        conn, timeout_seconds=3_600, stale_after_seconds=180, stuck_after_seconds=300, recovery=3
    )
    worker = await factory.worker(conn, "w1", lease="1 day")
    await factory.submit_rows(conn, [{"kind": "q"}] * 2)
    stuck, awaiting = await factory.claim(conn, worker, limit=2)
    await conn.execute("update penstock.job set stage = 'TIER1' where id = $1", stuck["id"])
    await factory.hand_over(conn, worker, awaiting, "a" * 20)
    status = site.admin.get
    assert (await status("/v1/admin/status")).json()["stuck"] == []
    await site.clock.advance("200s")
    found = {one["id"]: one for one in (await status("/v1/admin/status")).json()["stuck"]}
    one = found[str(stuck["id"])]
    assert (one["kind"], one["stage"], one["class"]) == ("q", "TIER1", "stalled")
    assert one["recovery"] == {"count": 0, "max": 3, "last_at": None, "next_at": None}
    assert one["since"].endswith("Z")
    assert found[str(awaiting["id"])]["class"] == "no_callback"
    await site.clock.advance("400s")
    await factory.recover(conn)
    await factory.claim(conn, worker, limit=2)
    await site.clock.advance("400s")
    await factory.recover(conn)  # after the second recovery it waits before its next attempt
    [one] = [
        one
        for one in (await status("/v1/admin/status")).json()["stuck"]
        if one["id"] == str(stuck["id"])
    ]
    assert (one["status"], one["recovery"]["count"]) == ("scheduled", 2)
    assert one["recovery"]["next_at"] > one["recovery"]["last_at"] == one["since"]


async def test_metrics_count_outcomes_by_the_hour_s10_s11(site: Site) -> None:
    """S10, S11: including a job that has just finished."""
    queue = site.penstock.queue("model")

    @site.penstock.job(queue=queue)
    async def mark(job: Job) -> int:
        if job.attempt == 1:
            raise Retry(after=0)
        return 7

    @site.penstock.job(queue=queue)
    async def refuse() -> None:
        raise Fail("no", cls="refused")

    await mark.submit()
    await refuse.submit()
    await site.work()
    answer = await site.admin.get("/v1/admin/metrics?hours=1")
    assert answer.status_code == 200
    found = answer.json()
    assert found.keys() == {"timeouts", "throughput"}
    outcomes = {(one["kind"], one["outcome"]): one for one in found["throughput"]}
    assert outcomes.keys() == {("mark", "retried"), ("mark", "succeeded"), ("refuse", "failed")}
    assert outcomes["mark", "succeeded"].keys() == {
        *("hour", "queue", "kind", "outcome", "count", "total_duration_ms"),
    }
    classes = {one["class"]: one["count"] for one in found["timeouts"]}
    assert classes["refused"] == 1
    assert (await site.admin.get("/v1/admin/metrics")).json() == found
    for hours in ("0", "2161", "x", "-1", "1.5"):
        answer = await site.admin.get("/v1/admin/metrics", params={"hours": hours})
        assert problem(answer, 422, "invalid_request")["field"] == "hours"


async def test_workers_roll_up_the_finished_jobs(site: Site, conn: asyncpg.Connection) -> None:
    queue = site.penstock.queue("model")

    @site.penstock.job(queue=queue)
    async def mark() -> int:
        return 7

    await mark.submit()
    await site.work()
    await site.clock.advance("20s")
    await site.work()
    row = await conn.fetchrow("select queue, kind, outcome, class, count from penstock.hourly")
    assert row
    assert tuple(row) == ("model", "mark", "succeeded", None, 1)


async def test_only_operators_see_status_and_metrics(site: Site) -> None:
    own = await site.account_client("u1")
    for path in ("/v1/admin/status", "/v1/admin/metrics"):
        problem(await site.anonymous.get(path), 401, "unauthorized")
        for client in (own, site.app_client):
            problem(await client.get(path), 403, "not_allowed")
