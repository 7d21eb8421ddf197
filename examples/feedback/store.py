"""All statements on the app's own table, which knows only the ids of jobs.

All functions take a connection, so that the caller decides about transactions.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from feedback.forms import Draft

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Row = dict[str, Any]

SCHEMA = Path(__file__).with_name("schema.sql")
SCHEMA_LOCK = 0x464545444241  # "FEEDBA": a number of this program only
SETTLED_AT_ONCE = 500
CLASS_SHOWN = 200

_COLUMNS = (
    "s.id, s.pupil, s.simulated, s.task, s.answer, s.feedback_status, s.retry_count,"
    " s.last_retry_at, s.processing_started_at, s.feedback, s.error_class, s.created_at,"
    " s.finished_at"
)


@dataclass(frozen=True, slots=True)
class Saved:
    """A stored submission; not `new` if the same click was stored before."""

    id: int
    new: bool


async def create_tables(conn: Connection) -> None:
    async with conn.transaction():
        await conn.execute("select pg_advisory_xact_lock($1)", SCHEMA_LOCK)
        await conn.execute(SCHEMA.read_text(encoding="utf-8"))


async def save(conn: Connection, pupil: str, draft: Draft, *, simulated: bool = False) -> Saved:
    """Store a submission, or find the one that the same click has stored."""
    number = await conn.fetchval(
        "insert into feedback.submission (pupil, task, submission_key, answer, simulated)"
        " values ($1, $2, $3, $4, $5) on conflict (pupil, submission_key) do nothing returning id",
        pupil,
        draft.task,
        draft.key,
        draft.answer,
        simulated,
    )
    if number is not None:
        return Saved(number, new=True)
    number = await conn.fetchval(
        "select id from feedback.submission where pupil = $1 and submission_key = $2",
        pupil,
        draft.key,
    )
    return Saved(number, new=False)


async def set_job(conn: Connection, submission: int, job: UUID) -> None:
    await conn.execute("update feedback.submission set job_id = $2 where id = $1", submission, job)


async def latest(conn: Connection, pupil: str) -> list[Row]:
    """Return the pupil's newest submission for each task, with its job."""
    return _rows(
        await conn.fetch(
            f"select {_COLUMNS}, case when s.finished_at is null"
            " then feedback.read_job(s.job_id, true)::text end as job"
            " from (select distinct on (task) * from feedback.submission"
            " where pupil = $1 and not simulated order by task, id desc) s order by s.id",
            pupil,
        )
    )


async def read(conn: Connection, pupil: str, submission: int) -> Row | None:
    """Return a submission of this pupil; None if it does not exist or belongs to somebody else."""
    found = await conn.fetch(
        f"select {_COLUMNS}, case when s.finished_at is null"
        " then feedback.read_job(s.job_id, true)::text end as job"
        " from feedback.submission s where s.id = $1 and s.pupil = $2 and not s.simulated",
        submission,
        pupil,
    )
    return next(iter(_rows(found)), None)


async def of_class(conn: Connection) -> list[Row]:
    """Return the newest submissions of all pupils."""
    return _rows(
        await conn.fetch(
            f"select {_COLUMNS}, case when s.finished_at is null"
            " then feedback.read_job(s.job_id, false)::text end as job"
            " from feedback.submission s order by s.id desc limit $1",
            CLASS_SHOWN,
        )
    )


async def unsettled(conn: Connection) -> list[Row]:
    """Return the oldest submissions without a stored outcome, with their jobs."""
    return _rows(
        await conn.fetch(
            f"select {_COLUMNS}, feedback.read_job(s.job_id, false)::text as job"
            " from feedback.submission s"
            " where s.finished_at is null order by s.created_at limit $1",
            SETTLED_AT_ONCE,
        )
    )


async def settle(conn: Connection, submission: int, outcome: Mapping[str, Any]) -> None:
    """Store the outcome. Jobs are kept for a week; the feedback is kept here."""
    await conn.execute(
        "update feedback.submission set feedback_status = $2, retry_count = $3,"
        " last_retry_at = $4, processing_started_at = $5, feedback = $6, error_class = $7,"
        " finished_at = $8 where id = $1 and finished_at is null",
        submission,
        outcome["feedback_status"],
        outcome["retry_count"],
        outcome["last_retry_at"],
        outcome["processing_started_at"],
        outcome["feedback"],
        outcome["error_class"],
        outcome["finished_at"],
    )


def _rows(found: list[asyncpg.Record]) -> list[Row]:
    return [{**row, "job": json.loads(row["job"]) if row["job"] else None} for row in found]
