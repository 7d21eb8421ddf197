"""`JobInfo`: typed attributes and, as a mapping, the JSON of the same job."""

import json
from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import JobInfo
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Error, Retry, Succeeded
from penstock.engine.jobs.jobs import NewJob
from penstock.engine.states import JobStatus
from penstock.http.schemas import answers
from support.clock import Clock

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
# Fields that only operators see, about one job (rows.sql, `inspect_job`).
OPERATORS = {"worker", "dedupe_key", "expires_at", "has_result", "steps"}


async def a_finished_job(engine: Engine, clock: Clock) -> JobInfo:
    """A job that succeeded in its second attempt."""
    await clock.freeze(NOON)
    await engine.queues.declare("q")
    await engine.queues.declare_kind("k", "q")
    worker = await engine.workers.register("w")
    new = NewJob(kind="k", payload={"n": 1}, topic="t", account="u1", metadata={"m": 1})
    its_id = (await engine.jobs.submit(new)).id
    for outcome in (Retry(Error("bug", "why"), after=timedelta(0)), Succeeded({"score": 7})):
        [job] = await engine.jobs.claim(worker, "q", 1)
        await engine.jobs.finish(worker, [(job, outcome)])
    return await engine.jobs.read(its_id)


async def test_attributes_are_typed_and_keys_hold_the_json(engine: Engine, clock: Clock) -> None:
    job = await a_finished_job(engine, clock)
    assert (job.status, job.attempt, job.result) == (JobStatus.SUCCEEDED, 2, {"score": 7})
    assert (job.created_at, job.finished_at) == (NOON, NOON)
    assert job["created_at"] == "2030-01-01T12:00:00.000000Z"
    assert str(job.id) == job["id"]
    assert [one["outcome"] for one in job.attempts] == ["retried", "succeeded"]
    assert dict(job) == job.json == json.loads(json.dumps(job.json))
    assert job == job.json
    with pytest.raises(FrozenInstanceError):
        job.status = JobStatus.FAILED  # type: ignore[misc]


async def test_each_reader_gets_job_infos_with_equal_fields(engine: Engine, clock: Clock) -> None:
    job = await a_finished_job(engine, clock)
    [listed] = await engine.lists.jobs()
    [row] = await engine.rows.read([job.id])
    inspected = await engine.rows.inspect(job.id)
    assert listed == row
    for seen in (listed, inspected):
        for name in seen.keys() - OPERATORS:
            assert getattr(seen, name) == getattr(job, name), name
    # In the short form of a list, missing fields are those of a job without them.
    assert (listed.result, listed.attempts, listed.metadata) == (None, [], {})


async def test_the_fields_are_those_of_the_sql_and_of_the_http_api(
    engine: Engine, clock: Clock
) -> None:
    job = await a_finished_job(engine, clock)
    names: set[Any] = {one.name for one in fields(JobInfo)} - {"json"}
    assert names == job.keys()
    assert names == answers.Job.model_fields.keys()
