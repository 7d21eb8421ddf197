"""A job has one JSON: each function that returns jobs has the same values for it."""

from typing import Any
from uuid import UUID

import asyncpg

from support import factory
from support.clock import Clock

OUTCOMES = ("succeeded", "failed", "cancelled", "retry", "awaiting", "running")
WHY = {"class": "bug", "reason": None, "message": "why", "retryable": True, "frames": ["a.py:1"]}
# Values that are counted, or read from history, only when a single job is read.
COUNTED = {"position", "eta_seconds", "waiting_for"}

WHOLE = (
    "select job::jsonb as job from penstock.page_jobs() where job is not null",
    "select jsonb_array_elements(penstock.read_batch($1) -> 'items') as job",
)
SHORT = (
    "select job from penstock.list_jobs() job",
    "select job from penstock.page_rows() where job is not null",
    "select job from penstock.page_batch_rows($1) where job is not null",
)


async def a_job_in_every_state(conn: asyncpg.Connection, clock: Clock) -> dict[str, Any]:
    """Jobs of one batch in every state, as read_job returns them, by id."""
    await factory.plan(conn)
    await factory.queue(conn)
    worker = await factory.worker(conn, lease="1 hour")
    await factory.submit_rows(conn, [{"kind": "q", "account": "u"}])
    await conn.execute("select penstock.grant_credits('u', 100, 'gift', null)")
    fields = {"account": "u", "topic": "t", "price": 3, "metadata": {"n": 1}}
    jobs = await factory.submit_rows(conn, [{"kind": "q", **fields}] * (len(OUTCOMES) + 1))
    await factory.claim(conn, worker)
    for outcome in OUTCOMES:
        await clock.advance(1)
        started = await factory.claim(conn, worker)
        assert len(started) == 1
        if outcome == "awaiting":
            await factory.hand_over(conn, worker, started[0], "a token of 16 characters")
        elif outcome != "running":
            result = {"score": 7} if outcome == "succeeded" else None
            error = None if outcome == "succeeded" else WHY
            delay = "1h" if outcome == "retry" else None
            await factory.finish(
                conn, worker, started, outcome, result=result, error=error, delay=delay
            )
    shown = [await factory.read(conn, job) for job in jobs]
    assert {job["status"] for job in shown} == {
        "succeeded", "failed", "cancelled", "scheduled", "awaiting", "running", "queued",
    }  # fmt: skip
    return {job["id"]: job for job in shown}


async def read(conn: asyncpg.Connection, sql: str, batch: str) -> dict[str, Any]:
    rows = await conn.fetch(sql, *([UUID(batch)] if "$1" in sql else []))
    return {row["job"]["id"]: row["job"] for row in rows}


async def test_every_reader_of_jobs_gets_the_same_values(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    jobs = await a_job_in_every_state(conn, clock)
    [batch] = {job["batch"] for job in jobs.values()}
    for sql in (*WHOLE, *SHORT):
        found = await read(conn, sql, batch)
        for its_id, job in jobs.items():
            known = found[its_id].keys() - COUNTED
            assert {key: found[its_id][key] for key in known} == {key: job[key] for key in known}
    for sql in WHOLE:
        found = await read(conn, sql, batch)
        assert all(
            found[its_id].keys() == job.keys() - {"attempts"} for its_id, job in jobs.items()
        )


async def test_the_short_form_has_the_same_keys_in_every_list(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """It has no value that may be large."""
    jobs = await a_job_in_every_state(conn, clock)
    [batch] = {job["batch"] for job in jobs.values()}
    forms = [{frozenset(job) for job in (await read(conn, sql, batch)).values()} for sql in SHORT]
    [[keys]] = {tuple(form) for form in forms}
    assert not keys & {"result", "progress", "metadata", "usage", "attempts"}
