"""A submit that wakes workers before the job is on disk: its answer, and the rights it needs."""

from urllib.parse import urlsplit

import asyncpg
import pytest

from penstock.engine.engine import Engine
from penstock.engine.jobs.jobs import NewJob
from penstock.engine.states import JobStatus
from penstock.errors import Invalid
from support import factory
from support.cluster import Cluster
from support.shapes import Connect

JOB = NewJob(kind="q")


async def submitted(conn: asyncpg.Connection) -> int:
    found: int = await conn.fetchval("select count(*) from penstock.job")
    return found


async def test_its_answer_is_that_of_any_submit(
    engine: Engine, conn: asyncpg.Connection, connect: Connect
) -> None:
    heard: list[object] = []
    ear = await connect()
    await factory.queue(conn)
    await ear.add_listener("penstock_job", lambda *args: heard.append(args[-1]))
    plain = await engine.jobs.submit(JOB)
    first = await engine.jobs.submit(JOB, wake="q", idempotency_key="k")
    again = await engine.jobs.submit(JOB, wake="q", idempotency_key="k")
    twin = NewJob(kind="q", dedupe_key="d")
    ids = [(await engine.jobs.submit(twin, wake="q")).id for _ in range(2)]
    assert (first.status, first.replayed, first.position) == (JobStatus.QUEUED, False, 2)
    assert again == first._replace(replayed=True)
    assert plain._replace(id=first.id, position=2) == first
    assert ids[0] == ids[1]
    with pytest.raises(Invalid) as caught:
        await engine.jobs.submit(NewJob(kind="q", priority=5000), wake="q")
    assert caught.value.field == "priority"
    await ear.execute("select 1")
    assert heard == ["q", "q"], "neither a repetition nor a twin wakes workers"
    assert await submitted(conn) == 3


async def test_a_job_that_was_started_meanwhile_was_the_next(
    engine: Engine, conn: asyncpg.Connection
) -> None:
    """Its position is read after the commit, and a worker may be faster."""
    await factory.queue(conn)
    worker = await factory.worker(conn)
    first = await engine.jobs.submit(JOB, wake="q")
    second = await engine.jobs.submit(JOB, wake="q")
    assert (first.position, first.eta_seconds, second.position) == (1, 0, 2)
    assert await factory.claim(conn, worker) != []
    read = await conn.fetchrow(
        "select queue_position, eta_seconds from penstock.read_submitted($1)", first.id
    )
    assert read is not None
    assert tuple(read) == (1, 0)


async def test_a_role_that_may_not_read_the_position_submits_without_it(
    stranger: str, conn: asyncpg.Connection
) -> None:
    await factory.queue(conn)
    for routine in ("function penstock.submit_one", "procedure penstock.submit_waking"):
        await conn.execute(f"grant execute on {routine} to {_role(stranger)}")
    async with await Engine.open(stranger) as engine:
        assert (await engine.jobs.submit(JOB, wake="q")).position is None
    assert await submitted(conn) == 1


async def test_a_role_that_may_not_call_it_submits_in_the_other_way(
    stranger: str, conn: asyncpg.Connection
) -> None:
    """A role whose rights were granted before this procedure existed."""
    await factory.queue(conn)
    await conn.execute(f"grant execute on function penstock.submit_one to {_role(stranger)}")
    async with await Engine.open(stranger) as engine:
        for _ in range(2):
            await engine.jobs.submit(JOB, wake="q")
    assert await submitted(conn) == 2


async def test_if_it_could_not_wait_it_accepts_nothing(
    stranger: str, cluster: Cluster, conn: asyncpg.Connection
) -> None:
    """A server that revoked pg_logical_emit_message: one job, and not one in either way."""
    await factory.queue(conn)
    await conn.execute(f"grant execute on function penstock.submit_one to {_role(stranger)}")
    await conn.execute(f"grant execute on procedure penstock.submit_waking to {_role(stranger)}")
    admin = await asyncpg.connect(cluster.superuser_dsn(urlsplit(stranger).path[1:]))
    for row in await admin.fetch(
        "select oid::regprocedure::text as name from pg_proc"
        " where proname = 'pg_logical_emit_message'"
    ):
        await admin.execute(f"revoke execute on function {row['name']} from public")
    await admin.close()
    async with await Engine.open(stranger) as engine:
        await engine.jobs.submit(JOB, wake="q")
    assert await submitted(conn) == 1


def _role(dsn: str) -> str:
    return str(urlsplit(dsn).username)
