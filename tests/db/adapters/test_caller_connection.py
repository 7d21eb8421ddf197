"""A submit inside the app's own transaction, on any kind of connection."""

import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from penstock.engine.engine import Engine
from penstock.engine.jobs.jobs import NewJob
from penstock.engine.states import JobStatus
from penstock.errors import Conflict, Invalid, NotFound, TooLarge
from support import factory
from support.caller_connections import BORROWERS
from support.cluster import wheel_binaries

every_driver = pytest.mark.parametrize("driver", BORROWERS)

# Each field once, so that every driver passes a value of each type.
FULL = NewJob(
    kind="q",
    payload={"text": "100 % of $1 :p1 %s 'ü😀'", "list": [1, None, {"a": 2.5}]},
    account="Zoë's",
    dedupe_key="d%",
    topic="t:1",
    priority=-7,
    run_at=datetime(2030, 1, 1, 12, tzinfo=UTC),
    max_attempts=4,
    timeout=timedelta(days=2, seconds=1.5),
    expires=timedelta(hours=1),
    metadata={"m": [True]},
)


@pytest.fixture
async def ready(engine: Engine, conn: asyncpg.Connection) -> Engine:
    await factory.queue(conn)
    await conn.execute("create table public.task (name text)")
    return engine


async def counts(conn: asyncpg.Connection) -> tuple[int, int]:
    """Count the app's tasks and the jobs that other sessions can see."""
    row = await conn.fetchrow(
        "select (select count(*) from task) as tasks, (select count(*) from penstock.job) as jobs"
    )
    assert row
    return row["tasks"], row["jobs"]


@every_driver
@pytest.mark.parametrize("commits", [True, False])
async def test_the_apps_write_and_its_job_are_atomic(
    ready: Engine, conn: asyncpg.Connection, database: str, driver: str, commits: bool
) -> None:
    """E3: both are committed, or neither."""
    async with BORROWERS[driver](database) as app:
        await app.execute("insert into task values ('essay')")
        ticket = await ready.jobs.submit(NewJob(kind="q", account="u1"), conn=app.conn)
        assert isinstance(ticket.id, UUID)
        assert ticket.status is JobStatus.QUEUED
        assert (await ready.jobs.read(ticket.id, conn=app.conn))["status"] == "queued"
        assert await counts(conn) == (0, 0)
        await app.end(commits=commits)
    assert await counts(conn) == ((1, 1) if commits else (0, 0))


@every_driver
async def test_every_field_arrives_unchanged(
    ready: Engine, conn: asyncpg.Connection, database: str, driver: str
) -> None:
    async with BORROWERS[driver](database) as app:
        one = await ready.jobs.submit(FULL, idempotency_key="i", conn=app.conn)
        again = await ready.jobs.submit(FULL, idempotency_key="i", conn=app.conn)
        assert (again.id, again.replayed) == (one.id, True)
        late = NewJob(kind="q", delay=timedelta(minutes=5), metadata={"n": 1})
        many = await ready.jobs.submit_many([NewJob(kind="q"), FULL, late], conn=app.conn)
        await app.end(commits=True)
    assert [ticket.status for ticket in many] == ["queued", "scheduled", "scheduled"]
    assert (many[1].id, many[1].deduplicated) == (one.id, True)
    row = await conn.fetchrow(
        "select j.*, a.name as account from penstock.job j"
        " join penstock.account a on a.id = j.account_id where j.id = $1",
        one.id,
    )
    assert row
    for name in ("payload", "account", "dedupe_key", "topic", "priority", "run_at"):
        assert row[name] == getattr(FULL, name), name
    assert (row["max_attempts"], row["timeout"]) == (4, timedelta(days=2, seconds=1.5))
    assert row["expires_at"] - row["run_at"] == timedelta(hours=1)
    assert row["metadata"] == {"m": [True]}
    plain = await conn.fetchrow("select * from penstock.job where id = $1", many[0].id)
    assert plain
    assert (plain["topic"], plain["metadata"], plain["timeout"]) == (None, None, None)


@every_driver
async def test_other_calls_work_inside_the_transaction_too(
    ready: Engine, database: str, driver: str
) -> None:
    delayed = (await ready.jobs.submit(NewJob(kind="q", delay=timedelta(hours=1)))).id
    async with BORROWERS[driver](database) as app:
        now = await ready.jobs.retry(delayed, conn=app.conn)
        assert now["status"] == "queued"
        gone = await ready.jobs.cancel(delayed, conn=app.conn)
        assert (gone["status"], gone["error"]["class"]) == ("cancelled", "cancelled")
        assert (await ready.jobs.read(delayed))["status"] == "scheduled"
        await app.end(commits=False)
    assert (await ready.jobs.read(delayed))["status"] == "scheduled"


