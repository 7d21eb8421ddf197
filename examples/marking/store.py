"""All statements on the app's own table.

All functions take a connection, so that the caller decides what belongs into one transaction.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from marking.assignments import ASSIGNMENTS, answers
from marking.marks import Correction, Mark, mark_of

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Row = dict[str, Any]

SCHEMA = Path(__file__).with_name("schema.sql")
SCHEMA_LOCK = 0x4D41524B494E  # "MARKIN": a number of this program only

# Answers without a mark come with their newest job.
_SUBMISSIONS = """
select s.id, s.pupil, s.answer, s.score, s.out_of, s.feedback, s.corrected_at, j.job_id,
  case when s.score is null then marking.read_job(j.job_id)::text end as job
from marking.submission s cross join lateral (
  select s.job_ids[cardinality(s.job_ids)] as job_id
) j
"""


async def create_tables(conn: Connection) -> None:
    """Create the table, and store the answers of the class if they are missing."""
    async with conn.transaction():
        await conn.execute("select pg_advisory_xact_lock($1)", SCHEMA_LOCK)
        await conn.execute(SCHEMA.read_text(encoding="utf-8"))
        await conn.executemany(
            "insert into marking.submission (id, assignment_id, pupil, answer)"
            " values ($1, $2, $3, $4) on conflict (id) do nothing",
            [(one.id, key, one.pupil, one.text) for key in ASSIGNMENTS for one in answers(key)],
        )


async def of_assignment(conn: Connection, assignment: str) -> list[Row]:
    found = await conn.fetch(
        f"{_SUBMISSIONS} where s.assignment_id = $1 order by s.pupil", assignment
    )
    return [_row(row) for row in found]


async def has(conn: Connection, assignment: str, submission: UUID) -> bool:
    found: bool = await conn.fetchval(
        "select exists (select from marking.submission where id = $1 and assignment_id = $2)",
        submission,
        assignment,
    )
    return found


async def unmarked(conn: Connection, assignment: str, submission: UUID | None) -> list[Row]:
    """Those without a mark, or this one of them, but for those whose job has just brought one."""
    found = await conn.fetch(
        f"{_SUBMISSIONS} where s.assignment_id = $1 and ($2::uuid is null or s.id = $2)"
        " and s.score is null order by s.pupil",
        assignment,
        submission,
    )
    rows = [_row(row) for row in found]
    return [row for row in rows if row["job"] is None or mark_of(row["job"]["result"]) is None]


async def add_jobs(conn: Connection, jobs: list[tuple[UUID, UUID]]) -> None:
    """Of each submission its newest job; one that was asked for before is there already."""
    await conn.executemany(
        "update marking.submission set job_ids = job_ids || $2::uuid"
        " where id = $1 and not $2 = any (job_ids)",
        jobs,
    )


async def write_mark(conn: Connection, submission: UUID, mark: Mark, at: datetime) -> None:
    await conn.execute(
        "update marking.submission set score = $2, out_of = $3, feedback = $4, marked_at = $5,"
        " times_marked = times_marked + 1 where id = $1 and corrected_at is null",
        submission,
        mark.score,
        mark.out_of,
        mark.feedback,
        at,
    )


async def correct(conn: Connection, assignment: str, given: Correction, most: int) -> int | None:
    """Write a mark by hand; the highest score it may have. None: there is no such answer.

    `most`: the highest score of an answer that has no mark yet. A higher one changes nothing.
    """
    async with conn.transaction():
        out_of: int | None = await conn.fetchval(
            "select coalesce(out_of, $3) from marking.submission"
            " where id = $1 and assignment_id = $2 for update",
            given.submission,
            assignment,
            most,
        )
        if out_of is not None and given.score <= out_of:
            await conn.execute(
                "update marking.submission set score = $2, out_of = $3, feedback = $4,"
                " marked_at = now(), corrected_at = now() where id = $1",
                given.submission,
                given.score,
                out_of,
                given.feedback,
            )
    return out_of


async def clear(conn: Connection, assignment: str) -> None:
    await conn.execute(
        "update marking.submission set score = null, out_of = null, feedback = null,"
        " marked_at = null, corrected_at = null, times_marked = 0, job_ids = '{}'"
        " where assignment_id = $1",
        assignment,
    )


async def hold_submission_of(conn: Connection, job: UUID) -> Row | None:
    """Whose job it is, and the newest one of that answer. Held: of two clicks one comes first."""
    found = await conn.fetchrow(
        "select id, job_ids[cardinality(job_ids)] as newest from marking.submission"
        " where job_ids @> array[$1::uuid] for update",
        job,
    )
    return dict(found) if found else None


async def whose(conn: Connection, jobs: list[UUID]) -> dict[str, Row]:
    """For each of these jobs: the pupil, the assignment, and whether there is a newer one."""
    found = await conn.fetch(
        "select j.id, s.pupil, s.assignment_id, j.id = s.job_ids[cardinality(s.job_ids)] as newest"
        " from marking.submission s cross join lateral unnest(s.job_ids) j (id)"
        " where s.job_ids && $1::uuid[] and j.id = any ($1)",
        jobs,
    )
    return {str(row["id"]): dict(row) for row in found}


async def count_marked(conn: Connection) -> dict[str, Row]:
    found = await conn.fetch(
        "select assignment_id, count(*) as answers, count(score) as marked"
        " from marking.submission group by assignment_id"
    )
    return {row["assignment_id"]: dict(row) for row in found}


def _row(row: asyncpg.Record) -> Row:
    return {**row, "job": json.loads(row["job"]) if row["job"] else None}
