"""Jobs as rows of a table, counts with a bound, and details of one job for operators."""

from typing import Any
from uuid import UUID, uuid4

import asyncpg

from support import factory
from support.clock import Clock
from support.factory import refused


async def finished(conn: asyncpg.Connection, outcome: str = "succeeded", **fields: Any) -> UUID:
    worker = await factory.worker(conn)
    job = await factory.submit(conn, **fields)
    rows = await factory.claim(conn, worker)
    await factory.finish(conn, worker, rows, outcome, result={"score": 7})
    return job


async def test_rows_have_the_order_of_the_ids_and_missing_jobs_are_left_out(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    done = await finished(conn)
    live = await factory.submit(conn)
    rows = await conn.fetch("select penstock.read_rows($1) as job", [live, uuid4(), done])
    assert [(row["job"]["id"], row["job"]["status"]) for row in rows] == [
        (str(live), "queued"),
        (str(done), "succeeded"),
    ]


async def test_a_page_of_rows_has_the_jobs_of_a_page_of_jobs(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await finished(conn)
    for n in range(5):
        await factory.submit(conn, topic=f"a{n % 2}")
    for filters in ("", "p_topic => 'a1'", "p_status => 'succeeded'", "p_limit => 2"):
        rows = await conn.fetch(f"select job, after from penstock.page_rows({filters})")
        jobs = await conn.fetch(
            f"select job::jsonb as job, after from penstock.page_jobs({filters})"
        )
        assert [row["job"] and row["job"]["id"] for row in rows] == [
            row["job"] and row["job"]["id"] for row in jobs
        ]
        assert rows[-1]["after"] == jobs[-1]["after"]
        for row, job in zip(rows[:-1], jobs[:-1], strict=True):
            known = row["job"].keys() - {"waiting_for"}
            assert known <= job["job"].keys()
            assert {key: row["job"][key] for key in known} == {
                key: job["job"][key] for key in known
            }


async def test_a_row_has_the_same_waiting_for_as_its_job(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """Also if it is due and no worker is alive to queue it."""
    await factory.queue(conn)
    worker = await factory.worker(conn, lease="1 minute")
    retried = await factory.submit(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker), "retry", delay="30s")
    planned = await factory.submit(conn, delay_seconds=30)
    queued = await factory.submit(conn)

    async def words() -> list[str | None]:
        rows = await conn.fetch("select penstock.read_rows($1) as job", [queued, planned, retried])
        reasons = [row["job"]["waiting_for"] for row in rows]
        assert reasons == [
            (await factory.read(conn, job))["waiting_for"] for job in (queued, planned, retried)
        ]
        return reasons

    assert await words() == [None, None, "backoff"]
    await conn.execute("select penstock.open_circuit('q', 'down for the night')")
    assert await words() == ["circuit_open", None, "circuit_open"]
    await clock.advance("1h")
    assert await words() == ["no_worker"] * 3


async def test_a_page_of_a_batch_refuses_an_invalid_limit(
    conn: asyncpg.Connection,
) -> None:
    for limit in (0, 1001, None):
        with refused(422, "invalid_filter", "limit"):
            await conn.fetch("select penstock.page_batch_rows($1, $2)", uuid4(), limit)


async def test_a_count_stops_at_its_bound_and_is_then_not_exact(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await finished(conn)
    for _ in range(3):
        await factory.submit(conn)

    async def count(status: str | None, most: int) -> tuple[int, bool]:
        sql = "select total, exact from penstock.count_jobs(p_status => $1, p_most => $2)"
        [row] = await conn.fetch(sql, status, most)
        return row["total"], row["exact"]

    assert await count(None, 4) == (4, True)
    assert await count(None, 3) == (3, False)
    assert await count("queued", 10) == (3, True)


async def test_the_estimate_follows_the_statistics_of_live_and_finished_jobs(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    await finished(conn)
    await factory.submit(conn)
    await conn.execute("analyze penstock.job")
    await conn.execute("analyze penstock.finished")
    assert await conn.fetchval("select penstock.estimate_jobs()") == 2


async def test_an_inspected_job_is_the_job_without_its_result_and_with_its_worker(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    job = await finished(conn, dedupe_key="k")
    found = await conn.fetchval("select penstock.inspect_job($1)", job)
    shown = await factory.read(conn, job)
    assert "result" not in found
    assert found["has_result"]
    assert found["dedupe_key"] == "k"
    assert {key: found[key] for key in shown if key != "result"} == {
        key: shown[key] for key in shown if key != "result"
    }
    with refused(404, "unknown_job", "id"):
        await conn.fetchval("select penstock.inspect_job($1)", uuid4())


async def test_a_body_is_cut_for_people_and_whole_for_programs(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    upload = uuid4()
    payload = {"text": "x" * 100, "pages": [{"upload": str(upload)}], "upload": "none"}
    job = await factory.submit(conn, payload=payload)

    async def read(job: UUID, part: str, most: int | None) -> asyncpg.Record:
        sql = "select body, characters, uploads from penstock.read_body($1, $2, $3)"
        [row] = await conn.fetch(sql, job, part, most)
        return row

    cut = await read(job, "payload", 10)
    assert len(cut["body"]) == 10
    assert cut["characters"] > 100
    assert cut["uploads"] == [upload]
    whole = await read(job, "payload", None)
    assert len(whole["body"]) == whole["characters"]
    assert (await read(job, "result", 10))["body"] is None
    with refused(404, "unknown_job", "id"):
        await read(uuid4(), "payload", 10)
    with refused(422, "invalid_request", "part"):
        await read(job, "secret", 10)