@every_driver
async def test_a_refusal_has_penstocks_error_with_every_driver(
    ready: Engine, database: str, driver: str
) -> None:
    job = (await ready.jobs.submit(NewJob(kind="q"))).id
    async with BORROWERS[driver](database) as app:
        with pytest.raises(NotFound) as unknown:
            await ready.jobs.submit(NewJob(kind="nope"), conn=app.conn)
        await app.end(commits=False)
        assert unknown.value.message == "there is no job kind nope"
        assert (unknown.value.code, unknown.value.field) == ("unknown_kind", "kind")
        assert (unknown.value.status, unknown.value.sqlstate) == (404, "PS404")
        assert unknown.value.members == {"kind": "nope", "index": 0}
        assert "spelling" in (unknown.value.hint or "")
    async with BORROWERS[driver](database) as app:
        with pytest.raises(TooLarge) as large:
            await ready.jobs.submit_many(
                [NewJob(kind="q", payload={"a": "x" * 2**20})], conn=app.conn
            )
        await app.end(commits=False)
        assert large.value.members["max_bytes"] == 2**20
    async with BORROWERS[driver](database) as app:
        with pytest.raises(Conflict) as running:
            await ready.jobs.retry(job, conn=app.conn)
        await app.end(commits=False)
        assert running.value.code == "job_not_finished"


async def test_other_driver_errors_stay_unchanged(
    ready: Engine, database: str, conn: asyncpg.Connection
) -> None:
    await conn.execute("alter table penstock.job rename to job_away")
    for driver, opened in BORROWERS.items():
        async with opened(database) as app:
            with pytest.raises(Exception, match="does not exist") as caught:
                await ready.jobs.submit(NewJob(kind="q"), conn=app.conn)
            assert not type(caught.value).__module__.startswith("penstock"), driver
            await app.end(commits=False)
    await conn.execute("alter table penstock.job_away rename to job")


@pytest.mark.parametrize(
    "thing",
    [
        object(),
        "postgresql://",
        5,
        sqlalchemy.create_engine("postgresql+psycopg://u@127.0.0.1:1/jobs"),
        create_async_engine("postgresql+asyncpg://u@127.0.0.1:1/jobs"),
    ],
    ids=lambda thing: type(thing).__name__,
)
async def test_an_object_that_is_not_a_connection_is_refused(ready: Engine, thing: Any) -> None:
    with pytest.raises(Invalid, match="conn must be a connection of asyncpg") as caught:
        await ready.jobs.submit(NewJob(kind="q"), conn=thing)
    assert (caught.value.code, caught.value.field) == ("invalid_connection", "conn")


@pytest.mark.parametrize("commits", [True, False])
async def test_any_language_submits_by_plain_sql_in_its_own_transaction(
    ready: Engine, conn: asyncpg.Connection, database: str, commits: bool
) -> None:
    """E3, F11: here by psql, without a driver and without a library of Penstock."""
    assert ready
    script = f"""
        begin;
        insert into task values ('essay');
        select penstock.submit_job('q', '{{"essay": "it''s mine"}}', account => 'u1',
          dedupe_key => 'essay-1', delay_seconds => 60) ->> 'status';
        select count(*) from penstock.submit_jobs('[{{"kind": "q", "payload": {{}}}}]');
        {"commit" if commits else "rollback"};
    """
    psql = [str(wheel_binaries() / "psql"), database, "-XqAt", "-v", "ON_ERROR_STOP=1"]
    done = subprocess.run(psql, input=script, capture_output=True, text=True, check=True)  # noqa: ASYNC221 - nothing else runs
    assert done.stdout.split() == ["scheduled", "1"]
    assert await counts(conn) == ((1, 2) if commits else (0, 0))


async def test_a_refusal_in_plain_sql_has_a_message_a_code_and_a_field(
    ready: Engine, database: str
) -> None:
    assert ready
    script = "\\set VERBOSITY verbose\nselect penstock.submit_job('q', '{}', priority => 5000);"
    psql = [str(wheel_binaries() / "psql"), database, "-XqAt"]
    done = subprocess.run(psql, input=script, capture_output=True, text=True, check=False)  # noqa: ASYNC221 - nothing else runs
    assert "PS422: priority must be from -1000 to 1000, lower runs first" in done.stderr
    assert '"code": "invalid_job"' in done.stderr
    assert '"field": "priority"' in done.stderr
