"""The app's own table: every statement on it, and what is read of Penstock beside it.

All functions take a connection, so that the caller decides what belongs into one transaction.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from scanner.behaviours import Behaviour
from scanner.ends import FINDINGS, End
from scanner.errors import Wrong
from scanner.forms import Package, unknown

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Told = dict[str, Any]

SCHEMA = Path(__file__).with_name("schema.sql")
SCHEMA_LOCK = 0x5343414E4E4552  # "SCANNER": a number of this program only
# The most rows of a list.
SHOWN = 100


@dataclass(frozen=True, slots=True)
class Submission:
    id: UUID
    package: Package
    job_id: UUID
    end: End | None
    again: UUID | None
    """The submission that repeats this one, if there is one."""
    created_at: datetime
    ended_at: datetime | None


_SUBMISSION = """
select s.id, s.name, s.text, s.behaviour, s.job_id, s.state, s.reason, s.findings::text as findings,
  s.scanned_in_start, s.created_at, s.ended_at,
  (select a.id from scanner.submission a where a.again_of = s.id) as again
from scanner.submission s
"""


async def create_tables(conn: Connection) -> None:
    async with conn.transaction():
        await conn.execute("select pg_advisory_xact_lock($1)", SCHEMA_LOCK)
        await conn.execute(SCHEMA.read_text(encoding="utf-8"))


async def save(conn: Connection, package: Package, click: str) -> UUID | None:
    """Insert a submission; return its id, or None if this click has stored one before."""
    made: UUID | None = await conn.fetchval(
        "insert into scanner.submission (click, name, text, behaviour) values ($1, $2, $3, $4)"
        " on conflict do nothing returning id",
        click,
        package.name,
        package.text,
        package.behaviour,
    )
    return made


async def save_again(conn: Connection, submission: UUID) -> tuple[UUID, Package | None]:
    """A submission that tries this one once more, and what to scan; None: it was there before.

    It scans as usual: how the first one was told to behave is no property of the package.
    """
    behaviour: Behaviour = "normal"
    made = await conn.fetchrow(
        "insert into scanner.submission (click, name, text, behaviour, again_of)"
        " select 'again ' || s.id, s.name, s.text, $2, s.id from scanner.submission s"
        " where s.id = $1 and s.state = 'REJECTED' and s.reason <> $3"
        " on conflict do nothing returning id, name, text",
        submission,
        behaviour,
        FINDINGS,
    )
    if made is not None:
        return made["id"], Package(made["name"], made["text"], behaviour)
    known = await read(conn, submission)
    if known is None:
        raise unknown()
    if known.again is None:
        raise Wrong("id", "Only what was rejected by our fault is scanned again.", status=409)
    return known.again, None


async def set_job(conn: Connection, submission: UUID, job: UUID) -> None:
    await conn.execute("update scanner.submission set job_id = $2 where id = $1", submission, job)


async def finish(conn: Connection, submission: UUID, end: End) -> None:
    """Store an outcome; a second one changes nothing."""
    await conn.execute(
        "update scanner.submission set state = $2, reason = $3, findings = $4::text::jsonb,"
        " scanned_in_start = $5, ended_at = now() where id = $1 and state = 'RECEIVED'",
        submission,
        end.state,
        end.reason,
        json.dumps(end.findings),
        end.start,
    )


async def read(conn: Connection, submission: UUID) -> Submission | None:
    row = await conn.fetchrow(f"{_SUBMISSION} where s.id = $1", submission)
    return None if row is None else _submission(row)


async def newest(conn: Connection) -> list[tuple[Submission, Told | None]]:
    """Return all submissions with their unfinished jobs, in one statement."""
    rows = await conn.fetch(
        f"select s.*, case when s.ended_at is null then scanner.read_job(s.job_id)::text end as job"
        f" from ({_SUBMISSION} order by s.created_at desc, s.id limit $1) s",
        SHOWN,
    )
    return [(_submission(row), _told(row["job"]) if row["job"] else None) for row in rows]


async def find(conn: Connection, click: str) -> Submission:
    """Return the submission that this click has stored."""
    row = await conn.fetchrow(f"{_SUBMISSION} where s.click = $1", click)
    assert row is not None
    return _submission(row)


async def ids_of(conn: Connection, jobs: list[UUID]) -> dict[str, Told]:
    """Return id and name of the submissions of these jobs, by job id."""
    rows = await conn.fetch(
        "select job_id, id, name from scanner.submission where job_id = any ($1::uuid[])", jobs
    )
    return {str(row["job_id"]): {"id": str(row["id"]), "name": row["name"]} for row in rows}


# --- Penstock's ---------------------------------------------------------------------------------


async def read_job(conn: Connection, job: UUID) -> Told | None:
    """Return the job; None after it was pruned."""
    found = await conn.fetchval("select scanner.read_job($1)::text", job)
    return None if found is None else _told(found)


async def read_metrics(conn: Connection, hours: int, queue: str) -> Told:
    return _told(await conn.fetchval("select penstock.read_metrics($1, $2)::text", hours, queue))


async def read_status(conn: Connection) -> Told:
    return _told(await conn.fetchval("select penstock.read_admin_status()::text"))


def _told(text: str) -> Told:
    found: Told = json.loads(text)
    return found


def _submission(row: asyncpg.Record) -> Submission:
    end = None
    if row["ended_at"] is not None:
        findings = json.loads(row["findings"])
        end = End(row["state"], row["reason"], findings, row["scanned_in_start"])
    return Submission(
        row["id"],
        Package(row["name"], row["text"], row["behaviour"]),
        row["job_id"],
        end,
        row["again"],
        row["created_at"],
        row["ended_at"],
    )
