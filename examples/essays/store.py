"""The app's own tables: every statement on them, and nothing about jobs but their ids.

All functions take a connection, so that the caller decides what belongs into one transaction.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from essays.forms import Draft
from essays.images import Image

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy

SCHEMA = Path(__file__).with_name("schema.sql")
SCHEMA_LOCK = 0x455353415953  # "ESSAYS": a number of this program only
PAST_SHOWN = 100

_COLUMNS = (
    "s.id, s.task, s.status, s.analysis_result::text as analysis_result, s.error_message,"
    " s.submitted_at, s.processed_at, s.word_count,"
    " case when s.status = 'pending' then penstock.read_job(s.job_id)::text end as job"
)


@dataclass(frozen=True, slots=True)
class Saved:
    """A stored submission; not `new` if the same click was stored before."""

    id: int
    new: bool


@dataclass(frozen=True, slots=True)
class Essay:
    """The input of the model."""

    task: str
    text: str
    image: Image | None


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection for a moment: a job does not hold one while the model works."""
    conn = await asyncpg.connect(dsn)
    try:
        yield conn
    finally:
        await conn.close()


async def create_tables(conn: Connection) -> None:
    async with conn.transaction():
        await conn.execute("select pg_advisory_xact_lock($1)", SCHEMA_LOCK)
        await conn.execute(SCHEMA.read_text(encoding="utf-8"))


async def save(conn: Connection, user: str, draft: Draft) -> Saved:
    """Store a submission, or find the one that the same click has stored."""
    image = draft.image
    number = await conn.fetchval(
        "insert into essays.writing_submissions"
        " (user_name, task, submission_key, essay, word_count, image, image_type)"
        " select $1, $2, $3, $4, $5, coalesce($6, o.image), coalesce($7, o.image_type)"
        " from (values (1)) one left join essays.writing_submissions o"
        " on o.id = $8 and o.user_name = $1 and $6::bytea is null"
        " on conflict (user_name, submission_key) do nothing returning id",
        user,
        draft.task,
        draft.key,
        draft.essay,
        draft.word_count,
        image.data if image else None,
        image.type if image else None,
        draft.image_of,
    )
    if number is not None:
        return Saved(number, new=True)
    number = await conn.fetchval(
        "select id from essays.writing_submissions where user_name = $1 and submission_key = $2",
        user,
        draft.key,
    )
    return Saved(number, new=False)


async def set_job(conn: Connection, submission: int, job: UUID) -> None:
    await conn.execute(
        "update essays.writing_submissions set job_id = $2 where id = $1", submission, job
    )


async def complete_task(conn: Connection, user: str, task: str, submission: int) -> None:
    """The task counts as completed from the first submission on; later ones change nothing."""
    await conn.execute(
        "insert into essays.user_task_completions (user_name, task, submission_id)"
        " values ($1, $2, $3) on conflict do nothing",
        user,
        task,
        submission,
    )


async def load(conn: Connection, submission: int) -> Essay | None:
    row = await conn.fetchrow(
        "select task, essay, image, image_type from essays.writing_submissions where id = $1",
        submission,
    )
    if row is None:
        return None
    image = Image(row["image_type"], row["image"]) if row["image"] else None
    return Essay(row["task"], row["essay"], image)


async def finish(
    conn: Connection, submission: int, *, result: Any = None, error: str | None = None
) -> None:
    """Store the outcome: a result, or a sentence with the reason why there is none."""
    await conn.execute(
        "update essays.writing_submissions set status = $2, analysis_result = $3::text::jsonb,"
        " error_message = $4, processed_at = now() where id = $1",
        submission,
        "done" if error is None else "failed",
        json.dumps(result) if error is None else None,
        error,
    )


async def read(conn: Connection, user: str, submission: int) -> dict[str, Any] | None:
    """Return a submission of this user with its live job, in one statement, or None."""
    row = await conn.fetchrow(
        f"select {_COLUMNS}, s.essay, s.image_type"
        " from essays.writing_submissions s where s.id = $1 and s.user_name = $2",
        submission,
        user,
    )
    return None if row is None else _row(row)


async def past(conn: Connection, user: str) -> list[dict[str, Any]]:
    """Return the newest submissions of this user with their live jobs, in one statement."""
    rows = await conn.fetch(
        f"select {_COLUMNS} from essays.writing_submissions s where s.user_name = $1"
        " order by s.id desc limit $2",
        user,
        PAST_SHOWN,
    )
    return [_row(row) for row in rows]


async def completed_tasks(conn: Connection, user: str) -> list[str]:
    rows = await conn.fetch(
        "select task from essays.user_task_completions where user_name = $1"
        " order by completed_at, task",
        user,
    )
    return [row["task"] for row in rows]


async def read_image(conn: Connection, user: str, submission: int) -> Image | None:
    row = await conn.fetchrow(
        "select image_type, image from essays.writing_submissions"
        " where id = $1 and user_name = $2 and image is not null",
        submission,
        user,
    )
    return None if row is None else Image(row["image_type"], row["image"])


def _row(row: asyncpg.Record) -> dict[str, Any]:
    found = dict(row)
    for name in ("analysis_result", "job"):
        found[name] = json.loads(found[name]) if found[name] else None
    return found
