"""Workers on separate hosts: when they are ready, and which jobs they have begun."""

from collections.abc import Collection
from uuid import UUID

import asyncpg

from penstock.db.schema import migrations
from support.factory import submit_rows
from support.waiting import eventually
from support.worker.apps import app
from support.worker.crew import Crew, Line, Process, declare


async def install(dsn: str) -> None:
    """Make the schema, and declare the app of the workers."""
    conn = await asyncpg.connect(dsn)
    await migrations.up(conn)
    await conn.close()
    await declare(dsn, app)


async def ready(crew: Crew) -> None:
    """Two workers on two hosts lock their keys, and each may expire the other's lease."""
    await eventually(lambda: crew.conn.fetchval(_BOTH_MAY_RECOVER), "both may recover", seconds=60)
    for worker in crew.started:
        await crew.settled(worker)


# Sessions of upkeep that are alive and older than the grace, on as many hosts.
_BOTH_MAY_RECOVER = """
select count(distinct client_addr) filter (where backend_start < now - interval '3.1 seconds'
  and state_change > now - interval '1 second') = 2
from pg_stat_activity, clock_timestamp() as now where application_name = 'penstock upkeep'
"""


def starts(crew: Crew, jobs: Collection[UUID], attempt: int = 1) -> dict[UUID, Line]:
    return {
        line.job: line
        for line in crew.noted("start")
        if line.job in jobs and line.attempt == attempt
    }


async def until_started(
    crew: Crew, jobs: Collection[UUID], attempt: int = 1, seconds: float = 10
) -> dict[UUID, Line]:
    async def all_have() -> bool:
        return len(starts(crew, jobs, attempt)) == len(jobs)

    await eventually(all_have, f"attempt {attempt} of {len(jobs)} jobs", seconds=seconds)
    return starts(crew, jobs, attempt)


async def until_it_works(crew: Crew, worker: Process) -> None:
    """Submit until this worker takes a job."""

    async def works() -> bool:
        [job] = await submit_rows(crew.conn, [{"kind": "nap", "payload": {"seconds": 0}}])
        return (await until_started(crew, [job]))[job].pid == worker.pid

    await eventually(works, f"worker {worker.name} works", seconds=15)


async def have_noted(crew: Crew, word: str, jobs: Collection[UUID], attempt: int) -> bool:
    lines = [line for line in crew.noted(word) if line.attempt == attempt]
    return {line.job for line in lines if line.job in jobs} == set(jobs)
