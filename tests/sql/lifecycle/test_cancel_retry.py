"""Cancel and retry, as requested by a person."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import refused


async def cancel(conn: asyncpg.Connection, job: UUID) -> dict[str, Any]:
    shown: dict[str, Any] = await conn.fetchval("select penstock.cancel_job($1)", job)
    return shown


async def retry(conn: asyncpg.Connection, job: UUID) -> dict[str, Any]:
    shown: dict[str, Any] = await conn.fetchval("select penstock.retry_job($1)", job)
    return shown


@pytest.mark.parametrize("account", [None, "u1"])
@pytest.mark.parametrize("delay", [None, 60])
async def test_a_waiting_job_is_cancelled_at_once(
    conn: asyncpg.Connection, clock: Clock, account: str | None, delay: int | None
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    job = await factory.submit(conn, account=account, delay_seconds=delay, payload={"n": 1})
    shown = await cancel(conn, job)
    assert (shown["status"], shown["attempt"], shown["attempts"]) == ("cancelled", 0, [])
    assert shown["finished_at"] is not None
    assert shown["error"] == {
        "class": "cancelled",
        "reason": None,
        "message": "cancelled while it waited",
        "retryable": False,
    }
    await clock.advance("2m")
    assert await factory.claim(conn, await factory.worker(conn)) == []


async def test_a_job_that_backs_off_can_be_cancelled(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker), "retry")
    shown = await cancel(conn, job)
    assert (shown["status"], shown["attempt"]) == ("cancelled", 1)
    assert [a["outcome"] for a in shown["attempts"]] == ["retried"]


@pytest.mark.parametrize("reported", ["cancelled", "retry", "snoozed", "released", "deferred"])
async def test_a_cancelled_running_job_does_not_return_to_the_queue(
    conn: asyncpg.Connection, reported: str
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    start = await factory.claim(conn, worker)
    shown = await cancel(conn, job)
    assert (shown["status"], shown["cancel_requested"]) == ("running", True)
    [verdict] = await factory.finish(conn, worker, start, reported)
    assert (verdict["verdict"], verdict["status"]) == ("done", "cancelled")
    assert (await factory.read(conn, job))["error"]["class"] == "cancelled"


@pytest.mark.parametrize("reported", ["succeeded", "failed"])
async def test_a_cancelled_running_job_that_succeeds_anyway_is_succeeded(
    conn: asyncpg.Connection, reported: str
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    start = await factory.claim(conn, worker)
    await cancel(conn, job)
    [verdict] = await factory.finish(conn, worker, start, reported)
    assert verdict["status"] == reported


async def test_recovery_cancels_a_job_whose_worker_ignores_the_request(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    await factory.queue(conn, concurrency=1)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    start = await factory.claim(conn, worker)
    await cancel(conn, job)
    await clock.advance("5s", beats=True)
    await cancel(conn, job)  # a second request does not start the ten seconds again
    await clock.advance("4.9s", beats=True)
    assert await factory.recover(conn) == []
    await clock.advance("0.1s", beats=True)
    [row] = await factory.recover(conn)
    assert (row["outcome"], row["status"]) == ("cancelled", "cancelled")
    [verdict] = await factory.finish(conn, worker, start, result="late")
    assert verdict["verdict"] == "stale"
    assert (await factory.read(conn, job))["result"] is None


async def test_cancelling_a_finished_job_changes_nothing(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker), result=1)
    before = await factory.contents(conn)
    shown = await cancel(conn, job)
    assert (shown["status"], shown["result"]) == ("succeeded", 1)
    assert await factory.contents(conn) == before


async def test_an_unknown_job_can_neither_be_cancelled_nor_retried(
    conn: asyncpg.Connection,
) -> None:
    for ask in (cancel, retry):
        with refused(404, "unknown_job", "id"):
            await ask(conn, UUID(int=7))


async def test_the_dedupe_key_of_a_cancelled_job_is_free_again(conn: asyncpg.Connection) -> None:
    """M9"""
    await factory.queue(conn)
    job = await factory.submit(conn, dedupe_key="k")
    await cancel(conn, job)
    assert await factory.submit(conn, dedupe_key="k") != job


@pytest.mark.parametrize("outcome", ["failed", "succeeded", "cancelled"])
async def test_retrying_a_finished_job_submits_a_new_one(
    conn: asyncpg.Connection, outcome: str
) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    asked: dict[str, Any] = {
        "payload": {"n": 1},
        "account": "u1",
        "topic": "t",
        "priority": 7,
        "max_attempts": 9,
        "metadata": {"m": 1},
        "dedupe_key": "k",
    }
    job = await factory.submit(conn, timeout_seconds=33, **asked)
    await factory.finish(conn, worker, await factory.claim(conn, worker), outcome)
    old = await factory.read(conn, job)

    new = await retry(conn, job)
    assert new["id"] != str(job)
    assert (new["status"], new["retry_of"], new["deduplicated"]) == ("queued", str(job), False)
    assert (new["attempt"], new["failures"], new["error"]) == (0, 0, None)
    for name in ("account", "topic", "priority", "max_attempts", "metadata"):
        assert new[name] == asked[name], name
    assert await factory.read(conn, job) == old | {"retried_by": new["id"]}
    [start] = await factory.claim(conn, worker)
    assert start["payload"] == {"n": 1}
    assert (start["timeout_at"] - start["started_at"]).total_seconds() == 33


@pytest.mark.parametrize("way", ["alone", "with others", "many"])
@pytest.mark.parametrize("priority", [7, None])
async def test_a_retry_keeps_a_given_priority_and_derives_any_other_again(
    conn: asyncpg.Connection, way: str, priority: int | None
) -> None:
    await factory.queue(conn)
    await conn.execute("update penstock.kind set priority_offset = 5")
    call = {
        "alone": "select id from penstock.submit_one('q', '{}', p_priority => $1)",
        "with others": "select (job ->> 'id')::uuid from penstock.accept_jobs("
        "'q', array['q'], array['{}'::jsonb], p_priorities => array[$1::integer])",
        "many": "select id from penstock.submit_many("
        "array['q'], array['{}'::jsonb], p_priorities => array[$1::integer])",
    }
    job = await conn.fetchval(call[way], priority)
    await conn.execute("update penstock.kind set priority_offset = 6")
    await cancel(conn, job)
    again = await retry(conn, job)
    assert again["priority"] == (6 if priority is None else 7)


async def test_a_second_retry_returns_the_job_of_the_first(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    worker = await factory.worker(conn)
    job = await factory.submit(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker), "failed")
    first = await retry(conn, job)
    second = await retry(conn, job)
    assert (second["id"], second["deduplicated"]) == (first["id"], True)
    # When the retry has finished, too, the job may be retried again.
    await factory.finish(conn, worker, await factory.claim(conn, worker), "failed")
    third = await retry(conn, job)
    assert third["deduplicated"] is False
    assert third["id"] not in {first["id"], str(job)}


async def test_a_retry_whose_dedupe_key_is_in_use_returns_that_live_job(
    conn: asyncpg.Connection,
) -> None:
    """M9"""
    await factory.queue(conn)
    job = await factory.submit(conn, dedupe_key="k")
    await cancel(conn, job)
    twin = await factory.submit(conn, dedupe_key="k")
    shown = await retry(conn, job)
    assert (shown["id"], shown["deduplicated"]) == (str(twin), True)
    assert (await factory.read(conn, job))["retried_by"] is None


@pytest.mark.parametrize("account", [None, "u1"])
async def test_retrying_a_scheduled_job_runs_it_now(
    conn: asyncpg.Connection, account: str | None
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    delayed = await factory.submit(conn, account=account, delay_seconds=3600)
    shown = await retry(conn, delayed)
    assert (shown["id"], shown["status"]) == (str(delayed), "queued")
    start = await factory.claim(conn, worker)
    await factory.finish(conn, worker, start, "retry")
    assert await factory.claim(conn, worker) == []
    assert (await retry(conn, delayed))["status"] == "queued"
    [again] = await factory.claim(conn, worker)
    assert (again["id"], again["attempt"], again["failures"]) == (delayed, 2, 1)


@pytest.mark.parametrize("status", ["queued", "running"])
async def test_a_queued_or_running_job_is_not_retried(
    conn: asyncpg.Connection, status: str
) -> None:
    await factory.queue(conn)
    job = await factory.submit(conn)
    if status == "running":
        await factory.claim(conn, await factory.worker(conn))
    with refused(409, "job_not_finished", "id"):
        await retry(conn, job)
    assert await factory.status(conn, job) == status
