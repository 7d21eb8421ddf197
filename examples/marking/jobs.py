"""Marking as jobs: one transaction that asks for them, and the mark that comes with their end.

What a job does stands in penstock.toml. A worker runs this module, for the marks are written by it:
penstock worker marking.jobs:app
"""

import os
from pathlib import Path
from uuid import UUID

import asyncpg

from marking import store
from marking.assignments import ASSIGNMENTS
from marking.errors import Wrong
from marking.marks import mark_of
from penstock import FinishedJob
from penstock.client.config.toml import load

QUEUE = "marking"
# Workers run the jobs, unless HTTP calls drive the queue.
os.environ["MARKING_DRIVE"] = os.environ.get("MARKING_DRIVE") or "worker"
os.environ["MARKING_TIMEOUT"] = os.environ.get("MARKING_TIMEOUT") or "10m"
# The document's name for the address of callbacks.
if os.environ.get("AI_MARKING_CALLBACK_URL"):
    os.environ["PENSTOCK_PUBLIC_URL"] = os.environ["AI_MARKING_CALLBACK_URL"]

CONFIG = Path(os.environ.get("MARKING_CONFIG") or Path(__file__).with_name("penstock.toml"))

app = load(CONFIG)
mark = app.kinds["mark"]


@mark.on_finish
async def write_mark(job: FinishedJob, conn: asyncpg.Connection) -> None:
    """Runs once per finished job: one transaction writes the mark and removes the note."""
    found = mark_of(job.result) if job.status == "succeeded" else None
    if found is not None:
        await store.write_mark(conn, UUID(job.payload["submission_id"]), found, job.finished_at)


async def ask_for_marks(
    pool: asyncpg.Pool, assignment: str, submission: UUID | None
) -> tuple[int, int]:
    """Queue one answer, or all that have no mark: one transaction, all or none.

    How many are new, and for how many there was a job already.
    """
    asked = ASSIGNMENTS[assignment]
    async with pool.acquire() as conn, conn.transaction():
        rows = await store.unmarked(conn, assignment, submission)
        tickets = await mark.using(conn=conn).submit_many(
            {
                "submission_id": str(row["id"]),
                "assignment_id": assignment,
                "question": asked.question,
                "criteria": asked.told,
                "answer": row["answer"],
            }
            for row in rows
        )
        asked_for = [(row["id"], ticket.id) for row, ticket in zip(rows, tickets, strict=True)]
        await store.add_jobs(conn, asked_for)
    found = sum(ticket.deduplicated for ticket in tickets)
    return len(tickets) - found, found


async def retry(pool: asyncpg.Pool, job_id: UUID) -> UUID:
    """Submit a failed job again; return the id of the new job, also at a second click."""
    engine = await app.engine()
    async with pool.acquire() as conn, conn.transaction():
        submission = await store.hold_submission_of(conn, job_id)
        if submission is None:
            raise Wrong("job_id", "There is no such job here.", status=404)
        newest: UUID = submission["newest"]
        if newest != job_id:
            return newest
        new = UUID((await engine.jobs.retry(job_id, conn=conn))["id"])
        await store.add_jobs(conn, [(submission["id"], new)])
    if mark.driven:
        app.drive(QUEUE)
    else:
        app.wake(QUEUE)
    return new
